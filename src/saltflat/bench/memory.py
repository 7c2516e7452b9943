"""The section `memory`: what each engine needs, in a fresh process each time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from saltflat.bench.fresh_process import PRIVATE_STEP
from saltflat.bench.processes import FailedProcessError, answer_of
from saltflat.bench.settings import Settings


@dataclass(frozen=True)
class Cell:
    """One figure of memory: an engine on a model, over some examples, in micro-batches of a size.

    ``engine`` is a contender of `saltflat.bench.contenders.by_name`, or ``"private step"``: the whole step of
    DP-SGD over a logical batch of ``examples``, taken ``steps`` times, after ``early`` small batches.
    """

    engine: str
    model: str
    examples: int
    micro_batch: int | None = None
    steps: int = 1
    early: int = 0


# Below this, pages and allocator decide, not the engine: such a model's ratio is shown and not judged.
LEAST_BYTES = 8 * 2**20

Measure = Callable[[Cell, int], dict[str, Any]]


def in_fresh_processes(cell: Cell, repeats: int) -> dict[str, Any]:
    """The median over several processes of what `saltflat.bench.fresh_process` finds, or why it could not."""
    import torch

    spec = asdict(cell) | {"threads": torch.get_num_threads()}
    try:
        peaks = [answer_of("saltflat.bench.fresh_process", spec)["peak_bytes"] for _ in range(repeats)]
    except FailedProcessError as error:
        reason = "not installed" if "ModuleNotFoundError" in str(error) else str(error)[:200]
        return {**asdict(cell), "peak_bytes": None, "reason": reason}
    return {**asdict(cell), "peak_bytes": statistics.median(peaks), "peaks": peaks}


def of_model(model: str, settings: Settings, measure: Measure = in_fresh_processes) -> dict[str, Any]:
    """One model: saltflat, the ordinary step and Opacus at the same micro-batch, and saltflat's own choice."""
    size = min(settings.memory_micro_batch, settings.memory_examples)
    engines = ["saltflat", "ordinary", *(("opacus hooks", "opacus ghost") if settings.memory_peers else ())]
    cells = {name: Cell(name, model, settings.memory_examples, size) for name in engines}
    if settings.memory_peers:
        cells["saltflat, automatic"] = Cell("saltflat", model, settings.memory_examples)
    # The others stand beside the two that are judged for comparison, and each takes long to import.
    repeats = {name: settings.memory_repeats if name in ("saltflat", "ordinary") else 1 for name in cells}
    found = {name: measure(cell, repeats[name]) for name, cell in cells.items()}
    return {
        "model": model,
        "micro_batch": size,
        "cells": found,
        "ratio": ratio(found["saltflat"], found["ordinary"]),
        "judged": (found["ordinary"]["peak_bytes"] or 0) >= LEAST_BYTES,
    }


def of_logical_batches(settings: Settings, measure: Measure = in_fresh_processes) -> dict[str, Any]:
    """Whole private steps over a small and a large logical batch: means over many processes, in turn.

    As many rows with both: two lanes seldom need the most at the same moment, and more rows are more such moments.
    Which moments they meet in is chance, and processes of one size differ by a twentieth: so there are many, and
    what else the machine does meets both sizes.
    """
    most = max(settings.memory_batches)
    cells = [
        Cell(PRIVATE_STEP, settings.step_model, batch, steps=most // batch, early=settings.memory_early)
        for batch in settings.memory_batches
    ]
    found = [[measure(cell, 1) for cell in cells] for _ in range(settings.memory_pairs)]
    small, large = map(mean, zip(*found))
    return {
        "model": settings.step_model,
        "batches": list(settings.memory_batches),
        "cells": [small, large],
        "ratio": ratio(large, small),
    }


def mean(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One cell of several measurements of the same: their mean, or the first that could not be measured.

    >>> mean([{"peak_bytes": 30}, {"peak_bytes": 20}])
    {'peak_bytes': 25.0, 'peaks': [30, 20]}
    """
    peaks = [one["peak_bytes"] for one in found]
    if None in peaks:
        return found[peaks.index(None)]
    return {**found[0], "peak_bytes": statistics.fmean(peaks), "peaks": peaks}


def ratio(numerator: dict[str, Any], denominator: dict[str, Any]) -> float | None:
    """How many times as much memory, or None where one of the two could not be measured.

    >>> ratio({"peak_bytes": 30}, {"peak_bytes": 20}), ratio({"peak_bytes": None}, {"peak_bytes": 20})
    (1.5, None)
    """
    above, below = numerator["peak_bytes"], denominator["peak_bytes"]
    return None if above is None or not below else above / below
