"""Settings so small that a bench takes seconds, and results without measuring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from saltflat.bench.memory import Cell
from saltflat.bench.settings import FULL, Settings

TINY: Settings = replace(
    FULL,
    models=("mlp",),
    examples=12,
    rounds=2,
    step_model="mlp",
    step_batch=16,
    step_population=60,
    method_rounds=2,
    memory_examples=8,
    memory_repeats=1,
    memory_batches=(16, 64),
    memory_pairs=4,
    growth_rounds=1,
    growth_batches=(8, 16),
    growth_memory_batches=(8, 32),
    growth_widths=(0.05, 0.1),
    growth_width_examples=4,
    growth_micro_batches=(4, 8),
)


def memory_by_rule(cell: Cell, repeats: int) -> dict[str, Any]:
    """Instead of a fresh process, which takes seconds to import torch: 20 MB, and 1 MB an example at once."""
    at_once = min(cell.micro_batch or 16, cell.examples)
    return {"engine": cell.engine, "peak_bytes": (20 + at_once) * 2**20, "peaks": [0] * repeats}


def ratio(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median}


def engine_result(against_ordinary: float, **peers: float) -> dict[str, Any]:
    """A model's result with saltflat's ratios given: to the ordinary step, and to each peer."""
    families = {"ordinary": against_ordinary, "channels_last": against_ordinary / 2, **peers}
    contenders = {name: against_ordinary / value for name, value in families.items()} | {
        "saltflat": against_ordinary
    }
    fastest = {name: name for name in contenders}
    if peers:
        nearest = min(peers, key=lambda name: peers[name])
        families["fastest peer"], fastest["fastest peer"] = peers[nearest], nearest
    return {
        "model": "some",
        "parameters": 1,
        "examples": 256,
        "rounds": 5,
        "fastest": fastest,
        "ratios": {name: ratio(value) for name, value in families.items()},
        "contenders": {
            name: {
                "family": name,
                "seconds": 1 / value,
                "times": [],
                "throughput": ratio(value),
                "difference": None,
            }
            for name, value in contenders.items()
        },
        "floor": ratio(0.5),
        "missing": [],
        "gradient_error": 1e-6,
        "clipped_error": 1e-6,
    }
