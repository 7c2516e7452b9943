"""A bench as a list of tasks: what to measure, under which name to keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from saltflat.bench import engines, growth, memory, private_loop
from saltflat.bench.settings import Settings

LOGICAL = "logical batch"


@dataclass(frozen=True)
class Task:
    """One thing to measure. ``section`` and ``key`` are where its result is kept."""

    section: str
    key: str
    measure: Callable[[], dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.section}: {self.key}"


def tasks(settings: Settings) -> list[Task]:
    """Everything that the settings ask for, in the order of the report."""
    return [task for task in _all(settings) if task.section in settings.sections]


def _all(settings: Settings) -> Iterator[Task]:
    model, batch, rounds = settings.step_model, settings.step_batch, settings.method_rounds
    for name in settings.models:
        apart = partial(engines.compare_apart, name, settings.examples, settings.rounds)
        yield Task("engines", name, apart)
    whole = partial(private_loop.whole_step, model, batch, settings.step_population, rounds)
    yield Task("step", "dp-sgd", whole)
    for method in settings.methods:
        # Two gradients a step: one percent more or less decides nothing there.
        most = rounds if method == "dp-sam" else settings.method_rounds_most
        beside = partial(private_loop.method_beside_dp_sgd, method, model, batch, rounds, most)
        yield Task("methods", method, beside)
    yield Task("memory", LOGICAL, partial(memory.of_logical_batches, settings))
    for name in settings.models:
        yield Task("memory", name, partial(memory.of_model, name, settings))
    for size in sorted({*settings.growth_batches, *settings.growth_memory_batches}):
        yield Task("growth", f"{growth.BATCH} {size}", partial(growth.against_batch, size, settings))
    for width in settings.growth_widths:
        key = f"{growth.PARAMETERS} × {width:g}"
        yield Task("growth", key, partial(growth.against_parameters, width, settings))
    for size in settings.growth_micro_batches:
        yield Task(
            "growth", f"{growth.MICRO_BATCH} {size}", partial(growth.against_micro_batch, size, settings)
        )
