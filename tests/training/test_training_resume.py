"""Going on with a run: it ends as if it had never stopped, and spends nothing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_helpers import cut_off, fit, releases
from torch import Tensor, nn

import saltflat as sf
from core_helpers import COMMON, contents, loop_of, plan_of, small_data, small_net, stop_after, weights_of
from saltflat import plans
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.methods.ascent import Plateau
from saltflat.plan import Ema, Multiplicity, Phase, Plan, PreviousRelease, QuantileClipping, Swa
from saltflat.record.checkpoint import Checkpoints
from saltflat.record.ledger import Ledger, LedgerError
from saltflat.training import keep
from saltflat.training.state import captured, restore
from saltflat.training.step import Loop


class Dropping(nn.Module):
    """Draws from torch's own generator in every step, and has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = small_net(), nn.Dropout(0.5)
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(self.drop(inputs * self.scale))


def images(rows: int = 40) -> Examples:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(rows, 1, 4, 4, dtype=torch.float64, generator=generator)
    return Examples(inputs, torch.randint(0, 3, (rows,), generator=generator), num_classes=3)


PLANS: dict[str, Callable[[], Plan]] = {
    "dp-sgd, momentum": lambda: plans.dp_sgd(**COMMON),
    "dp-sat, momentum of its own": lambda: plans.dp_sat(rho=0.1, momentum=0.5, **COMMON),
    "dp-sam": lambda: plans.dp_sam(rho=0.1, **COMMON),
    "sai, swa": lambda: plans.sai(rho=0.1, averaging=Swa(0.2, 2), **COMMON),
    "automatic switch, ema": lambda: plans.sai(rho=0.1, switch="automatic", averaging=Ema(0.9), **COMMON),
    "adam": lambda: plans.dp_sgd(optimizer="adam", **COMMON),
    "adam-bc, quantile": lambda: plans.dp_sgd(
        optimizer="adam-bc", clipping=QuantileClipping(count_noise=1.0), **COMMON
    ),
    "rmsprop, truncated": lambda: plans.dp_sgd(optimizer="rmsprop", sampling="truncated-poisson", **COMMON),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("every", [0.0, 60.0])
def test_a_seeded_run_ends_as_if_it_had_never_stopped(name: str, every: float, tmp_path: Path) -> None:
    """Weights, average, history and recorded releases, bit for bit; cut off twice, by checkpoint and by journal.

    Fails when a part of the state is not restored (tried: momentum, direction, average's count, clip norm,
    generators).
    """
    plan = PLANS[name]()
    whole = fit(small_net(), plan, seed=5, out=tmp_path / "whole")
    options = {"seed": 5, "checkpoint_every": every}
    cut_off(small_net(), plan, 3, out=tmp_path / "cut", **options)
    cut_off(small_net(1), plan, 7, resume=tmp_path / "cut", **options)
    again = fit(small_net(2), None, resume=tmp_path / "cut", checkpoint_every=every)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model)))
    for file in ("weights.safetensors", "average.safetensors", "metrics.jsonl", "plan.json"):
        if (tmp_path / "whole" / file).exists() or (tmp_path / "cut" / file).exists():
            assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()
    assert whole.history == again.history
    assert releases(tmp_path / "whole") == releases(tmp_path / "cut")
    assert again.certificate.data["resumed"] == 2
    assert not (tmp_path / "cut" / "checkpoint").exists()


def test_the_automatic_switch_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when `switched_off` or the plateau's memory is not restored (tried)."""
    plan = plans.sai(rho=0.1, switch="automatic", **COMMON | {"steps": 12})

    def loops(seen: list[Loop]) -> None:
        made = Loop.__post_init__

        def quick(self: Loop) -> None:
            made(self)
            self.ascent.plateau = Plateau(patience=2, warm_up=2, least_gain=1e9)
            seen.append(self)

        monkeypatch.setattr(Loop, "__post_init__", quick)

    seen: list[Loop] = []
    loops(seen)
    whole = fit(small_net(), plan, seed=5)
    assert seen[0].ascent.switched_off
    for at in (2, 9):
        cut_off(small_net(), plan, at, seed=5, out=tmp_path / str(at), checkpoint_every=0)
        again = fit(small_net(), plan, resume=tmp_path / str(at))
        assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model)))


class Twice(PreviousRelease):
    """An ascent that keeps two releases, under names that no checkpoint knows beforehand."""

    names = ("newest", "before")

    def direction(self, memory: Any, answer: Any) -> Any:
        found = memory.get(self.names[1])
        return None if found is None else (found, self.rho)

    def remembered(self, memory: Any, release: Any) -> Any:
        newest, before = self.names
        kept = {newest: {name: part.clone() for name, part in release.items()}}
        return kept | ({before: memory[newest]} if newest in memory else {})


@pytest.mark.parametrize("at", [1, 3])
def test_whatever_an_ascent_remembers_is_in_the_checkpoint(tmp_path: Path, at: int) -> None:
    """Fails when only the direction of DP-SAT is restored (tried)."""
    plan = plan_of(steps=4, ascent=Twice(0.1))
    loops = [loop_of(small_net(), small_data(), plan) for _ in range(2)]
    first = iter(loops[0])
    for _ in range(at):
        next(first)
    tensors, facts = captured(loops[0])
    restore(loops[1], tensors, facts)
    assert loops[1].ascent.memory.keys() == set(Twice.names[:at])
    moved = [loop.ascent.displacement(Twice(0.1)) or {} for loop in loops]
    assert moved[0].keys() == moved[1].keys()
    assert all(torch.equal(moved[0][name], moved[1][name]) for name in moved[0])


def test_an_ascent_cannot_write_over_another_part_of_the_state() -> None:
    loop = loop_of(small_net(), small_data(), plan_of())
    loop.ascent.memory = {"average": dict(loop.weights)}
    with pytest.raises(TypeError, match="average"):
        captured(loop)


def test_what_torch_itself_draws_goes_on_too(tmp_path: Path) -> None:
    """Dropout and augmented views. Fails when torch's own generator is not restored (tried)."""
    plan = plans.dp_sgd(**COMMON)
    whole = fit(Dropping(), plan, seed=5)
    cut_off(Dropping(), plan, 4, seed=5, out=tmp_path / "drop")
    again = fit(Dropping(), plan, resume=tmp_path / "drop")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model)))

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()

    views = plan.changed(multiplicity=Multiplicity(3, ("flip", "crop"), 0.01))
    whole = sf.fit(net(), images(), views, seed=5, progress=False)
    with pytest.raises(KeyboardInterrupt):
        sf.fit(net(), images(), views, seed=5, progress=False, out=tmp_path / "v", callbacks=[stop_after(6)])
    again = sf.fit(net(), images(), views, progress=False, resume=tmp_path / "v")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model)))


def test_a_schedule_goes_on(tmp_path: Path) -> None:
    plan = plans.dp_sgd(learning_rate=0.5, **COMMON)
    whole = fit(small_net(), plan, seed=5, schedule="cosine")
    cut_off(small_net(), plan, 4, seed=5, schedule="cosine", out=tmp_path / "run")
    again = fit(small_net(), plan, schedule="cosine", resume=tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model)))


def test_steps_go_on(tmp_path: Path) -> None:
    """The same loop, open: the steps after the cut are handed out, and of a finished run none."""
    plan, model = plans.sai(rho=0.1, **COMMON), small_net()
    whole = weights_of(fit(small_net(), plan, seed=2).model)
    walk = sf.steps(model, small_data(), plan, seed=2, out=tmp_path / "run")
    assert [step.number for step in (next(walk), next(walk))] == [1, 2]
    walk.close()
    other = small_net(1)
    rest = list(sf.steps(other, small_data(), resume=tmp_path / "run"))
    assert [step.number for step in rest] == list(range(3, 11))
    assert all(torch.equal(a, b) for a, b in zip(whole, weights_of(other)))
    assert list(sf.steps(small_net(), small_data(), resume=tmp_path / "run")) == []


# --- private runs -----------------------------------------------------------------------------------------


def killed(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, at: int, **options: Any) -> Path:
    """A private run that died between the ledger's entry of step ``at`` and its journal."""
    folder = tmp_path / "run"
    journal = keep.Keeper.journal

    def die(self: Any, loop: Loop, number: int, released: Any) -> None:
        if number == at:
            raise KeyboardInterrupt
        journal(self, loop, number, released)

    with monkeypatch.context() as patch:
        patch.setattr(keep.Keeper, "journal", die)
        with pytest.raises(KeyboardInterrupt):
            fit(small_net(), plan, out=folder, **options)
    return folder


@pytest.mark.parametrize("at", [1, 4, 5, 6, 10])
def test_a_lost_release_uses_up_a_planned_one_of_its_phase(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten entries, one a step, and nine updates of the weights. Fails when the lost step is drawn again (tried)."""
    plan = plans.sai(rho=0.1, switch=5, **COMMON)
    folder = killed(tmp_path, plan, monkeypatch, at)
    updates: list[int] = []
    use = Loop.use

    def counted(self: Loop, number: int, *rest: Any) -> None:
        updates.append(number)
        use(self, number, *rest)

    monkeypatch.setattr(Loop, "use", counted)
    run = fit(small_net(), plan, resume=folder)
    assert updates == [number for number in range(1, 11) if number != at]
    ledger = Ledger.read(folder / "ledger.jsonl")
    assert [entry["step"] for entry in ledger.of_kind("release")] == list(range(1, 11))
    assert [phase["phase"] for phase in releases(folder)] == [0] * 5 + [1] * 5
    [resumed] = ledger.of_kind("resume")
    assert (resumed["replayed"], resumed["lost"]) == (at - 1, [at])
    assert list(ledger.events()) == list(plan.events())
    assert run.epsilon == plan.epsilon
    assert [row["step"] for row in run.history] == [5, 10]


def test_momentum_is_reset_although_the_first_release_of_the_phase_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Phase(3, 1.0, 2.0, ascent=PreviousRelease(0.1))
    plan = plans.dp_sgd(**COMMON).changed(phases=(first, Phase(3, 1.0, 2.0, reset_momentum=True)))
    folder = killed(tmp_path, plan, monkeypatch, 4)
    held: list[int] = []
    use = Loop.use

    def seen(self: Loop, number: int, *rest: Any) -> None:
        held.append(len(self.optimizer.state))
        use(self, number, *rest)

    monkeypatch.setattr(Loop, "use", seen)
    fit(small_net(), plan, resume=folder)
    assert held == [0, 4, 4, 0, 4]  # three replayed, one lost, two drawn


def test_a_journalled_release_is_replayed_exactly_and_not_recorded_again(tmp_path: Path) -> None:
    plan, model = plans.dp_sat(rho=0.1, **COMMON), small_net()
    cut_off(model, plan, 6, out=tmp_path / "run")
    before = releases(tmp_path / "run")
    walk = sf.steps(other := small_net(1), small_data(), resume=tmp_path / "run")
    assert next(walk).number == 7
    walk.close()
    assert len(before) == 6
    assert releases(tmp_path / "run")[:6] == before
    tensors, facts = Checkpoints(tmp_path / "run").read()
    assert facts["step"] == 6  # written when the run went on, before step 7
    stored = [tensors[f"model/{name}"] for name in other.state_dict()]
    assert all(torch.equal(a, b) for a, b in zip(stored, weights_of(model)))


def test_a_private_run_draws_afresh_and_leaves_no_generator_on_disk(tmp_path: Path) -> None:
    """Fails when generator state is stored without a seed (tried)."""
    plan = plans.dp_sgd(**COMMON)
    ends = []
    cut_off(small_net(), plan, 4, out=tmp_path / "run", checkpoint_every=0)
    for copy in ("a", "b"):
        shutil.copytree(tmp_path / "run", tmp_path / copy)
        checkpoints = Checkpoints(tmp_path / copy)
        for tensors, facts in (checkpoints.read(), *checkpoints.releases()):
            assert not [name for name in tensors if "generator" in name]
            assert facts.get("setup", {}).get("seed") is None
        ends.append(weights_of(fit(small_net(), plan, resume=tmp_path / copy).model))
    assert not torch.equal(ends[0][0], ends[1][0])


def test_a_step_cannot_be_recorded_twice(tmp_path: Path) -> None:
    plan = plans.dp_sgd(**COMMON)
    cut_off(small_net(), plan, 4, out=tmp_path / "run")
    walk = sf.steps(small_net(), small_data(), resume=tmp_path / "run")
    next(walk)
    loop = walk.gi_yieldfrom.gi_frame.f_locals["loop"]  # type: ignore[attr-defined]
    with pytest.raises(LedgerError, match="recorded already"):
        loop.private_step(3, plan.phases[0])
    walk.close()


def test_a_run_that_stops_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        fit(small_net(), plans.dp_sgd(**COMMON), out=tmp_path / "run", callbacks=[stop_after(2)])
    assert "resume=" in stopped.value.__notes__[0]
    with pytest.raises(KeyboardInterrupt) as stopped:
        fit(small_net(), plans.dp_sgd(**COMMON), callbacks=[stop_after(2)])
    assert not hasattr(stopped.value, "__notes__")


def test_a_finished_run_is_given_back(tmp_path: Path) -> None:
    plan = plans.dp_sgd(averaging=Ema(), **COMMON)
    run = fit(small_net(), plan, out=tmp_path / "run")
    before = contents(tmp_path / "run")
    again = fit(small_net(1), plan, resume=tmp_path / "run")
    assert (again.certificate, again.history, again.seconds) == (run.certificate, run.history, run.seconds)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(run.model), weights_of(again.model)))
    assert contents(tmp_path / "run") == before


def test_the_certificate_knows_whether_the_run_was_finished(tmp_path: Path) -> None:
    plan = plans.dp_sgd(**COMMON)
    cut_off(small_net(), plan, 4, out=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert (stored["finished"], stored["resumed"], stored["recorded_releases"]) == (False, 0, 4)
    assert stored["ledger_head"] == Ledger.read(tmp_path / "run" / "ledger.jsonl").head
    fit(small_net(), plan, resume=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert (stored["finished"], stored["resumed"], stored["recorded_releases"]) == (True, 1, 10)
    assert stored["ledger_head"] == Ledger.read(tmp_path / "run" / "ledger.jsonl").head


def test_a_run_without_checkpoints_cannot_go_on(tmp_path: Path) -> None:
    cut_off(small_net(), plans.dp_sgd(**COMMON), 4, out=tmp_path / "run", checkpoint_every=float("inf"))
    assert not (tmp_path / "run" / "checkpoint").exists()
    with pytest.raises(InputError, match="no checkpoint to go on from"):
        fit(small_net(), None, resume=tmp_path / "run")


def test_the_journal_is_emptied_when_a_checkpoint_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By time, or by size: neither disk nor the time to go on grows with the run."""
    monkeypatch.setattr(keep, "LEAST_JOURNAL", 0)
    monkeypatch.setattr(keep, "JOURNAL_RATIO", 3)
    checkpoints = Checkpoints(tmp_path / "run")

    def share() -> float:
        return checkpoints.journal_path.stat().st_size / checkpoints.state_path.stat().st_size

    walk = sf.steps(small_net(), small_data(), plans.dp_sgd(**COMMON), out=tmp_path / "run")
    sizes = [share() for step in walk if step.number < 10]
    assert max(sizes) < 4
    assert 0.0 in sizes
    assert sizes[0] > 0


def test_an_optimizer_that_cannot_be_stored_trains_all_the_same(tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["odd"] = object()

    def odd(parameters: Any) -> torch.optim.Optimizer:
        return Odd(parameters, lr=0.1)

    with pytest.warns(sf.PrivacyWarning, match="No more checkpoints"):
        run = fit(small_net(), plans.dp_sgd(**COMMON), optimizer=odd, out=tmp_path / "r", checkpoint_every=0)
    assert run.certificate.is_finished
