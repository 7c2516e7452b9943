"""Where a method leads, step by step, and whether two ways are the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core_helpers import weights_of
from saltflat.training.step import Loop

STEPS = 12
COMMON: dict[str, Any] = {
    "population": 40, "batch_size": 8, "steps": STEPS, "delta": 1e-3, "noise_multiplier": 2.0,
    "clip_norm": 0.5, "learning_rate": 0.7, "momentum": 0.9,
}  # fmt: skip


def trajectory(loop: Loop) -> list[list[Tensor]]:
    """The weights after each step."""
    return [weights_of(loop.model) for _ in loop]


def assert_same(ours: list[list[Tensor]], theirs: list[list[Tensor]]) -> None:
    """Equal after every step, to the rounding of float64; and not because nothing moved."""
    assert len(ours) == len(theirs) >= 10
    for step, (a, b) in enumerate(zip(ours, theirs)):
        for x, y in zip(a, b):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11, msg=lambda m, s=step: f"step {s}: {m}")
    assert not torch.allclose(ours[0][0], ours[-1][0], atol=1e-3)
