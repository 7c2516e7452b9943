"""The score of a trial: how many answers are right, on public rows exactly, on private ones with noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.people import People, units_of
from saltflat.data.source import Examples, Source, as_source
from saltflat.engine.calling import call_model
from saltflat.errors import InputError, check_share
from saltflat.mechanism.exact import Grid
from saltflat.mechanism.noise import noised_count
from saltflat.mechanism.randomness import Randomness
from saltflat.mechanism.sampling import draw
from saltflat.mechanism.streams import CryptographicStream
from saltflat.plan import Poisson
from saltflat.training.evaluate import BATCH, evaluating
from saltflat.training.losses import logits_of


def held_out(
    data: Any, fraction: float, groups: Any, stream: CryptographicStream
) -> tuple[Examples, Examples]:
    """Training rows and held-out rows: each unit is held out by a coin of its own.

    Guarantees: the side of a unit does not depend on the other units, nor on how many there are. All rows of
    a person are on one side.
    """
    check_share("validation_fraction", fraction, cure="0.1 is usual.")
    source = as_source(data)
    if not isinstance(source, Examples):
        raise InputError(
            "data", data, "rows in memory, so that some can be held out",
            cure="Or bring the rows to score on: validation=.",
        )  # fmt: skip
    ids = groups if groups is not None else source.groups
    if ids is None:
        count, unit_of = len(source), torch.arange(len(source))
    else:
        people, unit_of = torch.as_tensor(ids).unique(return_inverse=True)
        count = len(people)
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[draw(Poisson(1, fraction), count, stream)] = True  # the rate itself: no count goes into it
    held = chosen[unit_of]
    owned = replace(source, groups=None if ids is None else torch.as_tensor(ids))
    return owned.subset((~held).nonzero().flatten()), owned.subset(held.nonzero().flatten())


def tells_classes(logits: Tensor, targets: Tensor) -> bool:
    """Whether there are right answers: whole numbers as targets, and an output for each class."""
    return not targets.is_floating_point() and logits.dim() == 2 and logits.shape[1] > 1


@torch.no_grad()
def right_answers(model: nn.Module, source: Source, device: torch.device, *, at_once: int = BATCH) -> Tensor:
    """For every row whether the model finds its class, 1 or 0; for a person, the share of their rows.

    Private where the rows are.
    """
    found = [torch.zeros(0, dtype=torch.float64)]
    with evaluating(model):
        for some in torch.arange(len(source)).split(at_once) if len(source) else ():
            rows = units_of(source, some, device)
            logits = logits_of(call_model(model, rows.inputs))
            if not tells_classes(logits, rows.targets):
                raise InputError(
                    "targets", str(rows.targets.dtype), "class labels, and a model with an output for each class",
                    problem="cannot be scored by right answers",
                )  # fmt: skip
            right = (logits.argmax(1) == rows.targets).double()
            if rows.weights is not None:
                right = (right * rows.weights).view(-1, rows.each).sum(1)
            found.append(right.cpu())
    return torch.cat(found)


def noised_score(
    model: nn.Module,
    rows: Examples,
    noise: float,
    randomness: Randomness,
    device: torch.device,
    *,
    by_person: bool,
) -> float:
    """The number of right answers among private rows, with noise of this standard deviation.

    A unit adds at most one: a row 0 or 1, a person the share of their rows that is right. Shares are rounded down
    to a grid and added up in integers.
    """
    shares = right_answers(model, People(rows, rows.groups) if by_person else rows, device)
    grid = Grid.for_clip_norm(1.0)
    return noised_count(int((shares / grid.step).floor().long().sum()), noise, randomness, grid)
