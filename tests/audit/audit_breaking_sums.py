"""Mutations of the clip, of the sum and of what it is divided by."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from audit_mutations import NOISE, REPLAY, mutation
from torch import Tensor

from saltflat.engine import clipping, uses
from saltflat.plan import Multiplicity, PerLayerClipping
from saltflat.training import build, step, sums

# the package gives the module's name to a function
engine = importlib.import_module("saltflat.engine.clipped_sum")


# --- divisor --------------------------------------------------------------------------------------------


@mutation("a wrong divisor", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.noised
    patch.setattr(build, "noised", lambda total, sd, divisor, source: right(total, sd, divisor / 2, source))


@mutation("a wrong divisor for the sum alone", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.noised
    patch.setattr(build, "noised", lambda total, *rest: right({n: 1.1 * v for n, v in total.items()}, *rest))


@mutation("the realised batch size as divisor", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.Loop.sum_of_clipped

    def summed(self: Any, batch: Tensor, clip: float) -> Any:
        total, short = right(self, batch, clip)
        factor = self.plan.sampling.batch_size / max(len(batch), 1)
        return {n: v * factor for n, v in total.items()}, short

    patch.setattr(step.Loop, "sum_of_clipped", summed)


@mutation("the mean of the batch instead of its sum", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = sums.clipped_sum

    def mean(*args: Any, **settings: Any) -> Any:
        found = right(*args, **settings)
        return replace(found, grads={n: v * 8 / max(len(found.norms), 1) for n, v in found.grads.items()})

    patch.setattr(sums, "clipped_sum", mean)


# --- clipping -------------------------------------------------------------------------------------------


@mutation("no clip", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clipping, "flat", lambda squared, clip: {n: torch.ones_like(v) for n, v in squared.items()})


@mutation("a clip per tensor", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(
        clipping, "flat", lambda squared, clip: {n: right({n: v}, clip)[n] for n, v in squared.items()}
    )


@mutation("a clip norm that is √2 too long", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(clipping, "flat", lambda squared, clip: right(squared, clip * math.sqrt(2)))


@mutation("a clip norm that is one percent too long", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(clipping, "flat", lambda squared, clip: right(squared, clip * 1.01))


@mutation("a norm without the biases", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat

    def flat(squared: Any, clip: float) -> Any:
        factor = next(iter(right({n: v for n, v in squared.items() if "bias" not in n}, clip).values()))
        return dict.fromkeys(squared, factor)

    patch.setattr(clipping, "flat", flat)


@mutation("layers that each get the whole clip norm", REPLAY, clipping=PerLayerClipping())
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.per_layer

    def per_layer(squared: Any, clip: float) -> Any:
        layers = len({name.rpartition(".")[0] for name in squared})
        return right(squared, clip * math.sqrt(layers))

    patch.setattr(clipping, "per_layer", per_layer)


@mutation("a clip after the sum", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = sums.clipped_sum

    def late(model: Any, loss: Any, inputs: Any, targets: Tensor, clip: float, **settings: Any) -> Any:
        settings["clipping"] = lambda squared, _: {n: torch.ones_like(v) for n, v in squared.items()}
        found = right(model, loss, inputs, targets, clip, **settings)
        norm = math.sqrt(sum(float(v.double().square().sum()) for v in found.grads.values()))
        return replace(found, grads={n: v * min(1.0, clip / (norm + 1e-30)) for n, v in found.grads.items()})

    patch.setattr(sums, "clipped_sum", late)


@mutation("a clip per micro-batch", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat

    def together(squared: Any, clip: float) -> Any:
        return right({n: v.mean().expand_as(v) for n, v in squared.items()}, clip)

    patch.setattr(clipping, "flat", together)


@mutation("the factors of another unit", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(
        clipping, "flat", lambda squared, clip: {n: f.roll(1) for n, f in right(squared, clip).items()}
    )


@mutation("tied weights: only one use counts for the norm", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    _tied(patch, lambda used: used[-1].squared_norms())


@mutation("tied weights: each use is a second batch", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    _tied(patch, lambda used: torch.stack([use.squared_norms() for use in used]).amax(0))


def _tied(patch: pytest.MonkeyPatch, norms: Callable[[list[Any]], Tensor]) -> None:
    right = uses._joined_outer

    def joined(used: list[Any]) -> Any:
        found = right(used)
        if len(used) > 1:
            found.squared_norms = lambda: norms(used)
        return found

    patch.setattr(uses, "_joined_outer", joined)


@mutation("NaN examples that spread", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "LONGEST", math.inf)
    for kind in (uses.OuterUse, uses.DirectUse):
        patch.setattr(kind, "silence", lambda self, units: None)


@mutation("views that are clipped one by one", REPLAY, multiplicity=Multiplicity(3))
def _(patch: pytest.MonkeyPatch) -> None:
    _row_by_row(patch)


@mutation("people who are clipped row by row", REPLAY, unit="person")
def _(patch: pytest.MonkeyPatch) -> None:
    _row_by_row(patch)


def _row_by_row(patch: pytest.MonkeyPatch) -> None:
    right = sums.clipped_sum
    patch.setattr(sums, "clipped_sum", lambda *args, **given: right(*args, **given | {"rows_per_unit": 1}))


@mutation("every example twice", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = sums.clipped_sum

    def twice(*args: Any, **settings: Any) -> Any:
        found = right(*args, **settings)
        return replace(found, grads={n: 2 * v for n, v in found.grads.items()})

    patch.setattr(sums, "clipped_sum", twice)
