"""Whole runs: what they come to, how they are recorded, how they go on after a crash, what they refuse."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from federated_helpers import COUNT, plan_of, session_of, small_clients, small_net, small_rows, weights_of
from torch import nn

import saltflat as sf
from core_helpers import stop_after
from saltflat.data.people import Rows
from saltflat.data.source import Examples
from saltflat.errors import InputError, PrivacyWarning, RefusedError
from saltflat.federated import Diagnostics, Simulation, Task, partition, read_diagnostics
from saltflat.federated.local import updates
from saltflat.federated.protocol import Answer, task_for
from saltflat.plan import NoAscent
from saltflat.record.ledger import Ledger
from saltflat.record.packed import packed, unpacked
from saltflat.training.losses import cross_entropy


def run_of(plan: Any, model: nn.Module | None = None, **settings: Any) -> sf.Run:
    settings = {"progress": False, "evaluate": small_rows(60, seed=9)} | settings
    return sf.federate(model or small_net(), small_clients(), plan, **settings)


# --- laws -------------------------------------------------------------------------------------------


def test_without_clip_and_noise_it_is_federated_averaging() -> None:
    """C = ∞, σ = 0, everyone in every round: w ← w + mean of the local changes, to rounding."""
    plan = plan_of(epsilon=float("inf"), clip_norm=1e9, rate=1.0, rounds=3, local_batch_size=10)
    model, by_hand = small_net(dtype=torch.float64), small_net(dtype=torch.float64)
    clients = small_clients(dtype=torch.float64)
    sf.federate(model, clients, plan, progress=False)
    for number in (1, 2, 3):
        weights = {name: p.detach().clone() for name, p in by_hand.named_parameters()}
        local = plan.federation.local
        task = Task(number, weights, local, NoAscent(), local.rate_in(number), 1.0)
        moves = [updates(by_hand, task, [clients.rows(i)], cross_entropy)[0] for i in range(COUNT)]
        with torch.no_grad():
            for name, p in by_hand.named_parameters():
                p.add_(sum(move[name] for move in moves) / COUNT)
    assert torch.allclose(weights_of(model), weights_of(by_hand), rtol=1e-10, atol=1e-12)


def test_a_radius_of_zero_is_plain_training_bit_for_bit() -> None:
    ends = []
    for method, settings in (("dp-fedavg", {}), ("dp-fedsam", {"rho": 0.0})):
        model = small_net()
        run_of(plan_of(method, **settings), model, seed=2)
        ends.append(weights_of(model))
    assert torch.equal(*ends)


def test_groups_of_clients_change_nothing_but_rounding() -> None:
    plan = plan_of("dp-fedsam", rate=1.0, local_batch_size=8, rounds=2, noise_multiplier=0.01)
    ends = []
    for together in (1, 7, 50):
        model = small_net(dtype=torch.float64)
        session = session_of(plan, model, small_clients(dtype=torch.float64), seed=4, together=together)
        list(session.loop)
        ends.append(weights_of(model))
    assert torch.allclose(ends[0], ends[1], atol=1e-10)
    assert torch.allclose(ends[0], ends[2], atol=1e-10)


def test_averages_and_server_optimizers_leave_the_ledger_as_it_is() -> None:
    entries = []
    for method in ("dp-fedavg", "dp-fedavg+swa", "dp-fedavg+ema+momentum", "dp-fedavg+adam"):
        session = session_of(plan_of(method, rounds=10))
        list(session.loop)
        links = {"hash", "previous", "plan_hash"}
        entries.append([{k: v for k, v in e.items() if k not in links} for e in session.ledger.entries])
        averaged = session.loop.average.average is not None
        assert averaged == ("swa" in method or "ema" in method)
    assert all(one == entries[0] for one in entries)


def test_rate_divisor_and_rounds_come_from_the_plan() -> None:
    """More clients than declared are said on the terminal, and stored nowhere."""
    plan = plan_of(clients=20, rate=0.5)
    with pytest.warns(PrivacyWarning, match="30 clients and the plan declares population=20"):
        run = sf.federate(small_net(), small_clients(), plan, progress=False)
    assert run.certificate.data["divisor"] == 10
    assert "30" not in json.dumps(run.certificate.data["population"])


@pytest.mark.parametrize("tier", ["fast", "secure", "exact"])
def test_it_learns_in_every_tier(tier: str) -> None:
    plan = plan_of(noise_multiplier=0.3, rounds=12, rate=0.9, clip_norm=1.0, local_epochs=3)
    run = run_of(plan, randomness=tier)
    assert run.accuracy > 0.7
    assert run.certificate.data["randomness"] == tier


def test_the_clip_norm_follows_a_quantile() -> None:
    from saltflat.plan import QuantileClipping

    plan = plan_of(clipping=QuantileClipping(0.5, 0.5, 0.5), rounds=6, clip_norm=50.0)
    session = session_of(plan)
    list(session.loop)
    norms = [e["clip_norm"] for e in session.ledger.entries if e["kind"] == "release"]
    assert norms[0] == 50.0
    assert norms[-1] < 20.0


# --- record and resuming ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dp-fedsam", "fed-smp-topk+ema", "fed-sai+adam"])
def test_a_run_folder_verifies_and_is_read_again(method: str, tmp_path: Path) -> None:
    run = run_of(plan_of(method, rounds=5), out=tmp_path / "run")
    found = sf.verify(tmp_path / "run")
    assert found.passed, str(found)
    data = run.certificate.data
    assert (data["unit"], data["population"], data["planned_releases"]) == ("client", COUNT, 5)
    again = sf.Run.load(tmp_path / "run", small_net(seed=7))
    assert torch.equal(weights_of(again.model), weights_of(run.model))
    assert sf.Plan.load(tmp_path / "run" / "plan.json") == run.plan


@pytest.mark.parametrize("method", ["dp-fedavg+momentum", "fed-smp-topk+swa", "fed-sai"])
@pytest.mark.parametrize("every", [0.0, 1e6])
def test_interrupted_and_resumed_equals_uninterrupted(method: str, every: float, tmp_path: Path) -> None:
    """A seeded run, stopped after round 3 of 6: bit for bit, also the masks that follow releases."""
    plan = plan_of(method, rounds=6)
    straight = run_of(plan, seed=5, out=tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        run_of(plan, seed=5, out=tmp_path / "cut", callbacks=[stop_after(3)], checkpoint_every=every)
    resumed = run_of(None, small_net(seed=8), resume=tmp_path / "cut")
    assert torch.equal(weights_of(resumed.model), weights_of(straight.model))
    assert resumed.accuracy == straight.accuracy
    if straight.average is not None:
        assert all(torch.equal(resumed.average[n], part) for n, part in straight.average.items())
    assert resumed.certificate.data["resumed"] == 1


def test_a_private_run_that_died_never_reports_less(tmp_path: Path) -> None:
    """It dies between the entry in the ledger and the release: the round is lost, and stays counted."""
    plan = plan_of(rounds=5)
    session = session_of(plan, out=tmp_path / "run")
    steps = iter(session.loop)
    next(steps)
    next(steps)
    session.loop.asked.engine.collect = lambda task, cohort: (_ for _ in ()).throw(
        OSError("the network is gone")
    )
    with pytest.raises(OSError, match="network"):
        next(steps)
    session.let_go()
    run = run_of(None, resume=tmp_path / "run")
    entries = Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
    assert [e["step"] for e in entries if e["kind"] == "release"] == [1, 2, 3, 4, 5]
    assert next(e for e in entries if e["kind"] == "resume")["lost"] == [3]
    assert run.epsilon == plan.epsilon
    assert sf.verify(tmp_path / "run").passed


def test_a_finished_run_is_given_back(tmp_path: Path) -> None:
    run = run_of(plan_of(rounds=2), out=tmp_path / "run")
    again = run_of(None, resume=tmp_path / "run")
    assert again.certificate == run.certificate


def test_an_account_pays_for_clients(tmp_path: Path) -> None:
    account = sf.Account.create(
        "clients", epsilon=3.0, delta=1e-2, unit="client", budgets=tmp_path / "budgets"
    )
    run_of(plan_of(rounds=2, noise_multiplier=8.0, rate=0.2), account=account)
    assert 0 < account.balance().share < 1
    other = sf.Account.create("rows", epsilon=3.0, delta=1e-2, budgets=tmp_path / "budgets")
    with pytest.raises(InputError, match="is another than the account's"):
        run_of(plan_of(rounds=2), account=other)


# --- the protocol -----------------------------------------------------------------------------------


def test_a_task_survives_any_transport() -> None:
    """Arrays and facts through safetensors and JSON, bit for bit: the client makes the same update of it.

    The update is the same to rounding. Arrays that were read lie elsewhere in memory, and sums over them may be
    taken in another order.
    """
    plan = plan_of("dp-fedsam+asam", local_weight_decay=0.01)
    model = small_net()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    mask = {name: torch.rand(p.shape) < 0.5 for name, p in weights.items()}
    task = task_for(plan, plan.phases[0], 3, weights, 0.3, mask)
    again = Task.read(*unpacked(bytes(packed(task.arrays(), task.facts()))))
    assert all(isinstance(v, bool | int | float | str) for v in task.facts().values())
    assert again.facts() == task.facts()
    assert again.arrays().keys() == task.arrays().keys()
    assert all(torch.equal(array, task.arrays()[name]) for name, array in again.arrays().items())
    rows = small_clients().rows(0)
    found = []
    for one in (task, again):
        torch.manual_seed(1)
        found.append(updates(model, one, [Rows(rows.inputs, rows.targets)], cross_entropy)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)
    assert all(torch.equal(mask[name], again.mask[name]) for name in mask)


@pytest.mark.parametrize("facts", [{}, {"saltflat_task": 1}, {"saltflat_task": "x"}, {"saltflat_task": 99}])
def test_what_is_no_task_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="task"):
        Task.read({}, facts)


def test_any_engine_will_do() -> None:
    """Answers out of order, double, from strangers and late, from an engine that knows nothing of simulations."""

    class Elsewhere:
        def __init__(self) -> None:
            self.near = Simulation(small_net(), small_clients(), cross_entropy)

        def __len__(self) -> int:
            return COUNT

        def collect(self, task: Task, cohort: Any) -> Any:
            told = Task.read(task.arrays(), json.loads(json.dumps(task.facts())))
            answers = list(self.near.collect(told, cohort))
            return [*reversed(answers), *answers, Answer(10_000, answers[0].update if answers else None)]

    run = sf.federate(small_net(), Elsewhere(), plan_of(rounds=3), progress=False)
    assert run.certificate.is_private


# --- refusals ---------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Keeps a float buffer that every pass changes, in place or by a new one."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.inner, self.in_place = small_net(), in_place
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen.add_(1) if self.in_place else self.seen + 1
        return self.inner(inputs)


def with_buffer(persistent: bool) -> nn.Module:
    model = small_net()
    model.register_buffer("places", torch.arange(3), persistent=persistent)
    return model


REFUSED: dict[str, Any] = {
    "BatchNorm1d": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)),
    "InstanceNorm": lambda: nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 3)),
    "buffer places of type int64": lambda: with_buffer(True),
    "float16": lambda: small_net().half(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_with_state_beside_the_update_are_refused(what: str) -> None:
    with pytest.raises(RefusedError, match=what):
        run_of(plan_of(), REFUSED[what]())


@pytest.mark.parametrize("together", [1, 50])
def test_a_buffer_that_changes_is_noticed(together: int) -> None:
    with pytest.raises(RefusedError, match="buffer seen changes"):
        session_of(plan_of(), Counting(in_place=True), together=together)


def test_a_buffer_that_a_client_exchanges_stays_with_the_client() -> None:
    model = Counting(in_place=False)
    run_of(plan_of(rounds=1), model, evaluate=None)
    assert float(model.seen) == 0


class Branching(nn.Module):
    """Looks at its values, which cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.inner(inputs)
        return outputs if float(outputs.detach().sum()) < 1e9 else outputs * 0


def test_what_cannot_be_stacked_is_trained_one_by_one() -> None:
    session = session_of(plan_of(rounds=1), Branching())
    assert session.loop.asked.engine.together == 1
    list(session.loop)


def test_a_constant_buffer_is_no_reason() -> None:
    assert run_of(plan_of(rounds=1), with_buffer(False)).certificate.is_private


def test_labels_and_models_that_do_not_fit_are_said_before_anything_is_spent(tmp_path: Path) -> None:
    rows = small_rows()
    wrong = partition(Examples(rows.inputs, rows.targets + 5, num_classes=3), COUNT)
    with pytest.raises(InputError, match="labels outside"):
        sf.federate(small_net(), wrong, plan_of(), out=tmp_path / "run")
    with pytest.raises(InputError, match="failed on blank rows"):
        sf.federate(nn.Linear(7, 3), small_clients(), plan_of(), out=tmp_path / "run")
    with pytest.raises(InputError, match="clients"):
        sf.federate(small_net(), rows, plan_of())  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


# --- diagnostics ------------------------------------------------------------------------------------


def test_diagnostics_are_off_labelled_and_right(tmp_path: Path) -> None:
    plan = plan_of("dp-fedsam", rounds=3, clip_norm=0.05)
    run_of(plan, out=tmp_path / "plain")
    assert not (tmp_path / "plain" / "diagnostics.jsonl").exists()
    seen = Diagnostics()
    run = run_of(plan, out=tmp_path / "run", diagnostics=seen)
    rows = read_diagnostics(tmp_path / "run")
    assert [row.get("round") for row in rows] == [1, 2, 3, None]
    assert all(row["label"].startswith("not covered by ε") for row in rows)
    assert 0 < seen.rows[0]["alpha"] <= 1
    assert seen.rows[0]["norm_quantiles"] == sorted(seen.rows[0]["norm_quantiles"])
    assert seen.gap["train_test_gap"] == seen.gap["train_accuracy"] - run.accuracy
    assert sf.verify(tmp_path / "run").passed
    assert "not covered" in json.loads((tmp_path / "run" / "run.json").read_text())["facts"]["diagnostics"]


def test_diagnostics_change_nothing() -> None:
    ends = []
    for diagnostics in (None, Diagnostics()):
        model = copy.deepcopy(small_net())
        run_of(plan_of(), model, seed=6, diagnostics=diagnostics)
        ends.append(weights_of(model))
    assert torch.equal(*ends)
