"""Poisson sampling as a batch sampler: every example joins each batch independently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from saltflat.compat.opacus.over_ranks import own_generator
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


class DistributedUniformWithReplacementSampler(UniformWithReplacementSampler):
    """One rank's part of batches in which each of ``total_size`` examples is with probability ``sample_rate``.

    Guarantees: the ranks' shards are disjoint and hold every example, and the coins of different ranks are
    independent, also where all ranks began with one seed. So what they draw together is a Poisson sample of the whole
    set. A rank whose part is empty hands out an empty batch: all ranks take the same number of steps. (In Opacus it
    hands out none, and the others wait for it.)

    The shards stay the same in every epoch. Which they are does not change the law of the batch, and ranks that
    count epochs differently never share an example. All ranks make it, with the same arguments.
    """

    def __init__(
        self,
        *,
        total_size: int,
        sample_rate: float,
        shuffle: bool = True,
        shuffle_seed: int = 0,
        steps: int | None = None,
        generator: Any = None,
    ) -> None:
        if total_size <= 0:
            raise ValueError(
                f"total_size should be a positive integer value, but got total_size={total_size}"
            )
        self.total_size, self.shuffle, self.shuffle_seed = total_size, shuffle, shuffle_seed
        self.num_replicas, self.rank = dist.get_world_size(), dist.get_rank()
        self.epoch = 0
        order = torch.arange(total_size)
        if shuffle:
            order = torch.randperm(total_size, generator=torch.Generator().manual_seed(shuffle_seed))
        self._own = order[self.rank :: self.num_replicas]
        super().__init__(
            num_samples=max(1, len(self._own)), sample_rate=sample_rate, generator=generator, steps=steps
        )
        self.num_samples, self.num_batches = len(self._own), self.steps

    @property
    def generator(self) -> Any:
        """Where this rank's coins come from. Setting it is for all ranks: each then has a source of its own."""
        return self._generator

    @generator.setter
    def generator(self, generator: Any) -> None:
        self._generator = own_generator(generator)

    def __iter__(self) -> Iterator[Any]:
        for chosen in super().__iter__():
            yield self._own[chosen]  # a tensor, as in Opacus

    def set_epoch(self, epoch: int) -> None:
        """Note the number of an epoch; the shards stay what they are."""
        self.epoch = epoch
