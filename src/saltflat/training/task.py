"""What the leader asks of the other ranks: one header of eight numbers, then what it announces."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

START, SUM, MEASURE, END, STOP = range(1, 6)
"""The weights to begin with; a clipped sum; an evaluation; the end of the run; the end for a reason."""

SHIFT, SCALE = 1, 2
_FORM = struct.Struct("<7qd")


@dataclass(frozen=True)
class Task:
    """One question to all ranks. ``units`` of a batch, ``views`` with weights of their own, parts of a ``frame``.

    >>> Task.read(Task(SUM, 3, units=7, clip_norm=0.1).written()).clip_norm
    0.1
    """

    kind: int
    number: int = 0
    seed: int | None = None
    units: int = 0
    clip_norm: float = 0.0
    on_grid: bool = False
    views: int = 0
    frame: int = 0

    def written(self) -> Tensor:
        """The header as bytes."""
        seed = -1 if self.seed is None else self.seed
        numbers = (self.kind, self.number, seed, self.units, self.on_grid, self.views, self.frame)
        return torch.frombuffer(bytearray(_FORM.pack(*numbers, self.clip_norm)), dtype=torch.uint8)

    @staticmethod
    def blank() -> Tensor:
        """Room for a header that is to come."""
        return torch.zeros(_FORM.size, dtype=torch.uint8)

    @staticmethod
    def read(held: Tensor) -> Task:
        """What `written` wrote."""
        kind, number, seed, units, on_grid, views, frame, clip_norm = _FORM.unpack(bytes(held.tolist()))
        return Task(kind, number, None if seed < 0 else seed, units, clip_norm, bool(on_grid), views, frame)


def seed_of_rank(seed: int, rank: int, number: int) -> int:
    """The seed for what a model draws by itself (dropout, augmentations) on one rank, in one step.

    It has no state, so a seeded test run that goes on draws what it would have drawn. Noise and batches are not
    drawn from it: they are the leader's alone.

    >>> seed_of_rank(1, 1, 5) == seed_of_rank(1, 1, 5), seed_of_rank(1, 1, 5) == seed_of_rank(1, 2, 5)
    (True, False)
    """
    drawn = hashlib.sha256(f"saltflat rank {seed} {rank} {number}".encode()).digest()
    return int.from_bytes(drawn[:7], "little")
