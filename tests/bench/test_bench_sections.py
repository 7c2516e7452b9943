"""Whole steps, methods, memory and growth, each on the smallest settings that still run the real thing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from bench_helpers import TINY, memory_by_rule

from saltflat.bench import growth, memory, private_loop
from saltflat.bench.fresh_process import private
from saltflat.bench.memory import Cell, in_fresh_processes
from saltflat.bench.settings import METHODS, SECTIONS
from saltflat.bench.tasks import tasks
from saltflat.training.step import Loop

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_whole_step_costs_at_least_its_clipped_gradient_over_the_same_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when the two are over different rows (tried by not looking ahead)."""
    rows: list[int] = []
    real = private_loop.clipped_sum
    monkeypatch.setattr(
        private_loop,
        "clipped_sum",
        lambda *a, **k: rows.append(len(a[3])) or real(*a, **k),  # type: ignore[func-returns-value]
    )
    drawn: list[int] = []
    step = private_loop.Loop.sum_of_clipped
    monkeypatch.setattr(
        private_loop.Loop, "sum_of_clipped", lambda self, batch, c: drawn.append(len(batch)) or step(self, batch, c)
    )  # fmt: skip
    found = private_loop.whole_step("mlp", batch_size=16, population=60, rounds=4)
    assert rows == drawn
    assert len(rows) == 5
    assert len(set(rows)) > 1  # Poisson batches
    assert found["ratio"]["median"] > 0.5
    assert found["seconds"] > 0


@pytest.mark.parametrize("method", ["sai", "dp-sam"])  # of one query, and of two
def test_a_method_is_measured_beside_dp_sgd(method: str) -> None:
    found = private_loop.against_dp_sgd(method, "mlp", 16, rounds=1)
    assert found["ratio"]["median"] > 0
    assert found["interval"][0] <= found["ratio"]["median"] <= found["interval"][1]


def _given(found: Iterable[tuple[float, float]]) -> Any:
    """In place of two processes: pairs of seconds that are given."""
    pairs = iter(found)

    @contextmanager
    def side_by_side(*_: Any) -> Iterator[Any]:
        yield lambda rounds: tuple(map(list, zip(*itertools.islice(pairs, rounds))))

    return side_by_side


def test_a_slower_method_is_seen() -> None:
    """Fails when the ratio is upside down (tried)."""
    given = _given([(0.9, 0.3), (0.3, 0.1)])
    found = private_loop.against_dp_sgd("slow", "mlp", 16, rounds=2, side_by_side=given)
    assert found["ratio"]["median"] == pytest.approx(3)
    assert found["times"] == {"own": [0.9, 0.3], "dp-sgd": [0.3, 0.1]}


def test_a_restless_machine_gets_more_pairs_and_a_quiet_one_does_not() -> None:
    """Pairs of which every second one takes twice as long; and pairs that all take the same."""
    for slow, expected in ((2.0, 40), (1.0, 10)):
        given = _given(itertools.cycle([(slow, 1.0), (1.0, slow)]))
        found = private_loop.against_dp_sgd("dp-sat", "mlp", 16, rounds=10, most=45, side_by_side=given)
        assert found["rounds"] == expected


def test_what_a_method_adds_is_measured_on_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the batch has rows, and when the difference is upside down (both tried): an average takes 5 ms."""
    import time

    from saltflat.methods.averaging import AverageState
    from saltflat.training import sums

    observe = AverageState.observe

    def slowly(self: AverageState, *arguments: Any) -> None:
        if self.averaging != private_loop.plan_of("dp-sgd", 16, 16).averaging:
            time.sleep(0.005)
        observe(self, *arguments)

    def touched(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("a row was touched")

    monkeypatch.setattr(AverageState, "observe", slowly)
    monkeypatch.setattr(sums, "clipped_sum", touched)
    found = private_loop.added_work("dp-sgd+ema", "mlp", 16)
    assert found is not None
    assert 0.004 < found["seconds"] < 0.05
    assert found["interval"][0] <= found["seconds"] <= found["interval"][1]
    assert private_loop.added_work("dp-sam", "mlp", 16) is None  # its second query costs by the row


def test_methods_run_what_they_are_called() -> None:
    """The plan of SWA averages from the first step; DP-SAM asks twice; all others once."""
    queries = {name: len(plan.query_noises(plan.phase_at(0))) for name, plan in _plans().items()}
    assert queries == {"dp-sat": 1, "sai": 1, "dp-sgd+ema": 1, "dp-sgd+swa": 1, "dp-sam": 2}
    averaging = {name: str(plan.averaging) for name, plan in _plans().items()}
    assert "SWA from 0%" in averaging["dp-sgd+swa"]
    assert "EMA" in averaging["dp-sgd+ema"]


def _plans() -> dict[str, Any]:
    return {name: private_loop.plan_of(name, 64, 64) for name in METHODS}


# --- memory -----------------------------------------------------------------------------------------


def test_two_hundred_megabytes_more_are_seen() -> None:
    """In a real fresh process, after imports that had more in memory for a while than they kept.

    Fails when the earlier peak is not forgotten, or when what was there before is counted (tried).
    """
    code = """
import json, torch
from saltflat.bench.fresh_process import growth_of
before = torch.ones(100 * 2**18)                 # 100 MB that stay: not counted
passing = torch.ones(300 * 2**18); del passing   # a higher peak before the count: not counted either
small = growth_of(lambda: torch.ones(2**18))
large = growth_of(lambda: torch.ones(200 * 2**18))
print(json.dumps([small["peak_bytes"], large["peak_bytes"]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    small, large = json.loads(done.stdout)
    assert small < 20 * 2**20
    assert 190 * 2**20 < large - small < 230 * 2**20


def test_whole_steps_come_before_the_memory_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run keeps from its first step on is there when the count of a large batch begins.

    Should fail when only gradients are computed before, or in micro-batches of another size.
    """
    loops: list[Loop] = []
    build = private_loop.loop_of
    monkeypatch.setattr(
        private_loop, "loop_of", lambda *args, **kw: loops.append(build(*args, **kw)) or loops[-1]
    )
    early, step = private({"model": "mlp", "examples": 64, "early": 3, "micro_batch": 16})
    (loop,) = loops
    assert not loop.optimizer.state
    early()
    assert len(loop.optimizer.state) == len(loop.weights)
    assert loop.sums.micro_batch == 16
    before = {name: weight.clone() for name, weight in loop.weights.items()}
    step()
    assert any(not torch.equal(before[name], weight) for name, weight in loop.weights.items())


def test_a_fresh_process_finds_what_an_engine_needs() -> None:
    """Explicit gradients of 256 examples of 7,850 numbers are 8 MB; the rows, 0.8 MB, are there before."""
    found = in_fresh_processes(Cell("opacus hooks", "logistic", 256, 256), 1)
    assert 7 * 2**20 < found["peak_bytes"] < 60 * 2**20
    assert found["peaks"] == [found["peak_bytes"]]


def test_a_process_that_fails_is_listed_with_its_last_words() -> None:
    found = in_fresh_processes(Cell("saltflat", "no-such-model", 4, 4), 3)
    assert found["peak_bytes"] is None
    assert (
        "no-such-model" in found["reason"] or "Did you mean" in found["reason"] or "Known" in found["reason"]
    )


def test_memory_of_a_model_is_compared_at_one_micro_batch() -> None:
    found = memory.of_model("mlp", TINY, memory_by_rule)
    assert found["micro_batch"] == 8
    assert found["ratio"] == 1.0
    assert found["judged"]
    assert set(found["cells"]) == {
        "saltflat", "ordinary", "opacus hooks", "opacus ghost", "saltflat, automatic",
    }  # fmt: skip

    def small(cell: Cell, repeats: int) -> dict[str, Any]:
        return {"peak_bytes": 1000}

    assert not memory.of_model("mlp", TINY, small)["judged"]


def test_what_is_judged_is_measured_several_times_and_the_rest_once() -> None:
    found = memory.of_model("mlp", replace(TINY, memory_repeats=3), memory_by_rule)
    times = {name: len(cell["peaks"]) for name, cell in found["cells"].items()}
    assert times.pop("saltflat") == times.pop("ordinary") == 3
    assert set(times.values()) == {1}


def test_memory_of_a_large_batch_is_compared_with_a_small_one() -> None:
    """Fails when the ratio is upside down (tried)."""

    def by_batch(cell: Cell, repeats: int) -> dict[str, Any]:
        assert cell.engine == "private step"
        return {"peak_bytes": cell.examples}

    assert memory.of_logical_batches(TINY, by_batch)["ratio"] == 4.0


def test_what_else_the_machine_does_meets_both_sizes_of_batch() -> None:
    """Fails when all processes of one size come first (tried: the ratio is 0.5)."""
    measured: list[int] = []

    def busy_at_first(cell: Cell, repeats: int) -> dict[str, Any]:
        measured.append(cell.examples)
        return {"peak_bytes": 200 if len(measured) <= TINY.memory_pairs else 100}

    found = memory.of_logical_batches(TINY, busy_at_first)
    assert measured == list(TINY.memory_batches) * TINY.memory_pairs
    assert 0.8 < found["ratio"] < 1.25


# --- growth -----------------------------------------------------------------------------------------


def test_growth_has_time_and_memory_on_every_axis() -> None:
    batch = growth.against_batch(8, TINY, memory_by_rule)
    assert set(batch["seconds"]) == {"saltflat", "ordinary"}
    assert batch["bytes"]["saltflat"]
    only_time = growth.against_batch(16, TINY, memory_by_rule)
    assert only_time["seconds"]
    assert not only_time["bytes"]
    only_memory = growth.against_batch(32, TINY, memory_by_rule)
    assert not only_memory["seconds"]
    assert only_memory["bytes"]
    wide = growth.against_parameters(0.1, TINY, memory_by_rule)
    narrow = growth.against_parameters(0.05, TINY, memory_by_rule)
    assert wide["at"] > narrow["at"]
    pieces = growth.against_micro_batch(4, TINY, memory_by_rule)
    assert pieces["at"] == 4
    assert pieces["examples"] == 8
    for found in (wide, pieces):
        assert {"saltflat", "ordinary"} <= set(found["seconds"]) == set(found["bytes"])


def test_the_tasks_cover_every_section_once() -> None:
    found = tasks(TINY)
    assert list(dict.fromkeys(task.section for task in found)) == list(SECTIONS)
    assert len({(task.section, task.key) for task in found}) == len(found)
    assert [task.key for task in found if task.section == "engines"] == ["mlp"]
