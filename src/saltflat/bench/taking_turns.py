"""Two private steps, in two processes, that take turns at every micro-batch.

    python -m saltflat.bench.taking_turns '{"methods": ["sai", "dp-sgd"], "model": "mlp", "batch_size": 64}'

A step of thousands of rows takes seconds, and a machine with other tenants changes its speed from second to second:
steps that follow one another then differ by a tenth, and hide what is to be measured, a fiftieth. So neither step
waits for the end of the other. Each stops when all its lanes have come to their next loss, the other goes on for one
micro-batch, and so forth, in an order that changes with every turn. The seconds of a step are those of its own turns.
What lanes lose by waiting for one another at every micro-batch, both steps lose.

Two processes of one program need not be equally fast, for reasons of their own such as where their memory lies, and
that would count for one step alone. So each process knows both steps, and in every round they change places.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol

LONGEST_SECONDS = 600.0  # of a turn


class Partner(Protocol):
    """A step that goes on when it is told to."""

    def go(self) -> tuple[float, bool]:
        """Take a turn: how many seconds it was, and whether the step has come to its end."""


class Process(Protocol):
    """Where both steps can be taken, one at a time."""

    def step(self, which: int) -> Partner:
        """The next whole step of this number."""


Pairs = Callable[[int], tuple[list[float], list[float]]]
"""As many rounds as asked for: the seconds of one step in each, and of the other, over both processes."""


def one_pair(partners: Sequence[Partner], number: int) -> list[float]:
    """Seconds of a whole step of each. The number of the pair decides who begins; then the order alternates.

    A step with more turns than the other (two gradients, say) takes the rest of them alone.
    """
    seconds = [0.0] * len(partners)
    going = list(range(len(partners)))
    while going:
        for i in going if number % 2 == 0 else going[::-1]:
            turn, ended = partners[i].go()
            seconds[i] += turn
            if ended:
                going = [other for other in going if other != i]
        number += 1
    return seconds


@contextmanager
def in_turns(method: str, reference: str, model: str, batch_size: int) -> Iterator[Pairs]:
    """Steps of a method and of its reference over the same rows each time, in processes that end with the block."""
    import torch

    sizes = {"model": model, "batch_size": batch_size, "threads": torch.get_num_threads()}
    spec = sizes | {"methods": [method, reference]}
    with ExitStack() as open_processes:
        # What is built first in one process is built last in the other.
        processes = [
            open_processes.enter_context(_started(spec | {"order": order})) for order in ([0, 1], [1, 0])
        ]
        for process in processes:
            process.hear()  # that it is ready
        taken = 0

        def pairs(rounds: int) -> tuple[list[float], list[float]]:
            nonlocal taken
            found = [crossed_over(processes, taken + number) for number in range(rounds)]
            taken += rounds
            return [own for own, _ in found], [other for _, other in found]

        yield pairs


def crossed_over(processes: Sequence[Process], number: int) -> list[float]:
    """Mean seconds of the first and of the second step over both processes: what is slow in one falls on both."""
    first, second = processes
    own, other = one_pair([first.step(0), second.step(1)], number)
    crossed, own_again = one_pair([first.step(1), second.step(0)], number)
    return [(own + own_again) / 2, (other + crossed) / 2]


@dataclass(frozen=True)
class _InAProcess:
    process: subprocess.Popen[str]
    errors: IO[str]

    def step(self, which: int) -> _Step:
        return _Step(self, which)

    def go(self, which: int) -> tuple[float, bool]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{which}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> tuple[float, bool]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            said = (self.errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"a step that was to be timed has failed: {said[:200]}")
        seconds, ended = json.loads(line)
        return seconds, ended


@dataclass(frozen=True)
class _Step:
    place: _InAProcess
    which: int

    def go(self) -> tuple[float, bool]:
        return self.place.go(self.which)


@contextmanager
def _started(spec: dict[str, Any]) -> Iterator[_InAProcess]:
    command = [sys.executable, "-m", "saltflat.bench.taking_turns", json.dumps(spec)]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield _InAProcess(process, errors)
        finally:
            process.kill()


class Turnstile:
    """A loss at which all lanes of a step stop. ``told`` hears of the turn's seconds, and comes back for the next.

    How many lanes there are, and how often each comes, is seen while it stands open. The last losses of a lane that
    comes more often than others do not stop: nobody would come along.
    """

    def __init__(self, loss: Callable[..., Any], told: Callable[[float, bool], Any]) -> None:
        self.loss = loss
        self.told = told
        self.calls: Counter[int] = Counter()
        self.gate: threading.Barrier | None = None
        self.common = 0
        self.since = 0.0

    def __call__(self, *arguments: Any) -> Any:
        lane = threading.get_ident()
        self.calls[lane] += 1
        if self.gate is not None and self.calls[lane] <= self.common:
            self.gate.wait(LONGEST_SECONDS)
        return self.loss(*arguments)

    def close(self, step: Callable[[], Any]) -> None:
        """Watch one step go through, and stop all later ones."""
        self.calls.clear()
        step()
        self.gate = threading.Barrier(len(self.calls), self._pause)
        self.common = min(self.calls.values())

    def whole(self, step: Callable[[], Any]) -> Any:
        """One step, turn by turn; what ``told`` answers at its end, when the next may begin."""
        gc.collect()
        self.calls.clear()
        self.since = time.perf_counter()
        step()
        return self.told(time.perf_counter() - self.since, True)

    def _pause(self) -> None:
        self.told(time.perf_counter() - self.since, False)
        self.since = time.perf_counter()


def _tell(seconds: float, ended: bool) -> str:
    """Say how long the turn was, and hear whose is the next."""
    print(json.dumps([seconds, ended]), flush=True)
    answer = sys.stdin.readline()
    if not answer:  # whoever asked has gone
        os._exit(0)
    return answer


def serve(spec: dict[str, Any]) -> None:
    """Steps without end, each turn when a line comes in; at the beginning of a step, the line says of which method."""
    import torch

    from saltflat.bench.private_loop import loop_of, steps_of
    from saltflat.bench.workload import Workload

    torch.set_num_threads(spec["threads"])
    size = spec["batch_size"]
    ready: dict[int, tuple[Turnstile, Callable[[], None]]] = {}
    for which in spec["order"]:
        turnstile = Turnstile(Workload(spec["model"], 1).loss, _tell)
        step = steps_of(loop_of(spec["methods"][which], spec["model"], size, size, loss=turnstile))
        step()  # an ascent along the previous release needs one
        turnstile.close(step)
        ready[which] = turnstile, step
    asked = _tell(0.0, True)
    while True:
        turnstile, step = ready[int(asked)]
        asked = turnstile.whole(step)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(json.loads(sys.argv[1]))
