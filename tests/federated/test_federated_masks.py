"""Masks: fixed before the round, noise on them only, and the energy of the noise falls with them."""

from __future__ import annotations

import pytest
import torch
from federated_helpers import COUNT, one_release, plan_of, session_of, small_clients, small_net, small_rows
from torch import nn

import saltflat as sf
from saltflat.data.people import Rows
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.federated.masks import chosen, public_generator, release_mask
from saltflat.federated.server import Server
from saltflat.plan import ReleaseMask
from saltflat.training.step import Loop, Released


def wide_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3000), nn.Tanh(), nn.Linear(3000, 3))


SILENT = {"drop": lambda number, client: True}  # nobody answers: what is left is noise


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("method", ["fed-smp-randk", "fed-smp-topk", "dp-fedsam-topk"])
def test_the_energy_of_the_noise_falls_by_the_ratio(method: str, ratio: float) -> None:
    """Nobody answers, so the release is noise. Its energy is χ²: known to √(2/k), and six of these are allowed."""
    dense, masked = _noise("dp-fedavg"), _noise(method, ratio=ratio)
    errors = (2 / len(dense) + 2 / (ratio * len(dense))) ** 0.5
    assert float(masked.square().sum() / dense.square().sum()) == pytest.approx(ratio, rel=6 * errors)


def _noise(method: str, **changes: float) -> torch.Tensor:
    """The second release of a run in which nobody answers; the first one of a top-k plan is dense."""
    plan = plan_of(method, rounds=2, **changes)
    session = session_of(plan, wide_net(), **SILENT)
    loop = session.loop
    loop.private_step(1, plan.phases[0])
    released = loop.asked.query(loop, 2, plan.phases[0])
    return torch.cat([part.double().flatten() for part in released.gradient.values()])


@pytest.mark.parametrize("method", ["fed-smp-randk", "fed-smp-topk"])
def test_noise_on_the_mask_has_the_planned_size_and_outside_there_is_none(method: str) -> None:
    noise = _noise(method)
    inside = noise[noise != 0]
    assert len(inside) == round(0.4 * len(noise))
    planned = 1.0 * 0.3 / (0.5 * COUNT)
    assert float(inside.std()) == pytest.approx(planned, rel=0.03)


def test_own_masks_leave_noise_on_all_coordinates() -> None:
    assert bool((_noise("lus") != 0).all())


def test_the_mask_does_not_depend_on_this_rounds_answers() -> None:
    """The same history and other clients: the same coordinates are released."""
    masks = []
    for scale in (1.0, 100.0):
        rows = small_rows()
        clients = sf.federated.partition(Examples(rows.inputs * scale, rows.targets, num_classes=3), COUNT)
        plan = plan_of("fed-smp-topk", rounds=3)
        session = session_of(plan, small_net(), clients, seed=1)
        loop = session.loop
        loop.use(1, plan.phases[0], _release(loop))
        masks.append(loop.asked.query(loop, 2, plan.phases[0]).gradient)
    places = [torch.cat([(p != 0).flatten() for p in one.values()]) for one in masks]
    assert torch.equal(places[0], places[1])
    assert 0 < int(places[0].sum()) < len(places[0])
    assert not all(torch.equal(a, b) for a, b in zip(masks[0].values(), masks[1].values()))


def _release(loop: Loop) -> Released:
    generator = torch.Generator().manual_seed(4)
    return Released({n: torch.randn(w.shape, generator=generator) for n, w in loop.weights.items()})


def test_a_release_mask_keeps_what_was_pulled_and_tries_others() -> None:
    total, count = torch.zeros(1000), torch.full((1000,), 9.0)
    total[:50] = 30.0  # a steady pull
    total[50:] = torch.randn(950, generator=torch.Generator().manual_seed(0))
    mask = release_mask(ReleaseMask(0.1, explore=0.2), total, count, torch.Generator().manual_seed(1))
    assert int(mask.sum()) == 100
    assert bool(mask[:50].all())
    best = set(chosen(total.abs(), 80, torch.Generator()).nonzero().flatten().tolist())
    assert best <= set(mask.nonzero().flatten().tolist())


def test_a_coordinate_does_not_stay_for_having_been_there() -> None:
    """Pure noise that was summed nine times marks no higher than noise that was summed once."""
    generator = torch.Generator().manual_seed(2)
    count = torch.where(torch.arange(4000) < 2000, 9.0, 1.0)
    total = torch.randn(4000, generator=generator) * count.sqrt()
    mask = release_mask(ReleaseMask(0.25, explore=0.0), total, count, generator)
    assert 400 < int(mask[:2000].sum()) < 600


def test_public_randomness_follows_from_plan_and_round() -> None:
    plan, other = plan_of(), plan_of(rounds=5)
    draws = [
        torch.rand(3, generator=public_generator(p, n)).tolist()
        for p, n in ((plan, 1), (plan, 1), (plan, 2), (other, 1))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]


def test_rand_k_scales_before_the_clip() -> None:
    """Clipped updates stay within the clip norm, scaled or not; unclipped ones are d/k times as long."""
    short = {"noise_multiplier": 0.0, "clip_norm": 1e6, "rate": 1.0, "ratio": 0.5}
    model, clients = small_net(), small_clients()
    plain, scaled = (
        one_release(plan_of("fed-smp-randk", scaled=s, **short), model, clients, seed=1, together=1)
        for s in (False, True)
    )
    # the plans have other hashes, so other masks: compare where both released
    both = (plain != 0) & (scaled != 0)
    assert torch.allclose(scaled[both], 2 * plain[both], rtol=1e-4)
    tight = one_release(plan_of("fed-smp-randk", **short | {"clip_norm": 0.01}), model, clients, seed=1)
    assert float(tight.norm()) <= 0.01 * (1 + 1e-6)


def test_masks_from_public_rows_need_public_rows() -> None:
    plan = plan_of("fed-smp-topk", public=True)
    clients = small_clients()
    with pytest.raises(InputError, match="public is missing"):
        sf.federate(small_net(), clients, plan, progress=False)
    with pytest.raises(InputError, match="provenance"):
        sf.federate(small_net(), clients, plan, public=small_rows(), progress=False)
    rows = small_rows(40, seed=5)
    public = Examples(rows.inputs, rows.targets, "public")
    run = sf.federate(small_net(), clients, plan, public=public, progress=False)
    assert run.certificate.is_private


def test_a_public_mask_is_where_public_updates_are_large() -> None:
    plan = plan_of("fed-smp-topk", public=True, ratio=0.2)
    rows = small_rows(64, seed=5)
    session = session_of(plan, public=Examples(rows.inputs, rows.targets, "public"))
    loop = session.loop
    server = loop.asked
    assert isinstance(server, Server)
    assert isinstance(server.public, Rows)
    released = server.query(loop, 1, plan.phases[0])
    flat = torch.cat([part.flatten() for part in released.gradient.values()])
    assert int((flat != 0).sum()) == round(0.2 * flat.numel())
