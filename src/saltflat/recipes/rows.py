"""Rows of features: their length, and where they are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from saltflat.models.kept import content_key, kept

LENGTH = 10.0
"""Of every row. The bias of a linear layer reads a constant of 1, so it takes a hundredth of a gradient's square."""

Progress = Callable[[int, int], None]


def unit(rows: Tensor) -> Tensor:
    """Every row at length one; one of zeros stays."""
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)


def computed_or_kept(
    about: Sequence[object],
    of: Tensor,
    cache_dir: str | os.PathLike[str] | None,
    compute: Callable[[], Tensor],
) -> Tensor:
    """What ``compute`` gives, or gave before: kept under a kind and settings, ``about``, and the content ``of``."""
    if cache_dir is None:
        return compute()
    file = Path(cache_dir) / f"{about[0]}-{content_key(list(about), of)}.safetensors"
    return kept(file, compute).to(of.device)
