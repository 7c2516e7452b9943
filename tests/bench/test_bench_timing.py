"""Ratios, means and intervals: arithmetic that decides whether a goal is met."""

from __future__ import annotations

import math
import random
import time

import pytest

from saltflat.bench.timing import (
    beside,
    geometric_mean,
    interleaved,
    median_interval,
    paired,
    repeats_for,
)


def test_a_ratio_and_its_inverse_cancel_in_the_mean() -> None:
    """Fails with the arithmetic mean (tried): 4 and a quarter would give 2.1."""
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([2.0, 8.0, 4.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None


def test_a_slow_round_does_not_move_a_paired_ratio() -> None:
    """The third round ran on a busy machine. Fails when medians are taken before the ratio (tried)."""
    own, other = [1.0, 2.0, 30.0], [1.0, 4.0, 30.0]
    found = paired(own, other)
    assert found.median == 1.0
    assert (found.low, found.high) == (0.75, 1.0)
    assert paired([3.0], [2.0]).median == 1.5
    with pytest.raises(ValueError, match="zip"):
        paired([1.0], [1.0, 2.0])


def test_every_step_has_its_turn_in_every_round_in_changing_order() -> None:
    """Fails when the order is the same in all rounds (tried)."""
    seen: list[str] = []

    def step(name: str) -> None:
        seen.append(name)
        time.sleep(0.06)  # long enough to be taken once a round

    times = interleaved({name: lambda name=name: step(name) for name in "abc"}, rounds=4)  # type: ignore[misc]
    rounds = [tuple(seen[i : i + 3]) for i in range(3, 15, 3)]  # the first three decide how often to repeat
    assert len(seen) == 15
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 1
    assert all(len(values) == 4 and min(values) >= 0.05 for values in times.values())


def test_short_steps_are_repeated_and_counted_once() -> None:
    """Fails when the time of all repeats counts as that of one (tried)."""
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.001)

    started = time.perf_counter()
    times = interleaved({"short": short}, rounds=1)
    taken = time.perf_counter() - started
    assert 2 <= calls <= 1 + repeats_for(0.001)
    assert 0.001 <= times["short"][0] <= taken / (calls - 1)  # the first call decides how often


def test_a_step_and_its_reference_take_turns_at_going_first() -> None:
    seen: list[str] = []

    def step(name: str) -> None:
        seen.append(name)
        time.sleep(0.06)

    own, other = beside(lambda: step("own"), lambda: step("reference"), rounds=2)
    assert seen[1:] == ["own", "reference", "reference", "own"]
    assert len(own) == len(other) == 2


@pytest.mark.statistical
def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    """Of a skewed distribution with outliers, whose mean is far from its median. 2,000 draws of 15.

    The coverage is 96.5 %; fewer than 95 % would be more than three deviations away.
    """
    chance = random.Random(0)
    covered = 0
    for _ in range(2000):
        values = [math.exp(chance.gauss(0, 1)) * (100 if chance.random() < 0.1 else 1) for _ in range(15)]
        low, high, confidence = median_interval(values)
        # median of exp(N) mixed with one tenth a hundredfold: where the two parts weigh one half together
        covered += low <= MEDIAN_OF_THE_MIXTURE <= high
    assert confidence == pytest.approx(0.9648, abs=1e-4)
    assert covered / 2000 >= 0.95


def _below(x: float) -> float:
    def normal(z: float) -> float:
        return 0.5 * (1 + math.erf(z / 2**0.5))

    return 0.9 * normal(math.log(x)) + 0.1 * normal(math.log(x / 100))


def _bisected(low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle) < 0.5 else (low, middle)
    return low


MEDIAN_OF_THE_MIXTURE = _bisected(0.1, 10.0)


def test_few_values_admit_that_they_cover_less() -> None:
    low, high, confidence = median_interval([3.0, 1.0, 2.0])
    assert (low, high) == (1.0, 3.0)
    assert confidence == 0.75
