"""Where the gradient is taken: a displacement of the weights, from earlier releases only.

The weights are displaced once and put back once per logical step, from a saved copy, so that what follows
starts from exactly the weights that were there, however many micro-batches lay between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saltflat.plan import Ascent
from saltflat.plan.ascents.ascent import Memory, Vectors

# Keeps a zero direction from becoming 0/0; far below any norm that matters.
TAU = 1e-12


def scaled_to(direction: Vectors, rho: float) -> dict[str, Tensor]:
    """``ρ · direction / ‖direction‖``, with one norm over all parameters."""
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in direction.values()]
    scale = rho / (float(torch.linalg.vector_norm(torch.stack(norms))) + TAU)
    return {name: part * scale for name, part in direction.items()}


@dataclass
class Plateau:
    """Notices when a noisy series has stopped falling.

    >>> watch = Plateau(patience=5, warm_up=5)
    >>> any(watch.observe(1.0) for _ in range(30))
    True
    """

    patience: int = 20
    warm_up: int = 20
    decay: float = 0.95
    least_gain: float = 0.02
    smooth: float = 0.0
    best: float = math.inf
    seen: int = 0
    since_best: int = 0

    def observe(self, value: float) -> bool:
        """Take in one value; True once the smoothed series has not improved for ``patience`` values."""
        self.seen += 1
        self.smooth += (value - self.smooth) * max(1 - self.decay, 1 / self.seen)
        if self.seen <= self.warm_up:
            return False
        if self.smooth < self.best - self.least_gain * abs(self.best) or math.isinf(self.best):
            self.best, self.since_best = self.smooth, 0
        else:
            self.since_best += 1
        return self.since_best >= self.patience


@dataclass
class AscentState:
    """What the ascents of a run remember, and whether the automatic ones have been switched off."""

    memory: Memory = field(default_factory=dict)
    switched_off: bool = False
    plateau: Plateau = field(default_factory=Plateau)

    def displacement(self, ascent: Ascent, answer: Vectors | None = None) -> dict[str, Tensor] | None:
        """How far to move the weights before the gradient is taken; None for not at all.

        ``answer`` is what came back from the ascent's own query, if it asks one.
        """
        if ascent.automatic and self.switched_off:
            return None
        found = ascent.direction(self.memory, answer)
        return None if found is None or found[1] == 0 else scaled_to(*found)

    def observe(self, ascent: Ascent, release: Vectors, sharpness: float | None = None) -> None:
        """Remember a release; of an automatic ascent also judge by it whether it goes on.

        The statistic is ⟨release, displacement⟩: to first order, how much the loss rises along the
        displacement, with the release's own noise, which is independent of it. ``sharpness``, measured on
        public data, takes its place when it is given.
        """
        displacement = self.displacement(ascent) if ascent.automatic else None
        if displacement is not None:
            if sharpness is None:
                sharpness = sum(float((release[n] * displacement[n]).sum()) for n in release)
            self.switched_off = self.plateau.observe(sharpness)
        self.memory = ascent.remembered(self.memory, release)


@contextmanager
def displaced(weights: Vectors, displacement: Vectors | None) -> Iterator[None]:
    """The weights moved by ``displacement`` inside the block, and exactly as before after it."""
    if displacement is None:
        yield
        return
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    try:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.add_(displacement[name])
        yield
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name])
