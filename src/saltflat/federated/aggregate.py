"""The server's sum of the clients' answers: whatever they send, one client moves it by at most the clip norm.

Nothing here depends on how many answered: a missing reply is a zero. Nothing is raised because of an answer, and
how many were unusable is not counted anywhere, but where clients share the noise and cohorts are public.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saltflat.engine.clipping import ClippingFunction, flat
from saltflat.federated.protocol import Answer, Vectors
from saltflat.mechanism.exact import Grid

NAME = "update"
Watch = Callable[[float], None]


@dataclass(frozen=True)
class Form:
    """What an update must look like: names, shapes and types of the trainable weights, in one order.

    >>> form = Form.of({"w": torch.zeros(2, 2), "b": torch.zeros(1)})
    >>> form.size, form.split(torch.arange(5.0))["b"]
    (5, tensor([4.]))
    """

    shapes: dict[str, torch.Size]
    types: dict[str, torch.dtype]

    @staticmethod
    def of(weights: Vectors) -> Form:
        """The form of updates of these weights."""
        return Form({n: w.shape for n, w in weights.items()}, {n: w.dtype for n, w in weights.items()})

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return sum(shape.numel() for shape in self.shapes.values())

    def flat(self, vectors: Vectors) -> Tensor:
        """All coordinates in one vector, in float64, on the CPU."""
        return torch.cat([vectors[name].detach().cpu().double().flatten() for name in self.shapes])

    def split(self, whole: Tensor) -> dict[str, Tensor]:
        """The vector as named tensors again."""
        parts = whole.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts)}

    def read(self, update: Any) -> Tensor | None:
        """An update as one vector; None if it has not this form, or holds what is not a finite number."""
        if not isinstance(update, Mapping) or update.keys() != self.shapes.keys():
            return None
        for name, shape in self.shapes.items():
            part = update[name]
            plain = isinstance(part, Tensor) and part.layout is torch.strided and part.device.type != "meta"
            if not plain or part.shape != shape or part.dtype != self.types[name]:
                return None
        whole = self.flat(update)
        return whole if bool(whole.isfinite().all()) else None


@dataclass(frozen=True)
class Sum:
    """Σ of the clipped updates over the mask's coordinates, Σ (b − ½) with b = [norm ≤ clip norm]; both private.

    ``answers`` counts usable ones. Only shared noise may look at it.
    """

    total: Tensor
    short: float
    answers: int


def usable(answers: Iterable[Answer], cohort: Collection[int], form: Form) -> Iterable[Tensor]:
    """One vector for each client of the cohort that sent a sound answer; of several, the first."""
    waiting = set(cohort)
    for answer in answers:
        if answer.client not in waiting:
            continue  # not asked, or has answered before
        waiting.discard(answer.client)
        whole = form.read(answer.update)
        if whole is not None:
            yield whole


def sum_of_clipped(
    answers: Iterable[Answer],
    cohort: Collection[int],
    form: Form,
    clip_norm: float,
    *,
    mask: Tensor | None = None,
    clipping: ClippingFunction = flat,
    grid: Grid | None = None,
    watch: Watch | None = None,
) -> Sum:
    """The sum of the answers, each taken as *one* vector over the mask and clipped to ``clip_norm``.

    Guarantees: adding, removing or replacing the answers of one client moves the sum by at most the clip norm (twice
    that for replacing), for any answer: NaN, infinite, of another shape or type, enormous, repeated. In the
    exact tier ``grid`` makes this hold in integers. ``watch`` sees each norm before the clip: a diagnostic that no
    ε covers.

    >>> form = Form.of({"w": torch.zeros(2)})
    >>> sent = [Answer(0, {"w": torch.tensor([3.0, 4.0])}), Answer(1, {"w": torch.tensor([torch.nan, 0.0])})]
    >>> sum_of_clipped(sent, [0, 1], form, 1.0).total
    tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    size = form.size if mask is None else int(mask.sum())
    total = torch.zeros(size, dtype=torch.float64 if grid is None else torch.int64)
    short, count = 0.0, 0
    for whole in usable(answers, cohort, form):
        vector = whole if mask is None else whole[mask]
        squared = vector.dot(vector)
        if not bool(squared.isfinite()):  # numbers whose squares are too large for any float
            continue
        if watch is not None:
            watch(float(squared) ** 0.5)
        factor = clipping({NAME: squared[None]}, clip_norm)[NAME][0]
        clipped = vector if clip_norm == float("inf") else vector * factor
        total += clipped if grid is None else grid.rounded({NAME: clipped})[NAME]
        short += 0.5 if float(squared) ** 0.5 <= clip_norm else -0.5
        count += 1
    return Sum(total, short, count)


def sum_of_shares(
    answers: Iterable[Answer], cohort: Collection[int], form: Form, *, mask: Tensor | None = None
) -> Sum:
    """The sum of answers that carry their own noise: what secure aggregation gives the server, and all it gives.

    Here it stands for that protocol. The server cannot clip what it cannot see: each client clips its own update,
    and is trusted to.
    """
    total = torch.zeros(form.size if mask is None else int(mask.sum()), dtype=torch.float64)
    count = 0
    for whole in usable(answers, cohort, form):
        total += whole if mask is None else whole[mask]
        count += 1
    return Sum(total, 0.0, count)
