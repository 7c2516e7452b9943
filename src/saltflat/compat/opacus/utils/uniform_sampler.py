"""Poisson sampling as a batch sampler: every example joins each batch independently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from saltflat.mechanism.streams import CryptographicStream


class UniformWithReplacementSampler(Sampler[list[int]]):
    """Batches in which each of ``num_samples`` examples is with probability ``sample_rate``.

    Guarantees: the decisions are independent, and the probability is met to 2⁻⁵³ (Opacus compares float32
    numbers). ``drawn`` counts the batches that were handed out.

    >>> sampler = UniformWithReplacementSampler(num_samples=10, sample_rate=0.5)
    >>> len(sampler), len(list(sampler))
    (2, 2)
    """

    def __init__(
        self, *, num_samples: int, sample_rate: float, generator: Any = None, steps: int | None = None
    ) -> None:
        if num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        self.num_samples, self.sample_rate, self.generator = num_samples, sample_rate, generator
        # round(): 1 / (1 / 49) is 49.00000000000001 or 48.99999999999999, depending on the number
        self.steps = round(1 / sample_rate) if steps is None else steps
        self.drawn = 0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            self.drawn += 1
            yield self._chosen().nonzero().squeeze(1).tolist()

    def _chosen(self) -> torch.Tensor:
        if isinstance(self.generator, CryptographicStream):
            return self.generator.chosen(self.num_samples, self.sample_rate)
        drawn = torch.rand(self.num_samples, dtype=torch.float64, generator=self.generator)
        return drawn < self.sample_rate
