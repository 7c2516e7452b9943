"""WRN-16-4 with weight standardisation and GroupNorm, the network of large-batch private training."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from saltflat.errors import check_known
from saltflat.models.layers import Normalise, WeightStandardisedConv2d
from saltflat.models.registry import check_counts, register

PAPER = "De et al., Unlocking High-Accuracy Differentially Private Image Classification through Scale, 2022"
Variant = Literal["de-et-al", "public-data"]


def _activate(channels: int, variant: Variant) -> list[nn.Module]:
    norm, relu = nn.GroupNorm(16, channels), nn.ReLU()
    return [relu, norm] if variant == "de-et-al" else [norm, relu]


def _convolve(in_channels: int, channels: int, size: int, stride: int, variant: Variant) -> nn.Module:
    standardisation: Literal["scaled", "plain"] = "scaled" if variant == "de-et-al" else "plain"
    return WeightStandardisedConv2d(in_channels, channels, size, stride, standardisation)


class WideBlock(nn.Module):
    """Activation and 3×3 convolution, twice; the first block of a stage has its own path on the skip.

    >>> import torch
    >>> WideBlock(16, 64, stride=2, first=True, variant="de-et-al")(torch.zeros(2, 16, 8, 8)).shape
    torch.Size([2, 64, 4, 4])
    """

    def __init__(
        self, in_channels: int, channels: int, *, stride: int, first: bool, variant: Variant
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_activate(in_channels, variant),
            _convolve(in_channels, channels, 3, stride, variant),
            *_activate(channels, variant),
            _convolve(channels, channels, 3, 1, variant),
        )
        self.skip = (
            nn.Sequential(
                *_activate(in_channels, variant), _convolve(in_channels, channels, 1, stride, variant)
            )
            if first
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.skip(x)


@register(
    "wrn-16-4", "wide ResNet with weight standardisation", input_shape=(3, 32, 32), parameters=2_753_818,
    paper=PAPER,
)  # fmt: skip
def wrn_16_4(
    *, classes: int = 10, in_channels: int = 3, normalisation: str = "auto", variant: Variant = "de-et-al"
) -> nn.Module:
    """Three stages of two blocks, 64, 128 and 256 channels; any image size.

    ``variant="public-data"`` is the one of the work on public data synthesis: GroupNorm before ReLU,
    convolutions without gain or bias, 2,749,306 parameters.
    """
    check_counts(classes=classes, in_channels=in_channels)
    check_known("variant", variant, get_args(Variant), "a variant of wrn-16-4")
    layers: list[nn.Module] = [
        Normalise(normalisation, in_channels),
        _convolve(in_channels, 16, 3, 1, variant),
    ]
    channels = 16
    for width, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [
            WideBlock(channels, width, stride=stride, first=True, variant=variant),
            WideBlock(width, width, stride=1, first=False, variant=variant),
        ]
        channels = width
    layers += [*_activate(256, variant), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes)]
    return nn.Sequential(*layers)
