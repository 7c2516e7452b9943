"""The section `engines`: one model, every engine that can run it, one process, taking turns.

    python -m saltflat.bench.engines '{"model": "mlp", "examples": 64, "rounds": 3}'

Each model has a process of its own, as it would have in use: what engines of other models have left in memory then
decides nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from saltflat import heap
from saltflat.bench.contenders import (
    CHANNELS_LAST,
    ORDINARY,
    OURS,
    PRIVATE_PEERS,
    Contender,
    Sums,
    contenders,
    floor,
    one_by_one,
    ordinary,
    relative_error,
    saltflat,
    sums_of,
)
from saltflat.bench.processes import answer_of
from saltflat.bench.timing import Step, beside, interleaved, paired, seconds_of
from saltflat.bench.workload import Workload, parameter_count

# Beyond this the private step does not compute what the ordinary one does, and its speed means nothing.
LARGEST_ERROR = 1e-4
CHECKED_UNCLIPPED = 64
# A peer's sum may round otherwise, in float32, and Opacus adds 1e-6 to every norm.
LARGEST_DIFFERENCE = 1e-2
CHECKED_ONE_BY_ONE = 16  # examples: a backward pass each
WARM_UP_SECONDS = 2.0
CLEARLY_SLOWER = 2.0


def compare_apart(model: str, examples: int, rounds: int) -> dict[str, Any]:
    """`compare` in a fresh process, with as many threads as this one."""
    spec = {"model": model, "examples": examples, "rounds": rounds, "threads": torch.get_num_threads()}
    found: dict[str, Any] = answer_of("saltflat.bench.engines", spec)
    return found


def compare(model: str, examples: int, rounds: int) -> dict[str, Any]:
    """Seconds of every engine on one model, what saltflat's ratio to each is, and whether its sums are right.

    ``ratios`` are saltflat's throughput over that of the fastest setting of each family, so more than 1 means
    that saltflat is faster. ``missing`` lists the engines that could not take part, with the reason.
    """
    work = Workload(model, examples)
    with warnings.catch_warnings(action="ignore"):  # the peers' own
        checked = check(work)
        lineup = taking_part(contenders(examples), work)
        families = {one.name: one.family for one in contenders(examples)}
        lineup.leave_out_slower(families)
        times = interleaved(lineup.steps, rounds, lineup.seconds, lineup.get_ready)
        as_with_saltflat()
        share = floor_share(work, lineup.steps[OURS], rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    fastest = fastest_of(medians, families)
    yardstick = times[fastest[ORDINARY]]
    return {
        "model": model,
        "parameters": parameter_count(model),
        "examples": examples,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "fastest": fastest,
        "ratios": {
            family: asdict(paired(times[name], times[OURS]))
            for family, name in fastest.items()
            if family != OURS
        },
        "contenders": {
            name: {
                "family": families[name],
                "seconds": medians[name],
                "times": values,
                "throughput": asdict(paired(yardstick, values)),
                "difference": lineup.differences.get(name),
            }
            for name, values in times.items()
        },
        "floor": share,
        "missing": lineup.missing,
        **checked,
    }


def floor_share(work: Workload, ours: Step, rounds: int) -> dict[str, float]:
    """How much of saltflat's step is left where gradients of matrices and kernels cost nothing."""
    least = floor(work)
    least(), least()  # the second step is warm
    return asdict(paired(*beside(least, ours, rounds)))


def check(work: Workload) -> dict[str, float]:
    """The relative errors of saltflat's sums: unclipped against the ordinary step, clipped one by one.

    Both in float64. In float32 a rounding can decide which of two pixels a maximum takes, or on which side of
    zero a unit is, and gradients that are both right then differ by some thousandths.
    """
    long = Workload(work.model, min(work.examples, CHECKED_UNCLIPPED), torch.float64)
    unclipped = saltflat(long, clip_norm=float("inf"))()
    few = Workload(work.model, min(work.examples, CHECKED_ONE_BY_ONE), torch.float64)
    return {
        "gradient_error": relative_error(unclipped, sums_of(ordinary(long, long.examples)())),
        "clipped_error": relative_error(saltflat(few)(), one_by_one(few)),
    }


def is_right(result: Mapping[str, Any]) -> bool:
    """Whether both sums of a model's result are what they should be."""
    return bool(result["gradient_error"] <= LARGEST_ERROR and result["clipped_error"] <= LARGEST_ERROR)


@dataclass
class Lineup:
    """Who takes part: steps that are warm, roughly how long each takes, who is missing and why, and how far
    each peer's sum is from saltflat's."""

    steps: dict[str, Step] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    missing: list[dict[str, str]] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    previous: str | None = None

    def get_ready(self, name: str) -> None:
        """The allocator as the engine would have it in a process of its own, and as its last step left it."""
        if name != self.previous:
            (as_with_saltflat if name == OURS else as_without_saltflat)()
            self.steps[name]()
        self.previous = name

    def leave_out_slower(self, families: Mapping[str, str]) -> None:
        """Only the fastest setting of a peer counts: one that took far longer to warm up is not timed again.

        The ordinary step is always timed in all its settings.
        """
        for name in [name for name in self.steps if families[name] in PRIVATE_PEERS]:
            rivals = [one for one in self.steps if families[one] == families[name]]
            best = min(rivals, key=lambda one: self.seconds[one])
            if self.seconds[name] > CLEARLY_SLOWER * self.seconds[best]:
                reason = f"slower than {best}: {self.seconds[name]:.2g} s against {self.seconds[best]:.2g} s"
                self.missing.append({"name": name, "family": families[name], "reason": reason})
                del self.steps[name]


def taking_part(engines: Sequence[Contender], work: Workload) -> Lineup:
    """Build and warm up the engines, and compare what they give.

    A peer may fail in any way it likes: it is listed, and the others go on. Ordinary torch may not.
    """
    lineup = Lineup()
    ours: Sums = {}
    for engine in engines:
        # As it will be timed, because who is clearly slower is decided here.
        (as_with_saltflat if engine.family == OURS else as_without_saltflat)()
        try:
            step = engine.step(work)
            started = time.perf_counter()
            sums = sums_of(step())
            seconds = time.perf_counter() - started
            # What takes long is warm after one step. saltflat may still have been choosing its ways.
            if seconds < WARM_UP_SECONDS or engine.family == OURS:
                seconds = seconds_of(step)
        except Exception as error:
            if engine.family not in PRIVATE_PEERS:
                raise
            lineup.missing.append(absent(engine, reason_of(error)))
            continue
        if engine.family == OURS:
            ours = sums
        elif engine.family in PRIVATE_PEERS:
            difference = relative_error(sums, ours)
            if not difference <= LARGEST_DIFFERENCE:
                reason = f"gives another sum (relative difference {difference:.2g})"
                lineup.missing.append(absent(engine, reason))
                continue
            lineup.differences[engine.name] = difference
        lineup.steps[engine.name], lineup.seconds[engine.name] = step, seconds
    return lineup


def absent(engine: Contender, reason: str) -> dict[str, str]:
    """An engine that could not take part."""
    return {"name": engine.name, "family": engine.family, "reason": reason}


def reason_of(error: Exception) -> str:
    """Why a peer could not take part, in one line."""
    if isinstance(error, ImportError):
        return "not installed" if isinstance(error, ModuleNotFoundError) else f"does not import ({error})"
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, NotImplementedError) and lines[0]:
        return lines[0][:200]
    return f"fails on this model: {type(error).__name__}: {lines[0]}".rstrip(": ")[:200]


def fastest_of(medians: Mapping[str, float], families: Mapping[str, str]) -> dict[str, str]:
    """The name of the fastest setting of each family, and over all private peers.

    >>> fastest_of({"a 64": 2.0, "a 256": 1.0}, {"a 64": "ordinary", "a 256": "ordinary"})
    {'ordinary': 'a 256'}
    """
    found: dict[str, str] = {}
    for name in sorted(medians, key=lambda name: medians[name]):
        found.setdefault(families[name], name)
        if families[name] in PRIVATE_PEERS:
            found.setdefault("fastest peer", name)
    order = (OURS, ORDINARY, CHANNELS_LAST, *PRIVATE_PEERS, "fastest peer")
    return {family: found[family] for family in order if family in found}


# Where the C library's thresholds come to rest by themselves once large blocks have been freed (malloc.h).
LARGEST_ON_THE_HEAP = 32 * 2**20
LARGEST_KEPT = 2 * LARGEST_ON_THE_HEAP


def as_without_saltflat() -> None:
    """Give freed memory back from now on, as soon as something is freed.

    saltflat tells the C library to keep freed memory, and that would speed up whatever else runs in the same process.
    So the others are timed as the C library is when nobody has told it anything.
    """
    if heap.keeps_freed_memory():
        heap.set_thresholds(LARGEST_KEPT, LARGEST_ON_THE_HEAP)


def as_with_saltflat() -> None:
    """Keep freed memory again."""
    if heap.keeps_freed_memory():
        heap.set_thresholds(heap.KEPT_BYTES, heap.KEPT_BYTES)


def _serve(spec: dict[str, Any]) -> None:
    torch.set_num_threads(spec["threads"])
    print(json.dumps(compare(spec["model"], spec["examples"], spec["rounds"])))


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
