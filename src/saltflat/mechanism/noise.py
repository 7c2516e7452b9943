"""Gaussian noise, drawn in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def noised(
    total: Mapping[str, Tensor], standard_deviation: float, divisor: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """``(total + N(0, sd²)) / divisor``, every coordinate with noise of its own: the release.

    ``standard_deviation`` is noise multiplier times clip norm; ``divisor`` is the *expected* batch size, a
    public constant. The sum is noised, not the mean. Drawn in float64: float32 normals never exceed 5.77
    standard deviations, which alone can cost more than δ.

    >>> noised({"w": torch.zeros(2)}, 0.0, 4.0, torch.Generator())
    {'w': tensor([0., 0.])}
    """
    release = {}
    for name, value in total.items():
        if standard_deviation == 0:
            release[name] = value / divisor
            continue
        noise = torch.empty(value.shape, dtype=torch.float64, device=value.device)
        noise.normal_(0.0, standard_deviation, generator=generator)
        release[name] = noise.add_(value).div_(divisor).to(value.dtype)
    return release
