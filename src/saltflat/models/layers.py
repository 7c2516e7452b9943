"""The layers that several models share: input normalisation and weight-standardised convolution."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import InputError, check_known

# Published constants of the data sets, never computed from the data at hand: they cost no budget.
NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "mnist": ((0.1307,), (0.3081,)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    "none": ((0.0,), (1.0,)),
}


class Normalise(nn.Module):
    """``(x - mean) / std`` per channel, by public constants and inside the model.

    ``constants`` is a key of `NORMALISATIONS`, or ``"auto"``: those of MNIST for one channel, those of
    CIFAR for three, none for other numbers.

    >>> Normalise("mnist", 1)(torch.full((1, 1, 2, 2), 0.1307)).abs().max().item()
    0.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, constants: str, in_channels: int) -> None:
        super().__init__()
        by_channels = {1: "mnist", 3: "cifar"}.get(in_channels, "none")
        self.constants = by_channels if constants == "auto" else str(constants)
        names = ["auto", *NORMALISATIONS]
        check_known("normalisation", self.constants, names, "the name of public constants")
        mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in NORMALISATIONS[self.constants])
        if mean.numel() not in (1, in_channels):
            raise InputError(
                "normalisation", constants, f"constants for {in_channels} channels",
                problem=f"has constants for {mean.numel()} channels",
                cure='Choose normalisation="none" and normalise the images beforehand by public constants.',
            )  # fmt: skip
        # not persistent: constants are part of the architecture, not of the weights
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        return self.constants


class WeightStandardisedConv2d(nn.Module):
    """A convolution whose kernels are standardised per output channel before every use.

    - ``"scaled"`` (De et al., 2022): ``(W - mean) * gain / sqrt(max(var * fan_in, 1e-4))`` with a learned
      gain, and a bias;
    - ``"plain"`` (Qiao et al., 2019): ``(W - mean) / (std + 1e-5)``, without gain or bias.

    It is not a subclass of ``nn.Conv2d``, on purpose: the gradient of ``weight`` is not that of an
    ordinary convolution, and code that goes by type must not take it for one.

    >>> conv = WeightStandardisedConv2d(3, 8, kernel_size=3)
    >>> kernels = conv.effective_weight().flatten(1)
    >>> bool((kernels.mean(1).abs() < 1e-6).all()), bool(((kernels.norm(dim=1) - 1).abs() < 1e-3).all())
    (True, True)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        standardisation: Literal["scaled", "plain"] = "scaled",
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, kernel_size // 2
        self.standardisation = standardisation
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight[0].numel()))
        scaled = standardisation == "scaled"
        self.gain = nn.Parameter(torch.ones(out_channels)) if scaled else None
        self.bias = nn.Parameter(torch.zeros(out_channels)) if scaled else None

    def effective_weight(self) -> Tensor:
        """The kernels that the convolution uses."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        if self.gain is None:
            return centred / (self.weight.std((1, 2, 3), keepdim=True) + 1e-5)
        fan_in = self.weight[0].numel()
        variance = self.weight.var((1, 2, 3), correction=0, keepdim=True)
        return centred * self.gain.view(-1, 1, 1, 1) / (variance * fan_in).clamp_min(1e-4).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.effective_weight(), self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        out_channels, in_channels, size, _ = self.weight.shape
        return (
            f"{in_channels}, {out_channels}, kernel_size={size}, stride={self.stride}, {self.standardisation}"
        )


def initialise_convolutions(model: nn.Module) -> None:
    """Draw every convolution's kernel from N(0, 2 / (k² C_out)), depthwise ones included."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            nn.init.normal_(module.weight, std=math.sqrt(2 / (height * width * module.out_channels)))
