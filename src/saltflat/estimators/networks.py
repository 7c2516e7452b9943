"""The models inside: linear, one hidden layer, and a linear layer on scattering features; or the user's own."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import InputError, check_count, nearest
from saltflat.estimators.inputs import Shape
from saltflat.models import build, scattering_features
from saltflat.models.scatter_heads import GROUPS, MAPS

LEAST_SIDE = 16  # scattering halves an image twice, and looks at what is left


@dataclass(frozen=True)
class Network:
    """A model, the form of its inputs, and what is done to rows before it: the same in training and prediction."""

    module: nn.Module
    shape: tuple[int, ...]
    transform: Callable[[Tensor], Tensor] | None = None
    images: bool = False

    @property
    def layers(self) -> int:
        """How many weights are trained, biases apart: one means a linear model."""
        return sum(p.dim() > 1 and p.requires_grad for p in self.module.parameters())


def network(model: Any, features: int, image: Shape | None, outputs: int, hidden: int) -> Network:
    """The network that ``model`` names, with so many outputs; weights come from torch's global generator."""
    if isinstance(model, nn.Module):
        shape: tuple[int, ...] = (features,) if image is None else image
        return Network(copy.deepcopy(model), shape, images=image is not None)
    if model == "linear":
        return Network(_zeroed(build("logistic", in_features=features, classes=outputs)), (features,),
                       images=image is not None)  # fmt: skip
    if model == "mlp":
        check_count("hidden", hidden)
        module = build("mlp", in_features=features, hidden=hidden, classes=outputs)
        _, inner, _, outer = module.children()
        for weight in inner.parameters():  # rows are about one long: units answer to them in every direction
            nn.init.normal_(weight)
        _zeroed(outer)
        return Network(module, (features,), images=image is not None)
    if model == "scatter":
        colours, height, width = _check_image(image)
        size = colours * MAPS * (height // 4) * (width // 4)
        transform = functools.partial(scattered, shape=(colours, height, width))
        return Network(
            _zeroed(build("logistic", in_features=size, classes=outputs)), (size,), transform, True
        )
    raise InputError(
        "model", model, "'linear', 'mlp', 'scatter', or a torch.nn.Module", problem="is not a model",
        cure=nearest(str(model), ["linear", "mlp", "scatter"]),
    )  # fmt: skip


def scattered(rows: Tensor, shape: Shape) -> Tensor:
    """Scattering features of flat images, each image's standardised by groups, and not longer than one.

    >>> import torch
    >>> features = scattered(torch.rand(2, 256), (1, 16, 16))
    >>> features.shape, bool((features.norm(dim=1) < 1.001).all())
    (torch.Size([2, 1296]), True)
    """
    images = rows.reshape(len(rows), *shape).float()
    features = F.group_norm(scattering_features(images), GROUPS).flatten(1)
    return (features / math.sqrt(features.shape[1])).to(rows.dtype)


def _zeroed(module: nn.Module) -> nn.Module:
    """All weights zero: a linear model needs no random start, and noise is all that moves it from where it is."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def _check_image(image: Shape | None) -> Shape:
    if image is None:
        raise InputError(
            "model", "scatter", "images: X of shape n × h × w or n × c × h × w, or image_shape=",
            problem="is asked for, and the rows are no images",
        )  # fmt: skip
    if min(image[1:]) < LEAST_SIDE:
        raise InputError(
            "model", "scatter", f"images of at least {LEAST_SIDE} × {LEAST_SIDE}",
            problem=f"is asked for, and the images are {image[1]} × {image[2]}", cure="Use model='linear'.",
        )  # fmt: skip
    return image
