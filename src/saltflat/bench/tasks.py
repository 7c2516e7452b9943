"""A bench as a list of tasks: what to measure, under which name to keep it."""

from __future__ import annotations

from collections.abc import Callable
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
    return [task for section in settings.sections for task in _SECTIONS[section](settings)]


def _engines(settings: Settings) -> list[Task]:
    return [
        Task("engines", model, partial(engines.compare, model, settings.examples, settings.rounds))
        for model in settings.models
    ]


def _step(settings: Settings) -> list[Task]:
    model, batch = settings.step_model, settings.step_batch
    measure = partial(private_loop.whole_step, model, batch, settings.step_population, settings.method_rounds)
    return [Task("step", "dp-sgd", measure)]


def _methods(settings: Settings) -> list[Task]:
    sizes = (settings.step_model, settings.step_batch, settings.method_rounds)
    return [
        Task("methods", method, partial(private_loop.against_dp_sgd, method, *sizes))
        for method in private_loop.METHODS
    ]


def _memory(settings: Settings) -> list[Task]:
    found = [Task("memory", model, partial(memory.of_model, model, settings)) for model in settings.models]
    return [Task("memory", LOGICAL, partial(memory.of_logical_batches, settings)), *found]


def _growth(settings: Settings) -> list[Task]:
    batches = sorted({*settings.growth_batches, *settings.growth_memory_batches})
    axes: list[tuple[str, Any, Any]] = [
        (growth.BATCH, batches, growth.against_batch),
        (growth.PARAMETERS, settings.growth_widths, growth.against_parameters),
        (growth.MICRO_BATCH, settings.growth_micro_batches, growth.against_micro_batch),
    ]
    return [
        Task(
            "growth",
            f"{axis} {'× ' * (axis == growth.PARAMETERS)}{value:g}",
            partial(measure, value, settings),
        )
        for axis, values, measure in axes
        for value in values
    ]


_SECTIONS: dict[str, Callable[[Settings], list[Task]]] = {
    "engines": _engines,
    "step": _step,
    "methods": _methods,
    "memory": _memory,
    "growth": _growth,
}
