"""The section `growth`: how time and memory follow the logical batch, the parameters and the micro-batch."""

from __future__ import annotations

import statistics
import warnings
from typing import Any

from saltflat.bench.contenders import PRIVATE_PEERS, by_name
from saltflat.bench.engines import absent, reason_of
from saltflat.bench.fresh_process import PRIVATE_STEP
from saltflat.bench.memory import Cell, Measure, in_fresh_processes
from saltflat.bench.private_loop import loop_of, steps_of
from saltflat.bench.settings import Settings
from saltflat.bench.timing import Step, interleaved
from saltflat.bench.workload import SCALED, RepeatedRows, Workload, parameter_count

PHYSICAL = 64  # of the ordinary step where something else grows
BATCH, PARAMETERS, MICRO_BATCH = "logical batch", "parameters", "micro-batch"
AXES = (BATCH, PARAMETERS, MICRO_BATCH)


def against_batch(batch: int, settings: Settings, measure: Measure = in_fresh_processes) -> dict[str, Any]:
    """A whole private step, and the ordinary gradient over as many rows. Memory also where time takes long."""
    found: dict[str, Any] = {"axis": BATCH, "at": batch, "seconds": {}, "bytes": {}}
    if batch in settings.growth_batches:
        loop = loop_of("dp-sgd", settings.step_model, batch, batch)
        steps = {"saltflat": steps_of(loop), "ordinary": _over_repeated_rows(settings.step_model, batch)}
        found["seconds"] = _medians(steps, settings.growth_rounds)
    if batch in settings.growth_memory_batches:
        found["bytes"]["saltflat"] = measure(Cell(PRIVATE_STEP, settings.step_model, batch), 1)["peak_bytes"]
    return found


def against_parameters(
    width: float, settings: Settings, measure: Measure = in_fresh_processes
) -> dict[str, Any]:
    """The same layers, narrower and wider."""
    model = f"{SCALED}{width:g}"
    found = _side_by_side(model, settings.growth_width_examples, PHYSICAL, settings, measure)
    return {"axis": PARAMETERS, "at": parameter_count(model), "width": width, **found}


def against_micro_batch(
    size: int, settings: Settings, measure: Measure = in_fresh_processes
) -> dict[str, Any]:
    """The same rows in smaller and larger pieces."""
    examples = max(settings.growth_micro_batches)
    found = _side_by_side(settings.step_model, examples, size, settings, measure)
    return {"axis": MICRO_BATCH, "at": size, **found}


def _side_by_side(
    model: str, examples: int, physical: int, settings: Settings, measure: Measure
) -> dict[str, Any]:
    """Seconds and bytes of saltflat, the ordinary step and Opacus's hooks at one micro-batch."""
    work = Workload(model, examples)
    physical = min(physical, examples)
    steps: dict[str, Step] = {}
    missing: list[dict[str, str]] = []
    with warnings.catch_warnings(action="ignore"):  # the peers' own
        for family, mode in (("saltflat", ""), ("ordinary", ""), ("opacus", "hooks")):
            engine = by_name(family, mode, physical)
            try:
                step = engine.step(work)
                step()
                steps[f"{family} {mode}".strip()] = step
            except Exception as error:
                if family not in PRIVATE_PEERS:
                    raise
                missing.append(absent(engine, reason_of(error)))
        seconds = _medians(steps, settings.growth_rounds)
    return {
        "seconds": seconds,
        "bytes": {
            name: measure(Cell(name, model, examples, physical), 1)["peak_bytes"]
            for name in steps
            if settings.memory_peers or name in ("saltflat", "ordinary")
        },
        "missing": missing,
        "examples": examples,
    }


def _medians(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    # interleaved() itself runs every step once before it counts
    return {name: statistics.median(times) for name, times in interleaved(steps, rounds).items()}


def _over_repeated_rows(model: str, batch: int) -> Step:
    """The ordinary gradient over as many rows as a logical batch has, fetched as training fetches them."""
    import torch

    work = Workload(model, min(batch, 512))
    source = RepeatedRows(work.inputs, work.targets, batch)
    built = work.fresh_model()

    def step() -> None:
        built.zero_grad(set_to_none=True)
        for indices in torch.arange(batch).split(PHYSICAL):
            rows, labels = source.fetch(indices)
            work.loss(built(rows), labels).sum().backward()

    return step
