"""Plain convolutional networks without normalisation layers."""

from __future__ import annotations

from functools import partial

from torch import nn

from saltflat.models.layers import Normalise
from saltflat.models.registry import check_counts, check_image_size, register

TANH_PAPER = (
    "Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential Privacy, AAAI 2021"
)
FED_PAPER = (
    "Shi et al., Towards the Flatter Landscape and Better Generalization in Federated Learning "
    "under Client-level Differential Privacy, 2023"
)


def _cnn(
    activation: type[nn.Module],
    *,
    classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    normalisation: str = "auto",
) -> nn.Module:
    """Convolutions 32, 32, pool, 64, 64, pool, 128, 128, pool; linear to 128 and to the classes."""
    check_counts(classes=classes, in_channels=in_channels)
    check_image_size(image_size, 8, "halves the image three times")
    layers: list[nn.Module] = [Normalise(normalisation, in_channels)]
    channels = in_channels
    for width in (32, 64, 128):
        for source in (channels, width):
            layers += [nn.Conv2d(source, width, 3, padding=1), activation()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    side = image_size // 8
    layers += [nn.Flatten(), nn.Linear(128 * side * side, 128), activation(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


for _name, _activation in (("cnn-selu", nn.SELU), ("cnn-tanh", nn.Tanh)):
    register(
        _name, f"six 3×3 convolutions and {_activation.__name__}", input_shape=(3, 32, 32), parameters=550_570,
        paper=TANH_PAPER,
    )(partial(_cnn, _activation))  # fmt: skip


@register(
    "fed-cnn", "two 5×5 convolutions, for EMNIST over clients", input_shape=(1, 28, 28), parameters=608_702,
    paper=FED_PAPER,
)  # fmt: skip
def fed_cnn(
    *, classes: int = 62, in_channels: int = 1, image_size: int = 28, normalisation: str = "auto"
) -> nn.Module:
    """Unpadded convolutions to 32 and 64 channels, each pooled, and 512 hidden units.

    The first linear layer follows the image: 903,614 parameters for images of 32×32 and 62 classes.
    """
    check_counts(classes=classes, in_channels=in_channels)
    check_image_size(image_size, 16, "twice cuts four pixels off the image and halves it")
    side = ((image_size - 4) // 2 - 4) // 2
    return nn.Sequential(
        Normalise(normalisation, in_channels),
        nn.Conv2d(in_channels, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * side * side, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
