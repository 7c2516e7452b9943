"""Mutations of the sampling, of the weights, and of the record."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from audit_mutations import LEDGER, REPLAY, SAMPLER, mutation
from torch import Tensor

from saltflat.plan import FreshQuery, PreviousRelease
from saltflat.record.ledger import Ledger
from saltflat.training import build, step

# the package gives the module's name to a function
accountant = importlib.import_module("saltflat.accounting.epsilon")


# --- sampling -------------------------------------------------------------------------------------------


def drawn_instead(patch: pytest.MonkeyPatch, draw: Callable[[Any, int, Any], Tensor]) -> None:
    patch.setattr(build, "draw", draw)


@mutation("a shuffle instead of Poisson sampling", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    waiting: list[Tensor] = []

    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        if not waiting:
            waiting.extend(torch.randperm(rows).split(max(1, round(sampling.rate * rows))))
        return waiting.pop()

    drawn_instead(patch, draw)


@mutation("batches of a fixed size", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    drawn_instead(patch, lambda s, rows, source: torch.randperm(rows)[: round(s.rate * rows)])


@mutation("sampling with replacement", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    drawn_instead(patch, lambda s, rows, source: torch.randint(0, rows, (round(s.rate * rows),)))


@mutation("one example in every batch", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.draw
    drawn_instead(
        patch, lambda s, rows, source: torch.cat([right(s, rows, source), torch.tensor([5])]).unique()
    )


@mutation("one example in no batch", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.draw

    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        batch = right(sampling, rows, source)
        return batch[batch != 3]

    drawn_instead(patch, draw)


@mutation("every batch used twice", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right, kept = build.draw, []

    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        if kept:
            return kept.pop()
        kept.append(right(sampling, rows, source))
        return kept[0]

    drawn_instead(patch, draw)


@mutation("two batches for one release", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.draw
    drawn_instead(patch, lambda *args: torch.cat([right(*args), right(*args)]).unique())


@mutation("another batch for the second query", SAMPLER, ascent=FreshQuery(0.05))
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.Loop.sum_of_clipped
    asked: dict[int, int] = {}

    def summed(self: Any, batch: Tensor, clip: float) -> Any:
        asked[id(self)] = asked.get(id(self), 0) + 1
        return right(self, batch if asked[id(self)] % 2 else self.mechanism.draw_batch(), clip)

    patch.setattr(step.Loop, "sum_of_clipped", summed)


@mutation("neighbours that join together", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        pairs = torch.rand((rows + 1) // 2) < sampling.rate
        return pairs.repeat_interleave(2)[:rows].nonzero().squeeze(1)

    drawn_instead(patch, draw)


@mutation("a rate of one and a half times the declared one", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    drawn_instead(patch, lambda s, rows, source: (torch.rand(rows) < 1.5 * s.rate).nonzero().squeeze(1))


@mutation("a rate that follows the number of rows", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        chosen = torch.rand(rows, dtype=torch.float64, generator=source) < sampling.batch_size / rows
        return chosen.nonzero().squeeze(1)

    drawn_instead(patch, draw)


# --- weights and records --------------------------------------------------------------------------------


@mutation("displaced weights that are kept", LEDGER, ascent=PreviousRelease(0.05))
def _(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def displaced(weights: Any, displacement: Any) -> Iterator[None]:
        with torch.no_grad():
            for name, weight in weights.items():
                if displacement is not None:
                    weight.add_(displacement[name])
        yield

    patch.setattr(step, "displaced", displaced)


def recorded_instead(
    patch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    right = Ledger.record_release

    def record(self: Ledger, **facts: Any) -> None:
        changed = change(facts)
        if changed is not None:
            right(self, **changed)

    patch.setattr(Ledger, "record_release", record)


@mutation("twice the noise in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: facts | {"queries": tuple(2 * q for q in facts["queries"])})


@mutation("half the noise in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: facts | {"queries": tuple(q / 2 for q in facts["queries"])})


@mutation("half the rate in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(
        patch, lambda facts: facts | {"sampling": facts["sampling"] | {"rate": facts["sampling"]["rate"] / 2}}
    )


@mutation("another tier in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: facts | {"randomness": "exact"})


@mutation("a release that is not recorded", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: None if facts["step"] == 2 else facts)


@mutation("a record that comes late", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    right, waiting = Ledger.record_release, []

    def record(self: Ledger, **facts: Any) -> None:
        for one in waiting:
            right(self, **one)
        waiting[:] = [facts]

    patch.setattr(Ledger, "record_release", record)


@mutation("one release more than planned", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.Loop.private_step

    def longer(self: Any, number: int, phase: Any) -> None:
        right(self, number, phase)
        if number == 1:
            self.mechanism.recorded = 0  # it would refuse to record a step twice
            right(self, number, phase)

    patch.setattr(step.Loop, "private_step", longer)


@mutation("an accountant that halves", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = accountant._epsilon
    patch.setattr(accountant, "_epsilon", lambda *args: right(*args) / 2)
