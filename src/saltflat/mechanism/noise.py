"""Gaussian noise in float64: the tiers ``fast`` and ``secure``. `saltflat.mechanism.exact` holds the third."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saltflat.mechanism.randomness import Source
from saltflat.mechanism.streams import CryptographicStream


def gaussian(shape: torch.Size, deviation: float, device: torch.device, source: Source) -> Tensor:
    """Normals with this standard deviation in float64, from the source that is handed in.

    >>> gaussian(torch.Size([2]), 1.0, torch.device("cpu"), torch.Generator()).dtype
    torch.float64
    """
    if isinstance(source, CryptographicStream):
        return source.normals(shape.numel()).mul_(deviation).view(shape).to(device)
    return torch.empty(shape, dtype=torch.float64, device=device).normal_(0.0, deviation, generator=source)


def noised(
    total: Mapping[str, Tensor], standard_deviation: float, divisor: float, source: Source
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
        noise = gaussian(value.shape, standard_deviation, value.device, source)
        release[name] = noise.add_(value).div_(divisor).to(value.dtype)
    return release
