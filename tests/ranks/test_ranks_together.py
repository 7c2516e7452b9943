"""Several ranks train one model: the same result as one process, noise once, every row once.

One launch of two real processes, and one of three, trains everything that is looked at here.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ranks_cases import BATCH, CLIP, EXTRA, RATE, SEED, SIGMA, cases, fitted, named, result
from ranks_helpers import HERE, torchrun
from scipy import stats
from torch import Tensor

from saltflat.mechanism.randomness import Randomness
from saltflat.mechanism.sampling import draw
from saltflat.ranks import shard

Found = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank had in the end."""
    out = tmp_path_factory.mktemp("ranks")
    done = torchrun(request.param, str(HERE / "ranks_cases.py"), str(out), cwd=out)
    assert done.returncode == 0, done.stderr
    return [torch.load(out / f"rank{rank}.pt") for rank in range(request.param)]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """The same runs in this one process."""
    return {name: result(fitted(case)) for name, case in cases().items()}


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to rounding: the numbers are float64, and only the order of additions differs."""
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-11)


def numbers(row: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if not isinstance(value, str)}


@pytest.mark.parametrize("name", list(cases()))
def test_ranks_give_the_result_of_one_process(name: str, found: Found, alone: dict[str, Any]) -> None:
    """Fails when a rank's part is left out, or computed at other weights (both tried)."""
    expected, here = alone[name], found[0]["runs"][name]
    close(here["weights"], expected["weights"])
    assert (here["average"] is None) == (expected["average"] is None)
    if expected["average"] is not None:
        close(here["average"], expected["average"])
    assert here["releases"] == expected["releases"] == 12
    assert here["epsilon"] == expected["epsilon"]
    for row, other in zip(here["history"], expected["history"], strict=True):
        assert numbers(row) == pytest.approx(numbers(other), rel=1e-9)


def test_integers_add_up_the_same_on_any_number_of_ranks(found: Found, alone: dict[str, Any]) -> None:
    """In the exact tier sums are integers: not one bit differs."""
    for name, value in alone["exact"]["weights"].items():
        assert torch.equal(found[0]["runs"]["exact"]["weights"][name], value)


@pytest.mark.parametrize("name", list(cases()))
def test_all_ranks_end_with_the_same_bits(name: str, found: Found) -> None:
    first = found[0]["runs"][name]
    for other in (each["runs"][name] for each in found[1:]):
        for kind in ("weights", "average"):
            assert (first[kind] is None) == (other[kind] is None)
            for key in first[kind] or {}:
                assert torch.equal(first[kind][key], other[kind][key])
        assert other["history"] == first["history"]
        assert other["head"] == first["head"]


# --- noise -----------------------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("tier", ["fast", "secure", "exact"])
def test_noise_is_added_once_in_total(tier: str, found: Found) -> None:
    """Zero gradients, private runs: χ² over 120,000 coordinates a release, at level 1e-6 for each of three.

    Power: one standard error of the variance is 0.41 %, the threshold 4.9 of them. Noise from two ranks would
    be 100 % too much, a share of it on one rank alone 50 % too little; 2 % is missed less than once in a
    million. Fails when every rank adds noise of its own, and when each adds σ/√2 on one rank only (both tried).
    """
    for release in found[0]["noise"][tier]["releases"]:
        drawn = release * BATCH / (SIGMA * CLIP)
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(drawn))
        assert low < float((drawn**2).sum()) < high
        assert abs(float(drawn.mean())) < 6 / math.sqrt(len(drawn))


@pytest.mark.statistical
def test_noise_is_new_in_every_release(found: Found) -> None:
    """No correlation beyond 6/√d: one chance in 5e8 for each pair."""
    first, second, third = (release / release.norm() for release in found[0]["noise"]["fast"]["releases"])
    bound = 6 / math.sqrt(len(first))
    assert all(abs(float(a @ b)) < bound for a, b in ((first, second), (second, third), (first, third)))


@pytest.mark.parametrize("tier", ["fast", "secure", "exact"])
def test_all_ranks_took_the_same_releases(tier: str, found: Found) -> None:
    """The weights of every rank are the sum of what rank 0 released, bit for bit, and no rank drew its own."""
    at = torch.zeros(120_000, dtype=torch.float64)
    for release in found[0]["noise"][tier]["releases"]:
        at = at.add(release, alpha=-RATE)
    for each in found:
        weights = torch.cat([part.flatten() for part in each["noise"][tier]["weights"].values()])
        assert torch.equal(weights, at)
        assert each is found[0] or each["noise"][tier]["releases"] == []


# --- rows ------------------------------------------------------------------------------------------------


def test_every_sampled_row_is_computed_once_by_the_rank_it_belongs_to(found: Found) -> None:
    """The batches of one process, drawn again here. Fails when ranks take the same part (tried)."""
    source, plan = Randomness.from_seed(SEED).sampling, named("dp-sgd").plan
    expected = [int(i) for _ in range(plan.steps) for i in draw(plan.sampling, 40, source)]
    computed: list[int] = []
    for rank, each in enumerate(found):
        # one row to see the labels, three to try the model, and on rank 0 one whose form is made up
        own, checks = shard(40, rank, len(found)), 5 if rank == 0 else 4
        assert set(each["reads"]) <= set(own)
        computed += each["reads"][checks:]
    assert sorted(computed) == sorted(expected)


def test_one_row_more_moves_the_sum_by_at_most_the_clip_norm(found: Found) -> None:
    """Whatever it holds, and although it moves the borders of the shards."""
    sums = found[0]["sums"]
    for name in EXTRA:
        moved = float((sums[name] - sums["none"]).norm())
        assert moved <= CLIP * (1 + 1e-5), name
    assert float((sums["ordinary"] - sums["none"]).norm()) > CLIP / 10


def test_the_open_loop_hands_out_steps_on_rank_0(found: Found) -> None:
    """Stopping early leaves every rank with the weights of that step."""
    assert found[0]["steps"]["numbers"] == [1, 2, 3, 4]
    for other in found[1:]:
        assert other["steps"]["numbers"] == []
        for name, value in found[0]["steps"]["weights"].items():
            assert torch.equal(other["steps"]["weights"][name], value)


# --- what does not fit together --------------------------------------------------------------------------


def test_ranks_that_differ_are_refused_by_what_differs(found: Found) -> None:
    """Before anything is released; and the runs above came after these, in the same processes."""
    first, second = found[0]["refusals"], found[1]["refusals"]
    assert "InputError: data='41 rows' on rank 1 differs from '40 rows' on rank 0" in first["rows"]
    assert "InputError: model='2 weights" in first["model"]
    assert "LostRankError: Rank 1 cannot take part: its plan is another" in first["plan"]
    assert first["labels on rank 1"].startswith(
        "LostRankError: Rank 1 cannot take part: targets='labels outside"
    )
    assert second["labels on rank 1"].startswith("InputError: targets='labels outside")
    assert first["a bad argument"].startswith("InputError: micro_batch=0")
    assert second["a bad argument"].startswith("LostRankError: Another rank stopped: micro_batch=0")
    for each in (first, second):
        assert each["tune"].startswith("InputError: tune='one of")
        assert len(each) == 6
