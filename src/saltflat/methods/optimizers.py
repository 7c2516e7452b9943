"""Named optimizers. All are torch.optim's own, stepping with a release as if it were a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from saltflat.errors import InputError, check_known
from saltflat.methods.adam_bc import AdamBC
from saltflat.plan import Optimizer

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

REGISTRY: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adam-bc": AdamBC,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}

DEFAULT = Optimizer("sgd", {"momentum": 0.9})


def default_learning_rate(optimizer: Optimizer, clip_norm: float) -> float:
    """A rate to start from when none is named.

    A clipped gradient has length C at most, so a step of SGD is proportional to rate · C; the papers' 2.0
    at C = 0.1 is 0.2/C. Adam divides that scale out again.
    """
    if optimizer.name != "sgd":
        return 0.002
    return 0.1 if math.isinf(clip_norm) else 0.2 / clip_norm


def check_name(name: str) -> None:
    """Refuse an optimizer that has no entry here."""
    factory = "Or give fit(optimizer=) a factory."
    check_known("optimizer", name, REGISTRY, "the name of an optimizer", problem="is not known", cure=factory)


def build(
    optimizer: Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float
) -> torch.optim.Optimizer:
    """The torch optimizer that a plan names."""
    check_name(optimizer.name)
    settings: dict[str, Any] = dict(optimizer.settings)
    if "beta1" in settings or "beta2" in settings:
        settings["betas"] = (settings.pop("beta1", 0.9), settings.pop("beta2", 0.999))
    try:
        return REGISTRY[optimizer.name](parameters, lr=learning_rate, **settings)
    except (TypeError, ValueError) as error:
        raise InputError(
            "optimizer", str(optimizer), "settings that it knows", problem=f"failed: {error}"
        ) from error
