"""What public data does in a private step: which rows, which directions, and what becomes of the release.

Everything here is a function of public rows and of weights that were released. Batches of public rows are drawn
by a stream of their own, fixed by a key and the number of the step: the same for all micro-batches, and the same
again when a run goes on after a crash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from saltflat.plan import AdaDps

Vectors = Mapping[str, Tensor]


def public_rows(rows: int, size: int, key: str, step: int, count: int = 1) -> list[Tensor]:
    """``count`` batches of public rows for a step, without repetition as far as there are rows enough.

    >>> one, two = public_rows(5, 2, "key", step=1, count=2)
    >>> len(set(one.tolist() + two.tolist()))
    4
    """
    seed = int.from_bytes(hashlib.sha256(f"{key}:{step}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    size = min(size, rows)
    if size * count <= rows:
        return list(torch.randperm(rows, generator=generator)[: size * count].split(size))
    return [torch.randperm(rows, generator=generator)[:size] for _ in range(count)]


def mixing_weight(step: int, steps: int) -> float:
    """α_t = cos(πt/2T) of mirror descent, t counted from zero: from the private gradient to the public one.

    >>> mixing_weight(0, 10), round(mixing_weight(9, 10), 3)
    (1.0, 0.156)
    """
    return math.cos(math.pi * step / (2 * steps))


def mixed(release: Vectors, public: Vectors, weight: float) -> dict[str, Tensor]:
    """α · release + (1 − α) · public gradient: post-processing."""
    return {name: weight * part + (1 - weight) * public[name] for name, part in release.items()}


def added(release: Vectors, public: Vectors) -> dict[str, Tensor]:
    """The release of differences, seen from the origin again."""
    return {name: part + public[name] for name, part in release.items()}


def second_moment(before: Vectors | None, public: Vectors, part: AdaDps) -> dict[str, Tensor]:
    """v ← β v + (1 − β) g_pub², from v = g_pub² on."""
    if before is None:
        return {name: grad.square() for name, grad in public.items()}
    return {
        name: part.decay * before[name] + (1 - part.decay) * grad.square() for name, grad in public.items()
    }


def preconditioner(moment: Vectors, part: AdaDps) -> dict[str, Tensor]:
    """1/(√v + stability), by which gradients are multiplied before the clip."""
    return {name: 1 / (v.sqrt() + part.stability) for name, v in moment.items()}
