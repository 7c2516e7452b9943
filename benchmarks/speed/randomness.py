"""What noise costs in each tier of randomness: nanoseconds a coordinate, and a step of training beside them.

python benchmarks/speed/randomness.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import saltflat as sf
from saltflat.mechanism.exact import Grid, noised_on_grid
from saltflat.mechanism.noise import noised
from saltflat.mechanism.randomness import TIERS, Randomness

COORDINATES = 1 << 20
SIGMA = 4.4627


def best_of(times: int, work: Callable[[], object]) -> float:
    """The quickest of several runs, in seconds: what the machine does when nothing disturbs it."""
    found = []
    for _ in range(times):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def noise(tier: str) -> float:
    """Nanoseconds to noise one coordinate of a float32 sum."""
    source = Randomness.fresh(tier=tier).noise
    if tier == "exact":
        total, grid = {"w": torch.zeros(COORDINATES, dtype=torch.int64)}, Grid.for_clip_norm(1.0)
        return 1e9 / COORDINATES * best_of(7, lambda: noised_on_grid(total, grid, SIGMA, 1.0, source))
    zeros = {"w": torch.zeros(COORDINATES)}
    return 1e9 / COORDINATES * best_of(7, lambda: noised(zeros, SIGMA, 1.0, source))


def step(tier: str) -> float:
    """Milliseconds for one step of a small model on digits, 256 rows expected."""
    data = sf.data.load("digits")
    plan = sf.plans.dp_sgd(noise_multiplier=SIGMA, delta=1e-4, population=1437, batch_size=256, steps=10)
    steps = sf.steps(sf.models.build("mlp"), data.train, plan, randomness=tier)
    next(steps)
    return 1e3 * best_of(6, lambda: next(steps))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("tier    ns a coordinate  ms a step (mlp on digits, 256 rows)")
    for name in TIERS:
        print(f"{name:6s}  {noise(name):15.1f}  {step(name):9.1f}")
