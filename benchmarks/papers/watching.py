"""Callbacks of the experiments that survive a run that is cut off: they keep what they saw in a file beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from saltflat.geometry import Flatness
from saltflat.training.evaluate import with_weights
from saltflat.training.step import Step

SIDE_EVERY = 60.0
"""Seconds between two writings of the side averages."""


class SideAverages:
    """A callback: the mean of every c-th iterate after ``first`` steps, for several cycle lengths c at once.

    Iterates are released, so all averages of one run are free. They are written beside the run every minute and at
    its end. A run that is cut off and goes on misses the iterates since; ``missed`` counts them.
    """

    def __init__(self, model: nn.Module, cycles: list[int], first: int, path: Path) -> None:
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.cycles, self.first, self.path = cycles, first, path
        self.means: dict[int, dict[str, Tensor]] = {}
        self.counts = dict.fromkeys(cycles, 0)
        self.last, self.missed, self.written = first, 0, time.monotonic()
        if path.exists():
            self._read()

    def __call__(self, step: Step) -> None:
        """Take the iterate into the means of all cycles that end with this step."""
        since = step.number - self.first
        if since <= 0:
            return
        self.missed += since - (self.last - self.first) - 1
        self.last = step.number
        for cycle in self.cycles:
            if since % cycle == 0:
                self._take(cycle)
        if time.monotonic() - self.written >= SIDE_EVERY or step.number == step.steps:
            self.write()

    def _take(self, cycle: int) -> None:
        self.counts[cycle] += 1
        now = {name: weight.detach() for name, weight in self.weights.items()}
        if cycle not in self.means:
            self.means[cycle] = {name: value.clone() for name, value in now.items()}
            return
        for name, value in now.items():
            self.means[cycle][name].lerp_(value, 1 / self.counts[cycle])

    def write(self) -> None:
        """Everything into one file, which replaces the last one."""
        tensors = {f"{c}/{name}": value for c, mean in self.means.items() for name, value in mean.items()}
        facts = {"counts": self.counts, "last": self.last, "missed": self.missed}
        scratch = self.path.with_suffix(".partial")
        save_file(tensors, scratch, {"facts": json.dumps(facts)})
        scratch.replace(self.path)
        self.written = time.monotonic()

    def _read(self) -> None:
        for key, value in load_file(self.path).items():
            cycle, _, name = key.partition("/")
            self.means.setdefault(int(cycle), {})[name] = value
        with safe_open(self.path, "pt") as opened:
            facts = json.loads(opened.metadata()["facts"])
        self.counts = {int(cycle): count for cycle, count in facts["counts"].items()}
        self.last, self.missed = facts["last"], facts["missed"]

    def measured(self, model: nn.Module, measure: Callable[[], float]) -> dict[str, float]:
        """A measure of the model with each of the means as its weights."""
        found = {}
        for cycle, mean in sorted(self.means.items()):
            with with_weights(model, mean):
                found[str(cycle)] = measure()
        return found


class KeptFlatness:
    """A callback around `Flatness` that writes every row down, so that a run that goes on has all of them."""

    def __init__(self, flatness: Flatness, path: Path) -> None:
        self.flatness, self.path = flatness, path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]

    def __call__(self, step: Step) -> None:
        """Let it measure, and keep what it found."""
        before = len(self.flatness.history)
        self.flatness(step)
        for row in self.flatness.history[before:]:
            self.rows.append(row)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
