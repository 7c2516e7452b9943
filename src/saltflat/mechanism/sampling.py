"""Drawing the rows of a batch: Poisson, and truncated Poisson."""

from __future__ import annotations

import torch
from torch import Tensor

from saltflat.errors import InputError
from saltflat.mechanism.randomness import Source
from saltflat.mechanism.streams import CryptographicStream
from saltflat.plan import Sampling, TruncatedPoisson


def check_rows(sampling: Sampling, rows: int) -> None:
    """Refuse more rows than a truncated sampler's declared upper bound: its accounting would not hold."""
    if isinstance(sampling, TruncatedPoisson) and rows > sampling.population:
        raise InputError(
            "population", sampling.population, "an upper bound on the number of rows",
            problem="is less than the data set has, which truncated Poisson sampling does not allow",
            cure="Declare a larger population, or use plain Poisson sampling.",
        )  # fmt: skip


def draw(sampling: Sampling, rows: int, source: Source) -> Tensor:
    """The indices of one batch out of ``rows`` rows; possibly none.

    Guarantees: every row joins independently with probability ``sampling.rate``; a truncated sampler then
    keeps a uniformly random ``cap`` of them. From a generator, uniform numbers are float64, so that the rate is
    met to 2⁻⁵³; from a cryptographic stream it is met to 2⁻⁶⁴, and never exceeded.

    >>> from saltflat.plan import Poisson
    >>> draw(Poisson(10, 10), 10, torch.Generator()).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if isinstance(source, CryptographicStream):
        chosen = source.chosen(rows, sampling.rate)
    else:
        chosen = torch.rand(rows, dtype=torch.float64, generator=source) < sampling.rate
    indices = chosen.nonzero().squeeze(1)
    if isinstance(sampling, TruncatedPoisson) and len(indices) > sampling.cap:
        keep = _shuffled(len(indices), source)[: sampling.cap]
        indices = indices[keep].sort().values
    return indices


def _shuffled(count: int, source: Source) -> Tensor:
    """The numbers below ``count`` in random order."""
    if isinstance(source, CryptographicStream):
        return source.words(count).argsort()
    return torch.randperm(count, generator=source)
