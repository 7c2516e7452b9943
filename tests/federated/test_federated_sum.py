"""The server's sum: whatever clients send, one of them moves it by at most the clip norm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from federated_helpers import COUNT, one_release, plan_of, session_of, small_clients, small_net, weights_of
from torch import Tensor

from saltflat.federated.aggregate import Form, Sum, sum_of_clipped, usable
from saltflat.federated.protocol import Answer
from saltflat.mechanism.exact import Grid

CLIP = 0.7
SHAPES = {"a": torch.zeros(3, 4), "b": torch.zeros(5), "c": torch.zeros(2, 2)}
FORM = Form.of(SHAPES)


def update(seed: int, size: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: size * torch.randn(shape.shape, generator=generator) for name, shape in SHAPES.items()}


HOSTILE: dict[str, Any] = {
    "ordinary": update(9),
    "enormous": update(9, 1e30),
    "at the end of float32": {n: torch.full_like(t, torch.finfo(t.dtype).max) for n, t in SHAPES.items()},
    "tiny": update(9, 1e-30),
    "zero": SHAPES,
    "NaN": {**update(9), "b": torch.full((5,), math.nan)},
    "one NaN": {**update(9), "b": torch.tensor([0.0, 0.0, math.nan, 0.0, 0.0])},
    "infinite": {**update(9), "a": torch.full((3, 4), math.inf)},
    "both infinities": {**update(9), "b": torch.tensor([math.inf, -math.inf, 0.0, 0.0, 0.0])},
    "wrong shape": {**update(9), "b": torch.ones(6)},
    "transposed": {**update(9), "a": torch.ones(4, 3)},
    "scalar": {**update(9), "a": torch.tensor(1.0)},
    "float64": {n: t.double() for n, t in update(9).items()},
    "whole numbers": {n: torch.ones_like(t, dtype=torch.int64) for n, t in SHAPES.items()},
    "complex": {n: torch.ones_like(t, dtype=torch.complex64) for n, t in SHAPES.items()},
    "sparse": {**update(9), "a": torch.eye(3, 4).to_sparse()},
    "without storage": {**update(9), "a": torch.zeros(3, 4, device="meta")},
    "a tensor too few": {"a": torch.ones(3, 4), "b": torch.ones(5)},
    "a tensor too many": {**update(9), "d": torch.ones(1)},
    "no tensors": {"a": 1.0, "b": "text", "c": None},
    "no table": [1, 2, 3],
    "nothing": None,
}


def total(answers: list[Answer], cohort: list[int], **options: Any) -> Sum:
    return sum_of_clipped(answers, cohort, FORM, CLIP, **options)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("beside", ["nobody", "others"])
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(kind: str, beside: str) -> None:
    """Fails without the clip, without the check for NaN, and with a clip by tensors (all tried): the public code of
    DP-FedSAM clips so, and three tensors move its sum by √3 of the clip norm. An audit catches that too.
    """
    others = [Answer(i, update(i, 3.0 if i % 2 else 0.1)) for i in range(5)] if beside == "others" else []
    before = total(others, list(range(6))).total
    after = total([*others, Answer(5, HOSTILE[kind])], list(range(6))).total
    assert bool(after.isfinite().all())
    assert float((after - before).norm()) <= CLIP * (1 + 1e-9)


def test_an_enormous_update_still_points_its_way() -> None:
    whole = FORM.flat(update(9))
    found = total([Answer(0, update(9, 1e30))], [0]).total
    assert float(found.norm()) == pytest.approx(CLIP)
    assert float(found @ whole / whole.norm()) == pytest.approx(CLIP, rel=1e-5)


def test_the_first_answer_of_a_client_counts_and_strangers_do_not() -> None:
    sent = [
        Answer(1, update(1)),
        Answer(1, update(2)),
        Answer(7, update(3)),
        Answer(0, None),
        Answer(0, update(4)),
    ]
    found = total(sent, [0, 1, 2])
    assert torch.equal(found.total, total([Answer(1, update(1))], [1]).total)
    assert len(list(usable(sent, [0, 1, 2], FORM))) == 1


def test_a_missing_reply_is_a_zero() -> None:
    """Neither the divisor nor the noise depends on who answered."""
    plan = plan_of(rate=1.0)
    model, clients = small_net(), small_clients()
    all_in = one_release(plan, model, clients, seed=5)
    silent = one_release(plan, model, clients, seed=5, drop=lambda number, client: client < 20)
    nobody = one_release(plan, model, clients, seed=5, drop=lambda number, client: True)
    deviation = plan.phases[0].sigma * plan.phases[0].clip_norm / COUNT
    assert 0.5 * deviation < float(nobody.std()) < 1.5 * deviation  # the same noise, and nothing else
    total_of_all, total_of_some = ((one - nobody) * COUNT for one in (all_in, silent))
    assert float(total_of_some.norm()) <= 10 * plan.phases[0].clip_norm * (1 + 1e-5)
    assert float((total_of_all - total_of_some).norm()) <= 20 * plan.phases[0].clip_norm * (1 + 1e-5)
    assert float(total_of_some.norm()) > 0


def test_one_client_more_moves_the_release_by_the_clip_norm_over_a_constant() -> None:
    """Replay: same cohort, same noise, with and without one client, through the whole server."""
    plan = plan_of(
        rate=1.0, clip_norm=0.05, local_learning_rate=1.0, local_batch_size=8
    )  # a batch holds all rows
    model = small_net()
    clients = small_clients()
    with_all = one_release(plan, model, clients, seed=3, together=1)
    for silent in (0, 11, COUNT - 1):
        dropped = {"drop": lambda number, client, silent=silent: client == silent}
        without = one_release(plan, model, clients, seed=3, together=1, **dropped)
        assert float((with_all - without).norm()) * COUNT == pytest.approx(0.05, rel=1e-3)


def test_hostile_clients_cannot_stop_or_spoil_a_run() -> None:
    sent = list(HOSTILE.values())

    def tamper(number: int, client: int, update: dict[str, Tensor]) -> list[Any]:
        if client % 3 == 0:
            return [sent[(number + client) % len(sent)], update]
        return [{name: part * 1e20 for name, part in update.items()}] if client % 3 == 1 else [update, update]

    plan = plan_of(rounds=6)
    model = small_net()
    before = weights_of(model)
    session = session_of(plan, model, tamper=tamper)
    for _ in session.loop:
        pass
    assert bool(weights_of(model).isfinite().all())
    assert float((weights_of(model) - before).norm()) < 6 * 0.3 * 2 + 6 * 0.3 * 10
    assert session.ledger.releases == 6


def test_the_exact_tier_adds_integers() -> None:
    grid = Grid.for_clip_norm(CLIP)
    found = total([Answer(i, update(i, 5.0)) for i in range(4)], list(range(4)), grid=grid)
    plain = total([Answer(i, update(i, 5.0)) for i in range(4)], list(range(4)))
    assert found.total.dtype == torch.int64
    assert float((found.total.double() * grid.step - plain.total).norm()) < 1e-5
    one = total([Answer(0, update(0, 5.0))], [0], grid=grid).total
    assert int(one.square().sum()) <= grid.squared_radius


def test_only_the_mask_counts() -> None:
    """What a hostile client sends outside the mask is not even measured."""
    mask = torch.zeros(FORM.size, dtype=torch.bool)
    mask[:4] = True
    inside = FORM.split(torch.where(mask, FORM.flat(update(1)), torch.zeros(FORM.size, dtype=torch.float64)))
    inside = {name: part.float() for name, part in inside.items()}
    found, alone = (total([Answer(0, sent)], [0], mask=mask).total for sent in (update(1), inside))
    assert len(found) == 4
    assert torch.allclose(found, alone)


def test_watched_norms_are_those_before_the_clip() -> None:
    seen: list[float] = []
    total([Answer(0, update(1, 3.0))], [0], watch=seen.append)
    assert seen == [pytest.approx(float(FORM.flat(update(1, 3.0)).norm()))]
