"""Loaders: Poisson sampling with empty batches, and loaders of fixed batches whose passes are counted."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from torch.utils.data._utils.collate import default_collate

from saltflat.compat.opacus.over_ranks import repeats
from saltflat.compat.opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from saltflat.errors import PrivacyWarning

logger = logging.getLogger(__name__)


class CollateFnWithEmpty:
    """A collate function that also makes batches of no examples.

    An empty batch has the form of the first batch that was seen, with no rows. If the first batch of all is
    empty, its form is that of ``example``, collated, or else of the shapes and types that were given.
    ``rand_on_empty`` makes one row of random zeros and ones instead, for models that cannot do without.
    """

    def __init__(
        self,
        collator_fn: Callable[..., Any] | None,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        sample_empty_shapes: Sequence[tuple[int, ...]] | None = None,
        dtypes: Sequence[Any] | None = None,
        example: Callable[[], Any] | None = None,
    ) -> None:
        self.wrapped_collator_fn = collator_fn
        self.batch_first, self.rand_on_empty = batch_first, rand_on_empty
        self.sample_empty_shapes, self.dtypes, self.example = sample_empty_shapes, dtypes, example
        self.first_batch: Any = None
        self.last: int | None = None  # how many examples the last batch had, where this process made it

    def __call__(self, batch: list[Any]) -> Any:
        self.last = len(batch)
        if len(batch) > 0:
            output = self._collated(batch)
            if self.first_batch is None:
                self.first_batch = copy.deepcopy(output)
            return output
        if self.first_batch is None and self.example is not None:
            return self._make_empty_batch(self._collated([self.example()]))
        if self.first_batch is None:
            logger.warning("First batch is empty, and nothing says what a batch looks like.")
            if self.sample_empty_shapes is None or self.dtypes is None:
                return []
            return [
                torch.zeros(shape, dtype=kind) for shape, kind in zip(self.sample_empty_shapes, self.dtypes)
            ]
        return self._make_empty_batch(self.first_batch)

    def _collated(self, batch: list[Any]) -> Any:
        return batch if self.wrapped_collator_fn is None else self.wrapped_collator_fn(batch)

    def _make_empty_batch(self, sample: Any) -> Any:
        if isinstance(sample, Tensor):
            shape = list(sample.shape)
            dim = 0 if self.batch_first or sample.dim() < 2 else 1
            shape[dim] = 1 if self.rand_on_empty else 0
            if self.rand_on_empty:
                return torch.randint(0, 2, shape, device=sample.device).to(sample.dtype)
            return torch.empty(shape, dtype=sample.dtype, device=sample.device)
        if isinstance(sample, Mapping):
            return {key: self._make_empty_batch(value) for key, value in sample.items()}
        if isinstance(sample, tuple) and hasattr(sample, "_fields"):
            return type(sample)(*[self._make_empty_batch(value) for value in sample])
        if isinstance(sample, list | tuple):
            return type(sample)([self._make_empty_batch(value) for value in sample])
        # Handing out an earlier batch's values in place of none would show data that was not sampled.
        raise TypeError(
            f"Unsupported batch type: {type(sample).__name__}. Batches may hold tensors, dicts, lists and tuples."
        )


def wrap_collate_with_empty(
    *,
    collate_fn: Callable[..., Any] | None,
    batch_first: bool = True,
    rand_on_empty: bool = False,
    sample_empty_shapes: Sequence[tuple[int, ...]] | None = None,
    dtypes: Sequence[Any] | None = None,
) -> CollateFnWithEmpty:
    """The collate function, made to handle empty batches."""
    return CollateFnWithEmpty(collate_fn, batch_first, rand_on_empty, sample_empty_shapes, dtypes)


class DPDataLoader(DataLoader[Any]):
    """A loader that samples by Poisson, with rate ``sample_rate``, and hands out empty batches as such.

    >>> from torch.utils.data import TensorDataset
    >>> loader = DPDataLoader(TensorDataset(torch.zeros(10, 3)), sample_rate=0.2)
    >>> loader.sample_rate, len(loader)
    (0.2, 5)
    """

    def __init__(
        self,
        dataset: Any,
        *,
        sample_rate: float,
        collate_fn: Callable[..., Any] | None = None,
        drop_last: bool = False,
        generator: Any = None,
        distributed: bool = False,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        **kwargs: Any,
    ) -> None:
        if drop_last:
            logger.warning("Ignoring drop_last as it is not compatible with DPDataLoader.")
        self.sample_rate, self.distributed = sample_rate, distributed
        sampler: UniformWithReplacementSampler
        if distributed:
            sampler = DistributedUniformWithReplacementSampler(
                total_size=len(dataset), sample_rate=sample_rate, generator=generator
            )
        else:
            sampler = UniformWithReplacementSampler(
                num_samples=len(dataset), sample_rate=sample_rate, generator=generator
            )
        collate = CollateFnWithEmpty(
            default_collate if collate_fn is None else collate_fn,
            batch_first,
            rand_on_empty,
            example=partial(getitem, dataset, 0),  # workers get it by pickle
        )
        super().__init__(
            dataset=dataset,
            batch_sampler=sampler,
            collate_fn=collate,
            # Workers are seeded from here; the cryptographic stream serves the sampler alone.
            generator=generator if isinstance(generator, torch.Generator) else None,
            **kwargs,
        )

    @classmethod
    def from_data_loader(
        cls,
        data_loader: DataLoader[Any],
        *,
        distributed: bool = False,
        generator: Any = None,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        sample_rate: float | None = None,
    ) -> DPDataLoader:
        """A loader over the same data, sampling at one over the number of batches of the original."""
        if isinstance(data_loader.dataset, IterableDataset):
            raise ValueError("Uniform sampling is not supported for IterableDataset")
        if not (distributed and isinstance(data_loader.sampler, DistributedSampler)):
            _say_what_is_replaced(data_loader)
        return cls(
            dataset=data_loader.dataset,
            sample_rate=1 / len(data_loader) if sample_rate is None else sample_rate,
            collate_fn=_unwrapped(data_loader.collate_fn),
            drop_last=data_loader.drop_last,
            generator=generator if generator is not None else _generator_of(data_loader),
            distributed=distributed,
            batch_first=batch_first,
            rand_on_empty=rand_on_empty,
            **_kept(data_loader),
        )


def _kept(loader: DataLoader[Any]) -> dict[str, Any]:
    """How a loader fetches rows, whichever rows they are."""
    names = "num_workers pin_memory timeout worker_init_fn multiprocessing_context prefetch_factor persistent_workers"
    return {name: getattr(loader, name) for name in names.split()}


def _unwrapped(collate: Any) -> Any:
    return collate.wrapped_collator_fn if isinstance(collate, CollateFnWithEmpty) else collate


def _generator_of(loader: DataLoader[Any]) -> Any:
    sampler = loader.batch_sampler
    return sampler.generator if isinstance(sampler, UniformWithReplacementSampler) else loader.generator


def _say_what_is_replaced(loader: DataLoader[Any]) -> None:
    sampler = loader.sampler
    plain = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement
    )
    if not plain and not isinstance(loader.batch_sampler, UniformWithReplacementSampler):
        warnings.warn(
            f"The loader's {type(sampler).__name__} is replaced by Poisson sampling over the whole data set, each "
            "example with the same probability: weights and subsets of the sampler are gone. Put a subset into the "
            "data set, and weights into the loss.",
            PrivacyWarning,
            stacklevel=4,
        )  # fmt: skip


def switch_generator(*, data_loader: DataLoader[Any], generator: Any) -> DataLoader[Any]:
    """The same loader with another source of randomness."""
    batch_sampler: Any = data_loader.batch_sampler
    if not isinstance(batch_sampler, BatchSampler | UniformWithReplacementSampler):
        raise ValueError("Non-batch processing is not supported: one of the dimensions has to be the batch.")
    target: Any = batch_sampler.sampler if isinstance(batch_sampler, BatchSampler) else batch_sampler
    if not hasattr(target, "generator"):
        raise ValueError("Target sampler doesn't have generator attribute: nothing to switch")
    target.generator = generator
    return with_batches(
        data_loader, batch_sampler, generator if isinstance(generator, torch.Generator) else None
    )


def with_batches(
    data_loader: DataLoader[Any], batch_sampler: Any, generator: torch.Generator | None
) -> DataLoader[Any]:
    """A loader like this one, over the batches of another sampler."""
    return DataLoader(
        dataset=data_loader.dataset,
        batch_sampler=batch_sampler,
        collate_fn=data_loader.collate_fn,
        generator=generator,
        **_kept(data_loader),
    )


# --- fixed batches ---------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _counted_class(kind: type) -> type:
    """A loader's class, with a count of how often a pass over the data began."""

    def iterate(self: Any) -> Iterator[Any]:
        self.passes_begun += 1
        return iter(kind.__iter__(self))  # type: ignore[attr-defined]

    return type(
        kind.__name__, (kind,), {"__iter__": iterate, "__module__": kind.__module__, "counts_passes": True}
    )


def counted(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader, which from now on counts its passes."""
    if not hasattr(loader, "counts_passes"):
        kind: Any = type(loader)
        loader.__class__ = _counted_class(kind)
        loader.passes_begun = 0
    return loader


def begun(loader: Any) -> None:
    """Note that a pass over the data began, by way of another loader on the same batches."""
    if hasattr(loader, "counts_passes"):
        loader.passes_begun += 1


def passes_begun(loader: Any) -> int | None:
    """How many passes began; None where it is not counted."""
    return loader.passes_begun if hasattr(loader, "counts_passes") else None


def sees_each_once(loader: DataLoader[Any]) -> bool:
    """Whether one pass hands out each example at most once."""
    sampler = loader.sampler
    disjoint = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler._num_samples is None
    )
    if isinstance(sampler, SubsetRandomSampler):
        disjoint = len(set(sampler.indices)) == len(sampler.indices)
    if isinstance(sampler, DistributedSampler):
        disjoint = not repeats(sampler)
    return type(loader.batch_sampler) is BatchSampler and disjoint
