"""Noise that clients share: enough with the tolerated number of answers, nothing released with fewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from federated_helpers import COUNT, plan_of, session_of, small_clients, small_net
from torch import nn

import saltflat as sf
from saltflat.errors import InputError
from saltflat.federated.local import finished
from saltflat.federated.protocol import task_for
from saltflat.record.agreement import check_entries
from saltflat.record.ledger import Ledger, LedgerError

SURVIVORS = 12


def still_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 8000)


def released(answers: int, **changes: Any) -> torch.Tensor | None:
    """The sum of a round with so many answers, of clients that learn next to nothing."""
    plan = plan_of(survivors=SURVIVORS, rate=1.0, local_learning_rate=1e-9, **changes)
    session = session_of(plan, still_net(), together=1, drop=lambda number, client: client >= answers)
    found = session.loop.asked.query(session.loop, 1, plan.phases[0])
    if found is None:
        return None
    return COUNT * torch.cat([part.double().flatten() for part in found.gradient.values()])


@pytest.mark.parametrize("answers", [SURVIVORS, 20, COUNT])
def test_the_noise_is_planned_for_the_survivors(answers: int) -> None:
    """40,000 coordinates give the deviation to 0.4 %. With more answers there is more noise, never less."""
    total = released(answers)
    assert total is not None
    planned = 1.0 * 0.3
    assert float(total.std()) == pytest.approx(planned * (answers / SURVIVORS) ** 0.5, rel=0.02)


def test_with_fewer_answers_nothing_is_released_and_the_ledger_says_so(tmp_path: Path) -> None:
    """Round 2 fails. It stays counted, the model stays as it was, and the run goes on and verifies."""
    model = small_net()
    plan = plan_of(survivors=8, rate=1.0, rounds=4)
    session = session_of(
        plan, model, out=tmp_path / "run", drop=lambda number, client: number == 2 and client >= 7
    )
    loop = session.loop
    steps = iter(loop)
    next(steps)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    next(steps)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    list(steps)
    certificate = session.close(finished=True)
    session.let_go()
    given_up = Ledger.read(tmp_path / "run" / "ledger.jsonl").of_kind("aborted")
    assert [(e["step"], e["answers"], e["needed"]) for e in given_up] == [(2, 7, 8)]
    assert certificate.data["recorded_releases"] == 4
    assert sf.verify(tmp_path / "run").passed


def test_a_run_with_an_aborted_round_can_go_on(tmp_path: Path) -> None:
    plan = plan_of(survivors=8, rate=1.0, rounds=6)

    def missing(number: int, client: int) -> bool:
        return number in (2, 3) and client >= 5

    session = session_of(plan, out=tmp_path / "run", drop=missing)
    steps = iter(session.loop)
    for _ in range(4):
        next(steps)
    weights = {name: value.clone() for name, value in session.loop.model.state_dict().items()}
    session.let_go()  # as if the process had ended here
    again = session_of(plan, resume=tmp_path / "run", drop=missing)
    assert again.loop.position == 4
    for name, value in again.loop.model.state_dict().items():
        assert torch.equal(value, weights[name])
    list(again.loop)
    again.close(finished=True)
    again.let_go()
    assert sf.verify(tmp_path / "run").passed


def test_an_entry_of_an_aborted_round_cannot_be_made_up() -> None:
    plan = plan_of(survivors=8, rate=1.0, rounds=2)
    for wrong in ({"answers": 8}, {"needed": 9}, {"step": 2}, {"answers": -1}):
        ledger = Ledger()
        ledger.open_run(plan_hash=plan.hash, randomness="fast", seeded=False, planned_releases=2)
        ledger.record_release(
            step=1,
            phase=0,
            queries=(1.0,),
            sampling={"sampler": "public-cohorts", "rate": 1.0},
            clip_norm=0.3,
        )
        ledger.abort_release(**({"step": 1, "answers": 3, "needed": 8} | wrong))
        with pytest.raises(LedgerError, match="aborted"):
            check_entries(ledger, plan)


def test_a_share_is_clipped_before_its_noise_and_a_failed_client_sends_noise_only() -> None:
    plan = plan_of(survivors=SURVIVORS, noise_multiplier=1e-6)
    weights = {"w": torch.zeros(50), "b": torch.zeros(20)}
    task = task_for(plan, plan.phases[0], 1, weights, 0.3, None)
    assert task.noise == pytest.approx(1e-6 * 0.3 / SURVIVORS**0.5)
    source = torch.Generator().manual_seed(0)
    long = finished({"w": torch.full((50,), 1e10), "b": torch.full((20,), -1e10)}, task, source)
    assert float(torch.cat(list(long.values())).norm()) == pytest.approx(0.3, rel=1e-4)
    broken = finished({"w": torch.full((50,), torch.nan), "b": torch.zeros(20)}, task, source)
    assert float(torch.cat(list(broken.values())).norm()) < 1e-5


def test_the_certificate_says_against_whom_it_holds() -> None:
    clients = small_clients()
    central = sf.federate(small_net(), clients, plan_of(), progress=False).certificate
    shared = sf.federate(small_net(), clients, plan_of(survivors=3, rate=0.9), progress=False).certificate
    assert "not the server" in str(central)
    assert "not the server" in central.page()
    assert "and the server, which sees sums of at least 3 answers" in str(shared)
    assert shared.data["sampler"] == {"kind": "public-cohorts", "rate": 1.0}


def test_the_exact_tier_does_not_add_up_shares() -> None:
    with pytest.raises(InputError, match="shares add up"):
        sf.federate(small_net(), small_clients(), plan_of(survivors=3), randomness="exact", progress=False)
