"""The papers' models, fixed scattering features, and what other people's models need: conversion, heads, parts.

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
from saltflat.models.encoders import Headed, with_head
from saltflat.models.friendly import make_private_friendly
from saltflat.models.parts import merge_lora, tune_only
from saltflat.models.registry import Description, build, describe, names, register, unregister
from saltflat.models.scattering import Scattering2d, scattering_features
from saltflat.models.vectors import centring_loss
from saltflat.models.weights import load_encoder, load_weights

__all__ = [
    "Description",
    "Headed",
    "Scattering2d",
    "build",
    "centring_loss",
    "describe",
    "load_encoder",
    "load_weights",
    "make_private_friendly",
    "merge_lora",
    "names",
    "register",
    "scattering_features",
    "tune_only",
    "unregister",
    "with_head",
]
