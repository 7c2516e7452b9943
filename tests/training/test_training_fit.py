"""`fit` and `steps`: what they give back, what they can be told, and what happens when they stop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import saltflat as sf
from core_helpers import COMMON, loop_of, small_data, small_net, weights_of
from saltflat import plans
from saltflat.accounting import COARSE, epsilon
from saltflat.data.people import People
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.methods.ascent import AscentState, Plateau, displaced, scaled_to
from saltflat.plan import Ema, NoAscent, PreviousRelease, Swa
from saltflat.plan.ascents import ASCENTS
from saltflat.record.ledger import Ledger
from saltflat.training.evaluate import evaluate, predict, with_weights
from saltflat.training.fit import metrics_row
from saltflat.training.losses import cross_entropy, squared_error
from saltflat.training.step import Step


def test_fit_and_steps_are_the_same_loop(tmp_path: Path) -> None:
    plan = plans.sai(rho=0.1, **COMMON)
    fitted = sf.fit(small_net(), small_data(), plan, seed=2, progress=False).model
    model = small_net()
    seen = list(sf.steps(model, small_data(), plan, seed=2, out=tmp_path / "run"))
    assert [step.number for step in seen] == list(range(1, 11))
    assert [step.phase for step in seen] == list(plan.schedule())
    assert seen[-1].epoch == pytest.approx(2.0)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(fitted), weights_of(model)))
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").releases == 10


def test_steps_can_be_left_early_and_are_certified_in_full(tmp_path: Path) -> None:
    plan, model = plans.dp_sgd(**COMMON), small_net()
    walk = sf.steps(model, small_data(), plan, out=tmp_path / "run")
    for step in walk:
        if step.number == 4:
            break
    walk.close()
    run = sf.Run.load(tmp_path / "run", small_net(1))
    assert run.epsilon == plan.epsilon
    assert len(repr(run)) < 120  # what a notebook shows
    assert run.certificate.data["recorded_releases"] == 4
    assert all(torch.equal(a, b) for a, b in zip(weights_of(run.model), weights_of(model)))


def test_steps_refuse_words_they_do_not_know() -> None:
    with pytest.raises(InputError, match="Did you mean 'micro_batch'"):
        next(iter(sf.steps(small_net(), small_data(), plans.dp_sgd(**COMMON), microbatch=3)))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="evaluate="):
        next(iter(sf.steps(small_net(), small_data(), plans.dp_sgd(**COMMON), evaluate=small_data())))  # type: ignore[call-arg]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_stops_is_certified_at_the_whole_plan(stop: type[BaseException], tmp_path: Path) -> None:
    """Fails when ε so far is certified (tried)."""
    plan = plans.dp_sgd(**COMMON)

    def interrupt(step: Any) -> None:
        if step.number == 3:
            raise stop

    with pytest.raises(stop):
        sf.fit(small_net(), small_data(), plan, callbacks=[interrupt], out=tmp_path / "run", progress=False)
    stored = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert stored["epsilon"] == plan.epsilon
    assert (stored["recorded_releases"], stored["planned_releases"]) == (3, 10)


def test_history_has_a_row_an_epoch_and_epsilon_so_far_grows() -> None:
    plan = plans.dp_sgd(**COMMON)
    run = sf.fit(small_net(), small_data(), plan, evaluate=small_data(15, 1), progress=False)
    assert [row["step"] for row in run.history] == [5, 10]
    assert run.history[0]["epsilon_so_far"] < run.history[1]["epsilon_so_far"]
    assert run.history[1]["epsilon_so_far"] == pytest.approx(plan.epsilon, rel=0.01)
    assert run.accuracy == run.history[-1]["accuracy"]
    assert run.average_accuracy is None
    assert run.seconds > 0


def test_the_schedule_scales_the_learning_rate() -> None:
    plan = plans.dp_sgd(learning_rate=0.5, momentum=0.0, **COMMON)
    loop = loop_of(small_net(), small_data(), plan, schedule=lambda done: 1 - done)
    rates = [loop.optimizer.param_groups[0]["lr"] for _ in loop]
    assert rates == pytest.approx([0.5 * (1 - i / 10) for i in range(10)])


def test_named_schedules() -> None:
    plan = plans.dp_sgd(learning_rate=0.5, momentum=0.0, **COMMON)
    ends = [
        weights_of(sf.fit(small_net(), small_data(), plan, schedule=schedule, seed=1, progress=False).model)
        for schedule in ("cosine", lambda done: 0.5 * (1 + math.cos(math.pi * done)), None, "constant")
    ]
    assert all(torch.equal(a, b) for a, b in zip(ends[0], ends[1]))
    assert all(torch.equal(a, b) for a, b in zip(ends[2], ends[3]))
    assert not torch.equal(ends[0][0], ends[2][0])


def test_an_optimizer_of_ones_own_keeps_its_rate() -> None:
    seen = []

    def factory(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.25, momentum=0.5)
        seen.append(made)
        return made

    plan = plans.dp_sgd(**COMMON)
    ours = sf.fit(small_net(), small_data(), plan, optimizer=factory, seed=1, progress=False)
    named = plans.dp_sgd(learning_rate=0.25, momentum=0.5, **COMMON)
    theirs = sf.fit(small_net(), small_data(), named, seed=1, progress=False)
    assert seen[0].param_groups[0]["lr"] == 0.25
    assert all(torch.equal(a, b) for a, b in zip(weights_of(ours.model), weights_of(theirs.model)))


def test_the_default_rate_follows_the_clip_norm() -> None:
    rates = []
    for clip_norm, optimizer in ((0.1, None), (1.0, None), (1.0, "adam"), (math.inf, None)):
        noise = {"epsilon": math.inf} if math.isinf(clip_norm) else {"noise_multiplier": 3.0}
        plan = plans.dp_sgd(
            population=40,
            batch_size=8,
            steps=1,
            clip_norm=clip_norm,
            optimizer=optimizer,
            delta=1e-3,
            **noise,
        )
        loop = loop_of(small_net(), small_data(), plan)
        rates.append(loop.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([2.0, 0.2, 0.002, 0.1])


def test_a_run_without_noise_certifies_nothing(tmp_path: Path) -> None:
    plan = plans.sgd(population=40, batch_size=8, steps=3)
    run = sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", evaluate=small_data(), progress=False)
    assert run.epsilon == math.inf
    assert "NOT PRIVATE" in str(run.certificate)
    assert run.history[-1]["epsilon_so_far"] == "inf"


def test_a_run_that_diverges_still_writes_json(tmp_path: Path) -> None:
    """Fails when NaN is written, which JSON does not have (it once was)."""
    plan = plans.dp_sgd(learning_rate=1e308, **COMMON)
    run = sf.fit(small_net(), small_data(), plan, evaluate=small_data(), out=tmp_path / "run", progress=False)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    rows = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert rows[-1]["loss"] in ("nan", "inf")
    assert rows == run.history


def test_the_progress_bar_shows_public_numbers_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    plan = plans.dp_sgd(**COMMON)
    sf.fit(small_net(), small_data(), plan, evaluate=small_data(15, 1), progress=True)
    shown = capsys.readouterr().err
    for words in ("dp-sgd", "10/10", "accuracy", "test loss", "ε so far", "of the plan's"):
        assert words in " ".join(shown.split())
    sf.fit(small_net(), small_data(), plan, progress=False)
    sf.fit(small_net(), small_data(), plan)  # this is no terminal
    assert capsys.readouterr().err == ""


def test_weights_of_unused_modes_are_left_alone() -> None:
    """Evaluation returns each module to the mode it was in, and takes no gradient."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).double()
    model[1].eval()
    first, second = (evaluate(model, small_data()) for _ in range(2))
    assert first == second
    assert [module.training for module in model] == [True, False]
    assert predict(model, small_data().inputs).requires_grad is False


def test_averaged_weights_are_borrowed_and_given_back() -> None:
    model, before = small_net(), weights_of(small_net())
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with with_weights(model, zeros):
        assert all((p == 0).all() for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(model)))
    with pytest.raises(RuntimeError, match="inside"), with_weights(model, zeros):
        raise RuntimeError("inside")
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(model)))


@pytest.mark.parametrize("averaging", [Swa(0.5), Ema()])
def test_the_average_is_measured_beside_the_last_iterate(averaging: Any) -> None:
    plan = plans.dp_sgd(averaging=averaging, **COMMON)
    run = sf.fit(small_net(), small_data(), plan, evaluate=small_data(), progress=False)
    with with_weights(run.model, run.average):
        expected = evaluate(run.model, small_data())
    assert run.average_accuracy == expected["accuracy"]
    assert run.history[-1]["average_loss"] == pytest.approx(expected["loss"])
    assert run.accuracy == evaluate(run.model, small_data())["accuracy"]


# --- people -------------------------------------------------------------------------------------------


def test_people_are_fetched_with_rows_of_equal_weight() -> None:
    people = People(small_data(7), torch.tensor([5, 9, 5, 5, 9, 1, 5]))
    assert len(people) == 3
    rows = people.fetch_units(torch.tensor([0, 1, 2]))
    assert rows.each == 4
    shares = rows.weights.view(3, 4)
    assert torch.equal(shares, torch.tensor([[1, 0, 0, 0], [1 / 4] * 4, [1 / 2, 1 / 2, 0, 0]]).double())
    assert torch.equal(rows.inputs.view(3, 4, 4)[1], small_data(7).inputs[[0, 2, 3, 6]])


def test_a_person_with_very_many_rows_is_one_person() -> None:
    people = People(small_data(40), torch.zeros(40), most_rows=16)
    assert people.fetch_units(torch.tensor([0])).each == 16


def test_ids_may_come_with_the_data() -> None:
    data = small_data()
    groups = torch.arange(40) % 10
    plan = plans.dp_sgd(**COMMON | {"population": 10, "batch_size": 4}, unit="person")
    held = Examples(data.inputs, data.targets, num_classes=3, groups=groups)
    one = sf.fit(small_net(), held, plan, seed=1, progress=False)
    two = sf.fit(small_net(), data, plan, groups=groups, seed=1, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(one.model), weights_of(two.model)))
    assert one.plan.budget.unit == "person"


# --- losses -------------------------------------------------------------------------------------------


def test_losses_are_one_number_an_example() -> None:
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, -1, 7])
    losses = cross_entropy(outputs, targets)
    assert losses.shape == (5,)
    assert losses[3] == losses[4] == 0
    assert torch.allclose(losses[:3], nn.functional.cross_entropy(outputs[:3], targets[:3], reduction="none"))
    images = torch.randn(5, 3, 2, 2)
    assert cross_entropy(images, torch.zeros(5, 2, 2, dtype=torch.long)).shape == (5,)
    assert torch.equal(
        squared_error(torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.0])), torch.tensor([2.0, 0.0])
    )


# --- ascents ------------------------------------------------------------------------------------------


def test_a_direction_has_one_norm_over_all_tensors() -> None:
    moved = scaled_to({"a": torch.full((3,), 3.0), "b": torch.full((4,), 4.0)}, 0.5)
    assert math.hypot(float(moved["a"].norm()), float(moved["b"].norm())) == pytest.approx(0.5)
    assert torch.equal(scaled_to({"a": torch.zeros(3)}, 0.5)["a"], torch.zeros(3))


def test_displaced_weights_come_back_bit_for_bit_also_after_an_error() -> None:
    """Fails when they are put back by subtraction (tried)."""
    model, before = small_net(), weights_of(small_net())
    by = {name: torch.full_like(p, 1e9) for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError, match="inside"), displaced(dict(model.named_parameters()), by):
        raise RuntimeError("inside")
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(model)))


@pytest.mark.parametrize("kind", ASCENTS)
def test_an_ascent_remembers_copies_of_releases(kind: str) -> None:
    """An optimizer may change gradients in place. Fails when the release itself is kept (tried)."""
    ascent = NoAscent() if kind == "none" else ASCENTS[kind](rho=0.1)
    state = AscentState()
    for _ in range(2):  # the first release, and one after it
        release = {"w": torch.ones(2)}
        state.observe(ascent, release)
        release["w"].zero_()
    assert all(held["w"].all() for held in state.memory.values())
    assert bool(state.memory) == (kind == "previous-release")
    assert state.displacement(NoAscent()) is None
    assert state.displacement(PreviousRelease(0.0)) is None


def test_an_optimizer_that_changes_gradients_does_not_change_the_ascent() -> None:
    class Careless(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.zero_()

    plan = plans.dp_sat(rho=0.5, **COMMON)
    ends = [
        weights_of(sf.fit(
            small_net(), small_data(), plan, optimizer=lambda p, k=kind: k(p, lr=0.2), seed=1, progress=False
        ).model)
        for kind in (torch.optim.SGD, Careless)
    ]  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(*ends))


def test_a_plateau_is_noticed_and_progress_is_not_taken_for_one() -> None:
    falling, level = Plateau(patience=5, warm_up=5), Plateau(patience=5, warm_up=5)
    assert not any(falling.observe(100.0 * 0.9**i) for i in range(60))
    assert any(level.observe(1.0) for _ in range(30))


@pytest.mark.parametrize("public", [False, True])
def test_an_automatic_ascent_switches_off_for_good_and_noise_stays(public: bool) -> None:
    plan = plans.sai(rho=0.1, switch="automatic", **COMMON | {"steps": 30})
    data = small_data()
    shown = Examples(data.inputs, data.targets, provenance="public") if public else None
    loop = loop_of(small_net(), data, plan, public=shown)
    loop.ascent.plateau = Plateau(patience=2, warm_up=2, least_gain=1e9)
    off = [loop.ascent.switched_off for _ in loop]
    assert off == sorted(off)
    assert off[-1]
    assert not off[0]
    assert list(loop.mechanism.ledger.events()) == list(plan.events())


def test_sharpness_on_public_rows_is_of_the_loss_that_is_trained() -> None:
    """Fails when the default loss is measured: here it would be a cross-entropy, which does not double."""
    plan = plans.sai(rho=0.1, switch="automatic", **COMMON)
    data = small_data()
    shown = Examples(data.inputs, data.targets, provenance="public")
    rises = []
    for factor in (1.0, 2.0):
        loop = loop_of(
            small_net(), data, plan, public=shown, loss_fn=lambda y, t, f=factor: f * cross_entropy(y, t)
        )
        upward = {name: torch.ones_like(w) for name, w in loop.weights.items()}
        rises.append(loop.public_sharpness(plan.phases[0], upward))
    assert rises[1] == pytest.approx(2 * rises[0])
    assert rises[0] != 0


def test_no_part_of_a_run_is_said_to_cost_more_than_the_whole() -> None:
    """Fails when the coarse grid's figure is shown as it is: it overstates long runs with small losses."""
    plan = plans.dp_sgd(population=40_960, batch_size=1, steps=409_600, delta=6e-8, noise_multiplier=0.7)
    loop = loop_of(small_net(), small_data(), plan)
    row = metrics_row(loop, Step(plan.steps, plan.steps, plan.phases[0], 10.0), None)
    assert row["epsilon_so_far"] <= plan.epsilon + 1e-6
    assert epsilon(plan.events(), plan.budget.delta, grid=COARSE) > plan.epsilon + 1e-3
