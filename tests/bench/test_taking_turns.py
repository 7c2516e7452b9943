"""Two steps that take turns at every micro-batch: who goes when, what is counted, and that nothing is left behind."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from saltflat.bench import taking_turns
from saltflat.bench.taking_turns import Turnstile, crossed_over, in_turns, one_pair


class Scripted:
    """A step whose turns take what is written down."""

    def __init__(self, name: str, turns: list[float], told: list[str]) -> None:
        self.name, self.turns, self.told, self.at = name, turns, told, 0

    def go(self) -> tuple[float, bool]:
        self.told.append(self.name)
        seconds = self.turns[self.at]
        self.at = (self.at + 1) % len(self.turns)
        return seconds, self.at == 0


@pytest.mark.parametrize("number", [0, 1])
def test_turns_alternate_and_who_begins_depends_on_the_pair(number: int) -> None:
    """Fails when one always goes first (tried): a drift of the machine would then fall on the other alone."""
    told: list[str] = []
    partners = [Scripted("a", [1.0, 2.0, 4.0], told), Scripted("b", [0.5, 0.5, 0.5], told)]
    assert one_pair(partners, number) == [7.0, 1.5]
    assert "".join(told) == ("abbaab", "baabba")[number]


def test_a_step_with_more_turns_takes_the_rest_alone() -> None:
    told: list[str] = []
    partners = [Scripted("a", [1.0] * 4, told), Scripted("b", [1.0] * 2, told)]
    assert one_pair(partners, 0) == [4.0, 2.0]
    assert sorted(told) == ["a"] * 4 + ["b"] * 2
    assert one_pair(partners, 1) == [4.0, 2.0]  # both stand at the beginning of a step again


class Place:
    """A process in which everything takes so many times as long as in another."""

    def __init__(self, slower: float, told: list[str]) -> None:
        self.slower, self.told = slower, told

    def step(self, which: int) -> Scripted:
        turns = [1.0, 1.0] if which else [1.5, 1.5]
        return Scripted("ab"[which], [self.slower * turn for turn in turns], self.told)


@pytest.mark.parametrize("number", [0, 1])
def test_a_slower_process_falls_on_both_steps_alike(number: int) -> None:
    """Fails when each step keeps to its process (tried): 1.5 times as long would then be 1.65."""
    told: list[str] = []
    own, other = crossed_over([Place(1.1, told), Place(1.0, told)], number)
    assert own / other == pytest.approx(1.5)
    assert sorted(told) == ["a"] * 4 + ["b"] * 4


def test_a_turnstile_stops_all_lanes_at_once_and_counts_their_seconds_alone() -> None:
    """Two lanes with three and four losses. Fails when the time between turns is counted (tried)."""
    turns: list[tuple[float, bool]] = []
    passed: list[str] = []
    at_turn: list[int] = []

    def told(seconds: float, ended: bool) -> None:
        turns.append((seconds, ended))
        at_turn.append(len(passed))
        time.sleep(0.05)  # the other's turn

    def loss(lane: str) -> None:
        passed.append(lane)
        time.sleep(0.01)

    turnstile = Turnstile(loss, told)
    together = threading.Barrier(2)

    def lane(name: str, losses: int) -> None:
        together.wait(10)  # a thread each
        for _ in range(losses):
            turnstile(name)

    with ThreadPoolExecutor(2) as threads:

        def step() -> None:
            for future in [threads.submit(lane, *task) for task in (("a", 3), ("b", 4))]:
                future.result()

        turnstile.close(step)
        assert not turns
        passed.clear()
        turnstile.whole(step)
    assert [ended for _, ended in turns] == [False, False, False, True]
    assert at_turn == [
        0,
        2,
        4,
        7,
    ]  # both lanes have gone through between two turns; the fourth loss does not stop
    assert sum(seconds for seconds, _ in turns) < 0.05 * 3
    assert turns[-1][0] >= 0.02


def test_two_real_processes_take_turns_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes end with the block, also when it fails."""
    seen: list[int] = []
    real = taking_turns.subprocess.Popen

    def noted(*arguments: Any, **named: Any) -> Any:
        process = real(*arguments, **named)
        seen.append(process.pid)
        return process

    taken: list[list[float]] = []

    def cut_off() -> None:
        with in_turns("dp-sat", "dp-sgd", "mlp", 64) as pairs:
            taken.extend(pairs(5))
            raise KeyError

    monkeypatch.setattr(taking_turns.subprocess, "Popen", noted)
    with pytest.raises(KeyError):
        cut_off()
    own, other = taken
    assert len(own) == len(other) == 5
    assert 0.05 < sorted(own)[2] / sorted(other)[2] < 20
    assert len(seen) == 2
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_lanes_of_a_real_step_stop_together() -> None:
    """cnn-selu over 512 rows on two threads: eight micro-batches in two lanes make four stops and an end."""
    import torch

    from saltflat.bench.private_loop import loop_of, steps_of
    from saltflat.bench.workload import Workload

    turns: list[bool] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        turnstile = Turnstile(Workload("cnn-selu", 1).loss, lambda _, ended: turns.append(ended))
        step = steps_of(loop_of("dp-sat", "cnn-selu", 512, 512, loss=turnstile))
        step()
        turnstile.close(step)
        turnstile.whole(step)
        lanes = len(turnstile.calls)
    finally:
        torch.set_num_threads(before)
    assert lanes == 2
    assert turns == [False] * turnstile.common + [True]
    assert turnstile.common == 4


def test_a_step_that_fails_says_why() -> None:
    with (
        pytest.raises(RuntimeError, match="the name of a model"),
        in_turns("dp-sgd", "dp-sgd", "no-such-model", 16),
    ):
        pass
