"""Models on fixed scattering features: compute the features once, then train a small head on them."""

from __future__ import annotations

from torch import nn

from saltflat.models.registry import check_counts, check_image_size, register

PAPER = (
    "Tramèr and Boneh, Differentially Private Learning Needs Better Features (or Much More Data), ICLR 2021"
)
MAPS = 81  # scattering maps a colour: 1 of order 0, 16 of order 1, 64 of order 2
GROUPS = 27  # divides the maps of grey and of colour images


def _normed_features(classes: int, in_channels: int, image_size: int) -> tuple[nn.Module, int, int]:
    """The affine-free norm, the number of feature maps, and their side."""
    check_counts(classes=classes, in_channels=in_channels)
    check_image_size(image_size, 4, "takes features at a quarter of the image's size")
    maps = MAPS * in_channels
    return nn.GroupNorm(GROUPS, maps, affine=False), maps, image_size // 4


@register(
    "scatter-linear", "a linear layer on scattering features", input_shape=(81, 7, 7), parameters=39_700,
    paper=PAPER,
)  # fmt: skip
def scatter_linear(*, classes: int = 10, in_channels: int = 1, image_size: int = 28) -> nn.Module:
    """For features N × 81·in_channels × image_size/4 × image_size/4, from ``scattering_features``.

    155,530 parameters for colour images of 32×32 (``in_channels=3, image_size=32``).
    """
    norm, maps, side = _normed_features(classes, in_channels, image_size)
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(maps * side * side, classes))


@register(
    "scatter-cnn", "a small Tanh CNN on scattering features", input_shape=(81, 7, 7), parameters=33_066,
    paper=PAPER,
)  # fmt: skip
def scatter_cnn(*, classes: int = 10, in_channels: int = 1, image_size: int = 28) -> nn.Module:
    """For the same features as ``scatter-linear``. Grey and colour images have the papers' two layouts.

    187,210 parameters for colour images of 32×32 (``in_channels=3, image_size=32``).
    """
    norm, maps, side = _normed_features(classes, in_channels, image_size)
    half = (side + 1) // 2 if in_channels == 1 else side // 2
    if in_channels == 1:
        return nn.Sequential(
            norm,
            nn.Conv2d(maps, 16, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32 * half * half, 32),
            nn.Tanh(),
            nn.Linear(32, classes),
        )
    check_image_size(image_size, 8, "halves features at a quarter of the image's size")
    return nn.Sequential(
        norm,
        nn.Conv2d(maps, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * half * half, classes),
    )
