"""Made-up rows in the form of the data: shapes and types are taken from it, and no number.

Whole numbers must lie within the tables that a model looks them up in. How long those are is found by watching the
model look up zeros.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saltflat.data.source import map_tensors, tensors_in
from saltflat.engine.calling import call_model, untouched, without_compilation
from saltflat.training.losses import logits_of

ROWS = 4
FAILURES = (RuntimeError, IndexError, TypeError, ValueError, AssertionError, KeyError, AttributeError)


@dataclass
class Synthetic:
    """Random rows like ``inputs`` and ``targets``, of which only shapes, types and the device are looked at.

    Guarantee: two data sets of one form give the same rows, so nothing that follows from them tells of the data.

    >>> rows = Synthetic(nn.Linear(3, 2), torch.rand(9, 3), torch.zeros(9, dtype=torch.long))
    >>> rows.inputs_of(0).shape, bool(rows.targets_of(0, 2).max() <= 1)
    (torch.Size([4, 3]), True)
    """

    model: nn.Module
    inputs: Any
    targets: Tensor
    limits: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = map_tensors(lambda t: t[:1], self.inputs)
        self.targets = self.targets[:1]
        self.limits = looked_up(self.model, map_tensors(_zeros, self.inputs))

    def inputs_of(self, number: int) -> Any:
        """The inputs of one draw. Even draws of real numbers are normal, odd ones uniform like pixels."""
        generator, limits = torch.Generator().manual_seed(number), iter(self.limits)
        return map_tensors(lambda t: _drawn(t, next(limits), number, generator), self.inputs)

    def targets_of(self, number: int, classes: int) -> Tensor:
        """The targets of one draw: real numbers, or whole ones below ``classes``."""
        generator = torch.Generator().manual_seed(1_000 + number)
        like = self.targets
        if like.is_floating_point():
            drawn = torch.rand((ROWS, *like.shape[1:]), generator=generator, dtype=torch.float64)
            return drawn.to(like.device, like.dtype)
        return _drawn(like, classes, number, generator)

    def losses(self, loss_fn: Any, number: int) -> Tensor:
        """One loss a row of a draw; labels are made smaller where the loss does not take them."""
        outputs = call_model(self.model, self.inputs_of(number))
        classes = classes_of(outputs, self.targets)
        for fewer in dict.fromkeys((classes, min(classes, 2))):
            try:
                return loss_fn(outputs, self.targets_of(number, fewer))
            except FAILURES:
                continue
        return loss_fn(outputs, self.targets_of(number, 1))


def classes_of(outputs: Any, targets: Tensor) -> int:
    """How many classes the outputs tell apart, for targets of this form: 2 where that cannot be seen.

    >>> classes_of(torch.zeros(4, 7), torch.zeros(1)), classes_of(torch.zeros(4, 5, 9), torch.zeros(1, 5))
    (7, 9)
    """
    try:
        shape = tuple(logits_of(outputs).shape[1:])
    except FAILURES:
        return 2
    if shape and shape[:-1] == tuple(targets.shape[1:]):
        return max(int(shape[-1]), 1)  # one answer a token: the classes come last
    return int(shape[0]) if shape and shape[1:] == tuple(targets.shape[1:]) else 2


def looked_up(model: nn.Module, zeros: Any) -> list[int | None]:
    """For each tensor of an input, how many rows the shortest table has that it is looked up in; None for no table."""
    leaves = tensors_in(zeros)
    watch = _Tables({t.untyped_storage().data_ptr(): i for i, t in enumerate(leaves) if t.numel()})
    # should the model fail on zeros, what was seen until then stays seen
    with untouched(model), torch.no_grad(), without_compilation(model), suppress(*FAILURES), watch:
        call_model(model, zeros)
    return [watch.rows.get(i) for i in range(len(leaves))]


class _Tables(TorchFunctionMode):
    """Notes which inputs are numbers of rows in a table, and how long the table is."""

    def __init__(self, places: dict[int, int]) -> None:
        super().__init__()
        self.places = places
        self.rows: dict[int, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (F.embedding, F.embedding_bag):
            named = dict(zip(("input", "weight"), args)) | kwargs
            self._note(named["input"], len(named["weight"]))
        elif func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            self._note(args[1], len(args[0]) if args[0].dim() else 0)
        elif func in (torch.index_select, Tensor.index_select):
            named = dict(zip(("input", "dim", "index"), args)) | kwargs
            self._note(named["index"], named["input"].shape[named["dim"]])
        elif func is F.one_hot:
            named = dict(zip(("tensor", "num_classes"), args)) | kwargs
            self._note(named.get("tensor", named.get("input")), named.get("num_classes", -1))
        return func(*args, **kwargs)

    def _note(self, index: Any, rows: int) -> None:
        if not isinstance(index, Tensor) or index.dtype == torch.bool or rows <= 0 or not index.numel():
            return
        place = self.places.get(index.untyped_storage().data_ptr())
        if place is not None:
            self.rows[place] = min(rows, self.rows.get(place, rows))


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros((ROWS, *like.shape[1:]), dtype=like.dtype, device=like.device)


def _drawn(like: Tensor, limit: int | None, number: int, generator: torch.Generator) -> Tensor:
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point() or like.is_complex():
        how: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        real = torch.rand(shape, **how) if number % 2 else torch.randn(shape, **how)
        return real.to(like.device, like.dtype)
    if limit is not None:
        drawn = torch.randint(0, limit, shape, generator=generator)
    elif like.dtype == torch.uint8:
        drawn = torch.randint(0, 256, shape, generator=generator)
    else:  # a mask: mostly ones, and never a row of zeros
        drawn = (torch.rand(shape, generator=generator) < 0.8).long()
        if drawn.numel():
            drawn.view(ROWS, -1)[:, 0] = 1
    return drawn.to(like.device, like.dtype)
