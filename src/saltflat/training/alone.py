"""One unit's clipped gradient as a function of that unit and the weights alone: what the exact tier adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from saltflat.engine.batch import LossFunction
from saltflat.engine.clipped_sum import ClippedSum, clipped_sum
from saltflat.engine.frame import Frame

PREFIX = "model."


class _Anew(nn.Module):
    """A model of which the engine remembers nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def clipped_alone(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Tensor,
    clip_norm: float,
    *,
    displacements: Sequence[Mapping[str, Tensor]] | None = None,
    frame: Frame | None = None,
    **settings: Any,
) -> ClippedSum:
    """`clipped_sum` of one unit, by an engine that has seen no other.

    What the engine learns about a model on one batch (whether an operation escapes its tape, how large a
    micro-batch fits) decides how the next one is added up. In the last bits, one unit could so change what
    others contribute. Here every unit meets an engine without memories.

    >>> import torch
    >>> model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none")
    >>> one = clipped_alone(model, loss, torch.ones(1, 3), torch.zeros(1, dtype=torch.long), 0.5)
    >>> sorted(one.grads)
    ['bias', 'weight']
    """
    core: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile hides the operations
    if displacements is not None:
        displacements = [_prefixed(moved) for moved in displacements]
    if frame is not None:
        frame = Frame(
            None if frame.shift is None else _prefixed(frame.shift),
            None if frame.scale is None else _prefixed(frame.scale),
        )
    found = clipped_sum(
        _Anew(core), loss_fn, inputs, targets, clip_norm,
        displacements=displacements, frame=frame, check=False, **settings,
    )  # fmt: skip
    named = {name.removeprefix(PREFIX): value for name, value in found.grads.items()}
    return replace(found, grads=named, rules={})


def _prefixed(vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {PREFIX + name: part for name, part in vectors.items()}
