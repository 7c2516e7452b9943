"""Models by name: one decorator registers a builder, and `build` can rebuild what a run folder names."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from saltflat.errors import InputError, check_count, check_known, nearest

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Description:
    """What a model is, without building it. The numbers are those of the model without overrides."""

    name: str
    summary: str
    input_shape: tuple[int, ...]
    parameters: int
    paper: str
    overrides: tuple[str, ...]


_BUILDERS: dict[str, Callable[..., nn.Module]] = {}
_DESCRIPTIONS: dict[str, Description] = {}


def register(
    name: str, summary: str, *, input_shape: tuple[int, ...], parameters: int, paper: str
) -> Callable[[Builder], Builder]:
    """Make ``build(name)`` call the decorated function, whose keyword arguments become the overrides.

    ``input_shape`` is that of one example; ``parameters`` is the count that the tests assert.

    >>> @register("doctest-line", "one line", input_shape=(2,), parameters=3, paper="none")
    ... def line(*, outputs: int = 1) -> nn.Module:
    ...     return nn.Linear(2, outputs)
    >>> build("doctest-line", outputs=4)
    Linear(in_features=2, out_features=4, bias=True)
    >>> unregister("doctest-line")
    """
    if name in _BUILDERS:
        raise InputError("name", name, "a name that no other model has", problem="is registered already")

    def remember(builder: Builder) -> Builder:
        overrides = tuple(inspect.signature(builder).parameters)
        _BUILDERS[name] = builder
        _DESCRIPTIONS[name] = Description(name, summary, input_shape, parameters, paper, overrides)
        return builder

    return remember


def unregister(name: str) -> None:
    """Forget a model that `register` added."""
    describe(name)
    del _BUILDERS[name], _DESCRIPTIONS[name]


def names() -> list[str]:
    """Every model that `build` knows, in alphabetical order.

    >>> "dpnas-fmnist" in names()
    True
    """
    return sorted(_BUILDERS)


def describe(name: str) -> Description:
    """Summary, input shape, parameter count, paper and overrides of a model.

    >>> describe("cnn-selu").parameters, describe("cnn-selu").input_shape
    (550570, (3, 32, 32))
    """
    check_known("name", name, names(), "the name of a model", problem="is not a model")
    return _DESCRIPTIONS[name]


def build(name: str, **overrides: Any) -> nn.Module:
    """A freshly initialised model. Weights are drawn from torch's global generator, as in any module.

    The model carries ``saltflat_spec``, its name and overrides, so that a run folder can rebuild it.

    >>> model = build("logistic", classes=3)
    >>> model.saltflat_spec
    {'name': 'logistic', 'overrides': {'classes': 3}}
    """
    known = describe(name).overrides
    for override in overrides:
        if override not in known:
            raise InputError(
                override, overrides[override], f"an override that {name} knows",
                problem=f"is not an override of {name}", cure=nearest(override, list(known)),
            )  # fmt: skip
    model = _BUILDERS[name](**overrides)
    # past nn.Module.__setattr__, whose annotation admits tensors and modules only
    object.__setattr__(model, "saltflat_spec", {"name": name, "overrides": dict(overrides)})
    return model


def build_for(name: str, shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """The named model, shaped to rows of this shape and so many classes as far as its overrides go."""
    known = describe(name)
    wanted = {"classes": classes, "in_features": math.prod(shape)}
    if len(shape) == 3 and tuple(known.input_shape) != shape:
        channels, side = shape[:2]
        if name.startswith("scatter-"):  # its input is features: 81 maps a colour at a quarter of the size
            channels, side = channels // 81, 4 * side
        wanted |= {"in_channels": channels, "image_size": side}
    return build(
        name, **{k: value for k, value in wanted.items() if k in known.overrides and value is not None}
    )


def check_counts(**counts: int) -> None:
    """Refuse anything but whole numbers of at least one, by the names of the overrides."""
    for argument, value in counts.items():
        check_count(argument, value)


def check_image_size(image_size: int, least: int, why: str) -> None:
    """Refuse images that a model's pooling would shrink to nothing."""
    check_count("image_size", image_size, least, cure=f"The model {why}.")
