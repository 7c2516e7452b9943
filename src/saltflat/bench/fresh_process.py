"""Run as a process of its own: one engine on one model, and by how much its memory grew.

    python -m saltflat.bench.fresh_process '{"engine": "saltflat", "model": "mlp", "examples": 64}'

What is counted: the highest resident size while the step runs, less the resident size just before. The model,
the rows, and what torch and the engine load when they are first used (code, threads, kernels) are there by
then, because the same engine has run on a tiny model; they are not counted. Activations, per-example records,
buffers, gradients, noise and optimizer state are. A private step reads rows that are repeated out of a few, so
that the rows of a large batch take no memory of their own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HELD_ROWS = 512
EARLY_SIZES = range(128, 352, 7)  # of batches, so that their rests have most of the sizes there are
TINY = ("mlp", 8)
PRIVATE_STEP = "private step"


def resident_bytes() -> int:
    """What this process has in memory now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc: the highest so far is the best there is
        return highest_bytes()


def highest_bytes() -> int:
    """The most that this process ever had in memory, or since `forget_highest`."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def forget_highest() -> None:
    """Start the count of the highest size anew, where the system lets us: imports may have passed it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def give_back_free_memory() -> None:
    """Return what was freed to the system, where the C library can: a step that reuses it would seem to need none."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def growth_of(
    step: Callable[[], Any], times: int = 1, early: Callable[[], Any] | None = None
) -> dict[str, int]:
    """By how many bytes memory grew at most while ``step`` ran, and from where.

    What ``early`` leaves behind counts, what it needed for a while does not.
    """
    gc.collect()
    give_back_free_memory()
    before = resident_bytes()
    if early is not None:
        early()
    forget_highest()
    for _ in range(times):
        step()
    return {"peak_bytes": max(highest_bytes() - before, 0), "before_bytes": before}


def warm_up_torch() -> None:
    """Load what torch loads when it is first used: threads, kernels, code. Far smaller than any workload."""
    import torch
    from torch import nn

    small = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SELU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )  # fmt: skip
    for rows in (torch.rand(8, 3, 8, 8), torch.rand(8, 3, 8, 8).to(memory_format=torch.channels_last)):
        nn.functional.cross_entropy(small(rows), torch.zeros(8, dtype=torch.long)).backward()
    torch.bmm(torch.rand(4, 32, 32), torch.rand(4, 32, 32))


def measure(spec: dict[str, Any]) -> dict[str, int]:
    """The growth of memory that a specification asks for; see `saltflat.bench.memory.Cell`."""
    import torch

    if spec.get("threads"):
        torch.set_num_threads(spec["threads"])
    warm_up_torch()
    prepared(spec | dict(zip(("model", "examples"), TINY)))()
    if spec["engine"] == PRIVATE_STEP:
        early, step = private(spec)
        return growth_of(step, spec.get("steps", 1), early)
    return growth_of(prepared(spec), times=2)


def private(spec: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What a run has behind it after its first steps, and the next step; model and rows are in memory.

    The rest of a batch that fills no micro-batch has another size in every step. Each such size leaves something
    behind, and so does the optimizer after the first: memory rises over the first steps of a run and then stays. A
    large batch is few steps, and would be measured before that. So whole steps over small batches come first.
    """
    import torch

    from saltflat.bench.private_loop import loop_of, steps_of
    from saltflat.training.step import Released

    # Every second row by chance, as in training: batches that are all of one size need less memory.
    loop = loop_of("dp-sgd", spec["model"], 2 * spec["examples"], spec["examples"], held=HELD_ROWS)
    loop.sums.micro_batch = spec.get("micro_batch")
    phase = loop.plan.phase_at(0)

    def early() -> None:
        for size in EARLY_SIZES[: spec.get("early", 0)]:
            gradient, _ = loop.query_here(1, torch.arange(size), phase.sigma, loop.clip_norms.now(phase))
            loop.use(1, phase, Released(gradient))

    return early, steps_of(loop)


def prepared(spec: dict[str, Any]) -> Callable[[], Any]:
    """The step of a specification, with its model and its rows in memory."""
    if spec["engine"] == PRIVATE_STEP:
        return private(spec)[1]
    from saltflat.bench.contenders import by_name
    from saltflat.bench.workload import Workload

    family, _, mode = spec["engine"].partition(" ")
    work = Workload(spec["model"], spec["examples"])
    assert len(work.inputs) == len(work.targets)  # both are made when first asked for: before the count
    return by_name(family, mode, spec.get("micro_batch")).step(work)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(json.loads(sys.argv[1]))))
