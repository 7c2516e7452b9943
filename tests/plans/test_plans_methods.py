"""Methods as plans: what each consists of, what is refused, and what the papers' presets say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_helpers import bounded
from saltflat import plans
from saltflat.errors import InputError, PrivacyWarning
from saltflat.plan import (
    Ema,
    FreshQuery,
    NoAscent,
    Optimizer,
    Phase,
    Plan,
    Poisson,
    PreviousRelease,
    QuantileClipping,
    Swa,
    TruncatedPoisson,
)

COMMON: dict[str, Any] = {"population": 60_000, "batch_size": 2048, "steps": 300, "delta": 1e-5}
NOISE = COMMON | {"noise_multiplier": 4.0}
BUDGET = COMMON | {"epsilon": 1.0}


def test_dp_sgd_is_one_phase_without_ascent() -> None:
    plan = plans.dp_sgd(clip_norm=0.1, learning_rate=2.0, **NOISE)
    assert plan.phases == (Phase(300, 0.1, 4.0, 2.0, NoAscent(), name="descend"),)
    assert plan.sampling == Poisson(60_000, 2048)
    assert plan.optimizer == Optimizer("sgd", {"momentum": 0.9})


def test_ascents() -> None:
    assert plans.dp_sat(rho=0.05, **NOISE).phases[0].ascent == PreviousRelease(0.05)
    assert plans.dp_sat(rho=0.5, ascent_momentum=0.9, **NOISE).phases[0].ascent == PreviousRelease(0.5, 0.9)
    assert plans.dp_sam(rho=0.05, **NOISE).phases[0].ascent == FreshQuery(0.05, 3.0)
    assert plans.dp_sam(rho=0.05, noise_ratio=1.0, **NOISE).phases[0].ascent == FreshQuery(0.05, 1.0)


def test_ascents_from_releases_are_free_and_a_fresh_query_is_not() -> None:
    """Schedules, averaging and ascents leave the events as they are."""
    plain = plans.dp_sgd(**NOISE).events()
    assert plans.dp_sat(**NOISE).events() == plain
    assert plans.dp_sat_early_stop(switch=1.0, **NOISE).events() == plain
    for extra in ({"averaging": Swa()}, {"averaging": Ema()}, {"optimizer": "adam"}, {"learning_rate": 9.0}):
        assert plans.dp_sat(**NOISE, **extra).events() == plain
    assert plans.dp_sam(**NOISE).epsilon > plans.dp_sgd(**NOISE).epsilon


def test_sai_has_two_phases() -> None:
    plan = plans.sai(
        rho=0.1, switch=0.25, noise_ratio=2.0, clip_norms=(0.2, 0.1), learning_rates=(2.0, 0.1),
        reset_momentum=True, **BUDGET,
    )  # fmt: skip
    first, second = plan.phases
    assert (first.steps, second.steps) == (75, 225)
    assert (first.clip_norm, second.clip_norm) == (0.2, 0.1)
    assert (first.learning_rate, second.learning_rate) == (2.0, 0.1)
    assert (first.ascent, second.ascent) == (PreviousRelease(0.1), NoAscent())
    assert (first.reset_momentum, second.reset_momentum) == (False, True)
    assert second.sigma == pytest.approx(2 * first.sigma, abs=2e-4)
    assert 0.99 < plan.epsilon <= 1.0


def test_sai_with_its_noise_given() -> None:
    """`noise_multiplier` is σ₁. Fails when `noise_ratio` is ignored (it once was)."""
    plan = plans.sai(noise_ratio=3.0, **NOISE)
    assert [phase.sigma for phase in plan.phases] == [4.0, 12.0]


def test_sai_that_switches_itself_keeps_the_planned_noise() -> None:
    plan = plans.sai(rho=0.1, switch="automatic", noise_ratio=2.0, **BUDGET)
    assert [phase.steps for phase in plan.phases] == [99, 201]
    assert all(phase.ascent == PreviousRelease(0.1, automatic=True) for phase in plan.phases)
    assert plan.epsilon <= 1.0


@pytest.mark.parametrize(
    ("switch", "steps"), [(0.5, [150, 150]), (40, [40, 260]), (0, [300]), (1.0, [300]), (300, [300])]
)
def test_the_switch_is_a_fraction_or_a_step(switch: float, steps: list[int]) -> None:
    assert [phase.steps for phase in plans.sai(switch=switch, **NOISE).phases] == steps


def test_the_papers_split_is_within_budget_also_with_a_counted_quantile() -> None:
    """Fails when the count's release is left out of the split (it once was)."""
    clipping = QuantileClipping(count_noise=10.0)
    plan = plans.sai(split="paper", portion=0.8, clipping=clipping, **BUDGET)
    shares = [plan.phase_epsilon(phase) for phase in plan.phases]
    assert plan.epsilon <= 1.0
    assert shares[0] < 0.8
    assert shares[1] < 0.2
    joint = plans.sai(split="joint", clipping=clipping, **BUDGET)
    assert plan.epsilon < joint.epsilon <= 1.0


@given(population=st.integers(100, 10**6), share=st.floats(0.001, 1.0), epochs=st.floats(0.1, 50.0))
@bounded(40)
def test_steps_come_from_declared_numbers(population: int, share: float, epochs: float) -> None:
    batch_size = max(1, int(share * population))
    plan = plans.sgd(population=population, batch_size=batch_size, epochs=epochs, delta=1e-9)
    assert plan.steps == max(1, round(epochs * population / batch_size))
    assert plan.sampling.rate == batch_size / population
    assert plan.steps_per_epoch == max(1, round(population / batch_size))


def test_the_rate_may_be_given_instead_of_the_batch_size() -> None:
    plan = plans.dp_sgd(population=1000, rate=0.25, noise_multiplier=4.0, steps=10)
    assert plan.sampling == Poisson(1000, 250.0)


def test_left_out_steps_are_chosen_and_said() -> None:
    plan = plans.dp_sgd(epsilon=1.0, population=60_000, batch_size=2048)
    assert plan.steps == 879
    assert "30 epochs chosen" in plan.notes[0]
    more = plans.dp_sgd(epsilon=math.inf, population=60_000, batch_size=2048)
    assert "no budget limits their number" in more.notes[0]
    assert not more.is_private


def test_a_budget_is_met_and_a_given_noise_is_accounted() -> None:
    solved = plans.dp_sgd(**BUDGET)
    assert 0.999 < solved.epsilon <= 1.0 == solved.budget.epsilon
    given_noise = plans.dp_sgd(**NOISE)
    assert given_noise.budget.epsilon == given_noise.epsilon
    loud = plans.dp_sgd(**COMMON, noise_multiplier=1e6)
    assert loud.is_private  # it costs nothing to the last digit, and is not "without a budget"


def left_at_the_end(plan: Plan) -> float:
    """Σ η²σ²: the variance of the noise that the last iterate holds, but for constants."""
    return sum(phase.steps * ((phase.learning_rate or 0) * phase.sigma) ** 2 for phase in plan.phases)


def test_tapered_noise_leaves_a_quarter_less_at_the_same_budget() -> None:
    """(Σ η)² / (T Σ η²) is 0.755 for six stairs; a little more, because small noise costs more than σ⁻².

    Failed with noise in proportion to η^½, and to 1/η.
    """
    long = BUDGET | {"steps": 1172}
    tapered, even = (plans.dp_sgd_tapered(learning_rate=4.0, taper=taper, **long) for taper in (0.5, 0.0))
    assert tapered.epsilon <= 1.0
    assert [phase.learning_rate for phase in tapered.phases] == [phase.learning_rate for phase in even.phases]
    assert len({phase.sigma for phase in even.phases}) == 1
    assert even.phases[0].sigma == plans.dp_sgd(**long).phases[0].sigma
    assert 0.755 < left_at_the_end(tapered) / left_at_the_end(even) < 0.78
    for taper in (0.25, 0.75):  # neither less nor more of it is better
        other = plans.dp_sgd_tapered(learning_rate=4.0, taper=taper, **long)
        assert left_at_the_end(other) > left_at_the_end(tapered)


@bounded(20)
@given(steps=st.integers(1, 50), stairs=st.integers(1, 9))
def test_stairs_take_all_steps(steps: int, stairs: int) -> None:
    plan = plans.dp_sgd_tapered(stairs=stairs, **NOISE | {"steps": steps})
    assert plan.steps == steps
    rates = [phase.learning_rate for phase in plan.phases]
    assert rates == sorted(rates, reverse=True)
    noises = [phase.sigma for phase in plan.phases]
    assert noises == sorted(noises)
    if steps >= stairs:
        assert (len(noises), noises[0]) == (stairs, 4.0)


def test_a_tapered_rate_starts_at_twice_the_usual_one() -> None:
    """So that it goes as far: the mean of its stairs is what a rate that stays would be."""
    plan = plans.dp_sgd_tapered(clip_norm=0.1, **NOISE)
    assert sum(phase.learning_rate or 0 for phase in plan.phases) / 6 == pytest.approx(2.0)
    assert plan.optimizer == plans.dp_sgd(learning_rate=2.0, **NOISE).optimizer
    adam = plans.by_name("dp-sgd-tapered+adam", **NOISE)
    assert sum(phase.learning_rate or 0 for phase in adam.phases) / 6 == pytest.approx(0.002)


@pytest.mark.parametrize("wrong", [{"stairs": 0}, {"stairs": 2.5}, {"taper": -1.0}, {"preset": "paper"}])
def test_wrong_stairs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        plans.dp_sgd_tapered(**NOISE, **wrong)


def test_truncated_sampling() -> None:
    plan = plans.dp_sgd(sampling="truncated-poisson", **NOISE)
    assert plan.sampling == TruncatedPoisson(60_000, 2048, 2240)
    assert plan.events()[0].cap == 2240
    assert plans.dp_sgd(sampling="truncated-poisson", cap=3000, **NOISE).events()[0].cap == 3000


def test_baselines_are_not_private() -> None:
    for plan in (plans.sgd(**COMMON), plans.sam(rho=0.1, **COMMON), plans.sgd(**BUDGET)):
        assert not plan.is_private
        assert plan.epsilon == math.inf
        assert plan.phases[0].clip_norm == math.inf


def test_names_and_suffixes() -> None:
    assert plans.by_name("dp-sat+swa", rho=0.1, **NOISE).averaging == Swa()
    plan = plans.by_name("sai+adam-bc+ema", **NOISE)
    assert (plan.method, plan.optimizer, plan.averaging) == ("sai+adam-bc+ema", Optimizer("adam-bc"), Ema())
    assert plans.by_name("dp-sgd", **NOISE) == plans.dp_sgd(**NOISE)
    for name in plans.METHODS:
        assert plans.by_name(name, **NOISE).method == name


PAPER = [
    ("dp-sat", "dpnas-fmnist", 2, {"steps": 1172, "rho": 0.03, "clip_norm": 0.1, "learning_rate": 2.0}),
    ("dp-sat", "cnn-selu", 2, {"steps": 879, "rho": 0.1, "clip_norm": 0.1, "learning_rate": 2.0}),
    ("sai", "cnn-selu", 1, {"steps": 293, "rho": 0.3, "clip_norm": 0.1, "learning_rate": 2.0}),
    ("sai", "dpnas-mnist", 3, {"steps": 586, "rho": 0.05, "clip_norm": 0.2, "learning_rate": 2.0}),
    ("dp-sat-early-stop", "dpnas-fmnist", 1, {"steps": 440, "rho": 0.05, "clip_norm": 0.1}),
]


@pytest.mark.parametrize(("method", "model", "epsilon", "expected"), PAPER)
def test_papers_settings(method: str, model: str, epsilon: int, expected: dict[str, float]) -> None:
    plan = plans.by_name(method, preset="paper", model=model, epsilon=epsilon, population=60_000)
    first = plan.phases[0]
    found = {key: getattr(first.ascent if key == "rho" else first, key) for key in expected}
    assert found == expected
    assert plan.optimizer == Optimizer("sgd", {"momentum": 0.9})
    assert plan.epsilon <= epsilon
    assert any("settings of the paper" in note for note in plan.notes)


def test_what_is_said_beats_the_paper() -> None:
    """Fails when an argument that the paper also sets is refused (it once was)."""
    common = {"preset": "paper", "model": "cnn-selu", "epsilon": 1, "population": 50_000}
    assert plans.dp_sat(rho=0.5, **common).phases[0].ascent == PreviousRelease(0.5)
    adam = plans.sai(optimizer="adam", switch=0.5, steps=100, split="joint", **common)
    assert adam.phases[0].steps == 50
    assert adam.optimizer == Optimizer("adam")
    assert [phase.learning_rate for phase in adam.phases] == [0.002, 0.002]


BAD: list[tuple[Callable[[], Plan], str]] = [
    (lambda: plans.dp_sgd(**COMMON), "epsilon"),
    (lambda: plans.dp_sgd(**BUDGET, noise_multiplier=1.0), "epsilon"),
    *[(lambda e=e: plans.dp_sgd(**COMMON, epsilon=e), "epsilon") for e in (0, -1, math.nan, "1")],
    *[(lambda d=d: plans.dp_sgd(**BUDGET | {"delta": d}), "delta") for d in (0, 1, -1, "1e-5")],
    *[
        (lambda s=s: plans.dp_sgd(**COMMON, noise_multiplier=s), "noise_multiplier")
        for s in (-1, math.inf, "1")
    ],
    (lambda: plans.dp_sgd(epsilon=1, batch_size=10, steps=3), "population"),  # type: ignore[typeddict-item]
    *[(lambda n=n: plans.dp_sgd(**BUDGET | {"population": n}), "population") for n in (0, -1, 1.5, "9")],
    *[(lambda b=b: plans.dp_sgd(**BUDGET | {"batch_size": b}), "batch_size") for b in (0, -1, 60_001, "9")],
    *[
        (lambda r=r: plans.dp_sgd(population=100, rate=r, epsilon=1, steps=3), "rate")
        for r in (0.0, 1.1, -0.1, math.nan, "0.1")
    ],
    (lambda: plans.dp_sgd(population=100, epsilon=1, steps=3), "batch_size"),
    (lambda: plans.dp_sgd(population=100, epsilon=1, steps=3, batch_size=10, rate=0.1), "batch_size"),
    *[(lambda s=s: plans.sai(**BUDGET | {"steps": s}), "steps") for s in (0, -1, 2.5, "3", True)],
    *[
        (lambda e=e: plans.dp_sgd(population=100, batch_size=10, epsilon=1, epochs=e), "epochs")
        for e in (0, -1.0, math.nan, math.inf, "3")
    ],
    (lambda: plans.dp_sgd(**BUDGET, epochs=3), "epochs"),
    (lambda: plans.dp_sgd(**BUDGET, clip_norm=0), "clip_norm"),
    (lambda: plans.dp_sgd(**BUDGET, learning_rate=-1), "learning_rate"),
    (lambda: plans.dp_sgd(**BUDGET, optimizer=lambda p: p), "optimizer"),  # type: ignore[arg-type]
    (lambda: plans.dp_sgd(**BUDGET, optimizer="adam", momentum=0.9), "momentum"),
    (lambda: plans.dp_sgd(**BUDGET, averaging="swa"), "averaging"),  # type: ignore[arg-type]
    (lambda: plans.dp_sgd(**BUDGET, sampling="shuffle"), "sampling"),  # type: ignore[arg-type]
    (lambda: plans.dp_sgd(**BUDGET, cap=3000), "cap"),
    (lambda: plans.dp_sgd(**BUDGET, unit="row"), "unit"),  # type: ignore[arg-type]
    (lambda: plans.dp_sgd(**BUDGET, relation="replace-one"), "relation"),
    (lambda: plans.dp_sgd(**BUDGET, preset="papers"), "preset"),  # type: ignore[arg-type]
    (lambda: plans.dp_sgd(**BUDGET, preset="paper", model="alexnet"), "model"),
    (lambda: plans.dp_sgd(**COMMON, epsilon=4, preset="paper", model="cnn-selu"), "epsilon"),
    (lambda: plans.dp_sat(**BUDGET, rho=-1), "rho"),
    (lambda: plans.dp_sat(**BUDGET, rho="a"), "rho"),  # type: ignore[arg-type]
    (lambda: plans.dp_sam(**BUDGET, noise_ratio=0), "noise_ratio"),
    (lambda: plans.sai(**NOISE, noise_ratio=-1), "noise_ratio"),
    *[
        (lambda s=s: plans.sai(**BUDGET, switch=s), "switch")
        for s in (-0.1, 1.5, 301, math.nan, "auto", True)
    ],
    (lambda: plans.sai(**BUDGET, clip_norms=0.1), "clip_norms"),  # type: ignore[arg-type]
    (lambda: plans.sai(**BUDGET, learning_rates=(1.0,)), "learning_rates"),  # type: ignore[arg-type]
    (lambda: plans.sai(**BUDGET, split="even"), "split"),  # type: ignore[arg-type]
    (lambda: plans.sai(**NOISE, split="paper"), "split"),
    *[(lambda p=p: plans.sai(**BUDGET, split="paper", portion=p), "portion") for p in (0, 1, 2, -1)],
    (lambda: plans.by_name("dp-stg", **BUDGET), "method"),
    (lambda: plans.by_name("dp-sgd+sva", **BUDGET), "method"),
    (lambda: plans.by_name("dp-sgd+swa+ema", **BUDGET), "method"),
    (lambda: plans.dp_sgd(**BUDGET, lerning_rate=1.0), "lerning_rate"),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("make", "argument"), BAD)
def test_bad_arguments_are_refused_by_name(make: Callable[[], Plan], argument: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert error.value.argument == argument
    assert "Expected" in str(error.value)


@pytest.mark.parametrize(
    ("make", "guess"),
    [
        (lambda: plans.by_name("dp-stg", **BUDGET), "'dp-sgd'"),
        (lambda: plans.by_name("dp-sgd+sva", **BUDGET), "'swa'"),
        (lambda: plans.dp_sgd(**BUDGET, lerning_rate=1.0), "'learning_rate'"),  # type: ignore[call-arg]
        (lambda: plans.dp_sgd(**BUDGET, preset="paper", model="cnn-selo"), "'cnn-selu'"),
    ],
)
def test_misspelt_words_suggest_the_nearest(make: Callable[[], Plan], guess: str) -> None:
    with pytest.raises(InputError, match=f"Did you mean {guess}"):
        make()


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sam", "sai", "dp-sat+ema"])
@pytest.mark.parametrize("noise", [{"epsilon": 0.5}, {"noise_multiplier": 3.0}])
def test_a_delta_that_could_publish_a_row_is_warned_of_once(method: str, noise: dict[str, float]) -> None:
    with pytest.warns(PrivacyWarning, match="publishes a random row") as caught:
        plans.by_name(method, population=1000, batch_size=50, steps=200, delta=1e-3, **noise)
    assert len(caught) == 1
