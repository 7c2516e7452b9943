"""Large logical batches in small physical ones: each part is clipped and added, noise comes once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Sampler

from saltflat.compat.opacus.data_loader import begun, with_batches
from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer
from saltflat.compat.opacus.utils.uniform_sampler import UniformWithReplacementSampler


class BatchSplittingSampler(Sampler[list[int]]):
    """Cuts each batch of another sampler into even parts of at most ``max_batch_size``.

    Before it hands out a part, it tells the optimizer whether the logical batch goes on after it.
    """

    def __init__(
        self, *, sampler: Any, max_batch_size: int, optimizer: DPOptimizer, loader: Any = None
    ) -> None:
        self.sampler, self.max_batch_size, self.optimizer = sampler, max_batch_size, optimizer
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        begun(self._loader)
        for batch in self.sampler:
            indices = list(batch)
            pieces = max(1, math.ceil(len(indices) / self.max_batch_size))
            each, rest = divmod(len(indices), pieces)
            start = 0
            for piece in range(pieces):
                stop = start + each + (piece < rest)
                self.optimizer.signal_skip_step(do_skip=piece < pieces - 1)
                yield indices[start:stop]
                start = stop

    def __len__(self) -> int:
        if isinstance(self.sampler, BatchSampler):
            expected: float = self.sampler.batch_size
        elif isinstance(self.sampler, UniformWithReplacementSampler):
            expected = self.sampler.sample_rate * self.sampler.num_samples
        else:
            return len(self.sampler)
        return math.ceil(len(self.sampler) * (expected / self.max_batch_size))


def wrap_data_loader(
    *, data_loader: DataLoader[Any], max_batch_size: int, optimizer: DPOptimizer
) -> DataLoader[Any]:
    """A loader like this one that hands out parts of at most ``max_batch_size``."""
    splitting = BatchSplittingSampler(
        sampler=data_loader.batch_sampler,
        max_batch_size=max_batch_size,
        optimizer=optimizer,
        loader=data_loader,
    )
    return with_batches(data_loader, splitting, data_loader.generator)


class BatchMemoryManager:
    """Limits how many examples a forward pass sees; ``optimizer.step()`` waits for the end of a logical batch.

    Guarantees: the release is that of the whole batch, and it is accounted and noised once. What was begun
    and not finished when the block ends is dropped: a half batch is never released as a whole one.
    """

    def __init__(
        self, *, data_loader: DataLoader[Any], max_physical_batch_size: int, optimizer: DPOptimizer
    ) -> None:
        self.data_loader, self.optimizer = data_loader, optimizer
        self.max_physical_batch_size = max_physical_batch_size

    def __enter__(self) -> DataLoader[Any]:
        return wrap_data_loader(
            data_loader=self.data_loader,
            max_batch_size=self.max_physical_batch_size,
            optimizer=self.optimizer,
        )

    def __exit__(self, *_: object) -> None:
        self.optimizer.drop_unfinished()
