"""The papers' models, fixed scattering features, and the conversion of other models.

>>> from saltflat import models
>>> model = models.build("dpnas-mnist", classes=10)
>>> sum(weight.numel() for weight in model.parameters()) == models.describe("dpnas-mnist").parameters
True
"""

from saltflat.models import (  # noqa: F401  (imported for what they register)
    convnets,
    dpnas,
    resnets,
    scatter_heads,
    transformer,
    vectors,
    wide_resnet,
)
from saltflat.models.friendly import make_private_friendly
from saltflat.models.registry import Description, build, describe, names, register, unregister
from saltflat.models.scattering import Scattering2d, scattering_features

__all__ = [
    "Description",
    "Scattering2d",
    "build",
    "describe",
    "make_private_friendly",
    "names",
    "register",
    "scattering_features",
    "unregister",
]
