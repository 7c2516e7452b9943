"""The papers' algorithms, written out: one example at a time, torch only, nothing from saltflat.

Random numbers are drawn in the order in which a private step draws them, from generators with the same
seeds: who joins the batch, then the noise of each query, one tensor after the other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Vector = list[Tensor]
TAU = 1e-12


def norm(vector: Vector) -> float:
    """One norm over all tensors."""
    return math.sqrt(sum(float((part**2).sum()) for part in vector))


def flat(gradient: Vector, clip_norm: float) -> Vector:
    """g · min(1, C/‖g‖)."""
    length = norm(gradient)
    return [part * min(1.0, clip_norm / length) for part in gradient] if length else gradient


def automatic(gradient: Vector, clip_norm: float) -> Vector:
    """C · g/(‖g‖ + 0.01)."""
    return [clip_norm * part / (norm(gradient) + 0.01) for part in gradient]


def per_layer(gradient: Vector, clip_norm: float) -> Vector:
    """Weight and bias of each of two layers to C/√2."""
    share = clip_norm / math.sqrt(2)
    return [*flat(gradient[:2], share), *flat(gradient[2:], share)]


@dataclass
class Reference:
    """A model, its data, and the two streams of chance of a private run with this seed."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    rate: float
    batch_size: float
    seed: int = 3
    clip: Callable[[Vector, float], Vector] = flat
    units: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model)
        self.weights = list(self.model.parameters())
        self.units = self.units or [[row] for row in range(len(self.targets))]
        self.sampling = torch.Generator().manual_seed(2 * self.seed)
        self.noise = torch.Generator().manual_seed(2 * self.seed + 1)
        self.momentum_buffer: Vector | None = None

    def batch(self) -> list[int]:
        """Each unit on its own, with probability ``rate``."""
        drawn = torch.rand(len(self.units), dtype=torch.float64, generator=self.sampling)
        return [unit for unit, number in enumerate(drawn.tolist()) if number < self.rate]

    def gradient(self, row: int, image: Tensor | None = None) -> Vector:
        """The gradient of one row's cross-entropy."""
        inputs = self.inputs[row] if image is None else image
        loss = F.cross_entropy(self.model(inputs[None]), self.targets[row][None])
        return list(torch.autograd.grad(loss, self.weights))

    def unit_gradient(self, unit: int) -> Vector:
        """The mean over the rows of a unit."""
        rows = [self.gradient(row) for row in self.units[unit]]
        return [torch.stack(parts).mean(0) for parts in zip(*rows)]

    def clipped_sum(self, batch: list[int], clip_norm: float, at: Vector | None = None) -> Vector:
        """Σ clip(∇ℓ_i) with the weights moved by ``at``, which are put back."""
        before = [weight.detach().clone() for weight in self.weights]
        self.move(at)
        total = [torch.zeros_like(weight) for weight in before]
        for unit in batch:
            total = [a + b for a, b in zip(total, self.clip(self.unit_gradient(unit), clip_norm))]
        with torch.no_grad():
            for weight, value in zip(self.weights, before):
                weight.copy_(value)
        return total

    def release(self, total: Vector, noise_multiplier: float, clip_norm: float) -> Vector:
        """(sum + N(0, σ²C²)) / B."""
        released = []
        for part in total:
            noise = torch.empty(part.shape, dtype=torch.float64)
            noise.normal_(0.0, noise_multiplier * clip_norm, generator=self.noise)
            released.append((part + noise) / self.batch_size)
        return released

    def move(self, by: Vector | None, factor: float = 1.0) -> None:
        """Add a multiple of a vector to the weights."""
        with torch.no_grad():
            for weight, part in zip(self.weights, by or []):
                weight.add_(part, alpha=factor)

    def sgd(self, release: Vector, learning_rate: float, momentum: float) -> None:
        """v ← γ v + g; w ← w − η v."""
        before = self.momentum_buffer
        self.momentum_buffer = (
            release if before is None else [momentum * v + g for v, g in zip(before, release)]
        )
        self.move(self.momentum_buffer, -learning_rate)


def upward(direction: Vector | None, rho: float) -> Vector | None:
    """ρ g/(‖g‖ + τ)."""
    if direction is None:
        return None
    length = norm(direction) + TAU
    return [rho * part / length for part in direction]


class Adam:
    """Adam by hand: m̂/(√v̂ + 1e-8); with a noise deviation, m̂/√max(v̂ − ν̂, 1e-8) (DP-AdamBC)."""

    def __init__(self, corrected: bool = False) -> None:
        self.corrected, self.step = corrected, 0
        self.first: Vector = []
        self.second: Vector = []
        self.noise = 0.0

    def update(self, run: Reference, release: Vector, learning_rate: float, deviation: float) -> None:
        """One step with the release; ``deviation`` is that of the noise in each of its coordinates."""
        self.step += 1
        self.first = self.first or [torch.zeros_like(part) for part in release]
        self.second = self.second or [torch.zeros_like(part) for part in release]
        self.first = [0.9 * m + 0.1 * g for m, g in zip(self.first, release)]
        self.second = [0.999 * v + 0.001 * g * g for v, g in zip(self.second, release)]
        self.noise = 0.999 * self.noise + 0.001 * deviation**2
        early, late = 1 - 0.9**self.step, 1 - 0.999**self.step
        for weight, m, v in zip(run.weights, self.first, self.second):
            if self.corrected:
                scale = torch.clamp(v / late - self.noise / late, min=1e-8).sqrt()
            else:
                scale = (v / late).sqrt() + 1e-8
            with torch.no_grad():
                weight.sub_(learning_rate * (m / early) / scale)
