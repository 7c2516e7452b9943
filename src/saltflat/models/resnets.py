"""Residual networks with GroupNorm in the place of BatchNorm, whose statistics would mix examples."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from saltflat.models.layers import Normalise
from saltflat.models.registry import check_counts, register

RESNET_PAPER = (
    "He et al., Deep Residual Learning for Image Recognition, CVPR 2016; Wu and He, Group Normalization, 2018"
)
GN_RESNET_PAPER = "Park et al., Differentially Private Sharpness-Aware Training, ICML 2023"


def _convolve(in_channels: int, channels: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(in_channels, channels, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.GroupNorm(32, channels)]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes.

    >>> import torch
    >>> BasicBlock(32, 64, stride=2)(torch.zeros(2, 32, 8, 8)).shape
    torch.Size([2, 64, 4, 4])
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolve(in_channels, channels, 3, stride), nn.ReLU(), *_convolve(channels, channels, 3)
        )
        same_shape = stride == 1 and in_channels == channels
        self.shortcut = (
            nn.Identity() if same_shape else nn.Sequential(*_convolve(in_channels, channels, 1, stride))
        )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


def _resnet(
    blocks_a_stage: int, *, classes: int = 10, in_channels: int, normalisation: str = "auto"
) -> nn.Module:
    """Four stages of basic blocks behind a 3×3 stem that keeps the resolution, as images are small.

    GroupNorm of 32 groups, ReLU, global mean pool; any image size.
    """
    check_counts(classes=classes, in_channels=in_channels)
    layers: list[nn.Module] = [
        Normalise(normalisation, in_channels),
        *_convolve(in_channels, 64, 3),
        nn.ReLU(),
    ]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block in range(blocks_a_stage):
            layers += [BasicBlock(channels, width, stride if block == 0 else 1)]
            channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*layers)


register(
    "gn-resnet10", "ResNet-10 with GroupNorm, for MNIST and Fashion-MNIST", input_shape=(1, 28, 28),
    parameters=4_902_090, paper=GN_RESNET_PAPER,
)(partial(_resnet, 1, in_channels=1))  # fmt: skip
register(
    "resnet18-gn", "ResNet-18 with GroupNorm, for 32×32 images", input_shape=(3, 32, 32),
    parameters=11_173_962, paper=RESNET_PAPER,
)(partial(_resnet, 2, in_channels=3))  # fmt: skip
