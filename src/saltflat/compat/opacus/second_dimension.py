"""Where a private loader puts the examples of a batch: known from its collate function, not guessed from sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from saltflat.compat.opacus.data_loader import CollateFnWithEmpty, DPDataLoader
from saltflat.compat.opacus.grad_sample.recorder import Recorder


def tell(recorder: Recorder | None, loader: Any) -> None:
    """Let the recorder ask this loader where the examples are, if a model was refused because they are elsewhere."""
    collate = loader.collate_fn
    # Workers collate in processes of their own, and what they saw is not known here.
    if recorder is None or type(loader) is not DPDataLoader or loader.num_workers:
        return
    if isinstance(collate, CollateFnWithEmpty):
        recorder.rows_second = second = SecondDimension(collate)
        if not recorder.batch_first:  # found with an earlier loader
            second._taken()


class SecondDimension:
    """Asked whether tensors are those of the loader's last batch, with its examples in their second dimension.

    They are where (1) of all sizes of what the collate function makes, only the second grows with the number of
    examples; (2) the tensors have that form; and (3) their second size, and not their first, is the number of
    examples that were collated last. Anything else is a no, that is None; a yes is a function that lets the
    loader know.
    """

    def __init__(self, collate: CollateFnWithEmpty) -> None:
        self._collate = collate

    def __call__(self, leaves: Sequence[Any]) -> Callable[[], None] | None:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        count = self._collate.last
        if not tensors or not count:
            return None
        if any(t.dim() < 2 or t.shape[1] != count or t.shape[0] == count for t in tensors):
            return None
        forms = self._forms()
        return self._taken if all(_form(t) in forms for t in tensors) else None

    def _taken(self) -> None:
        self._collate.batch_first = False  # from now on empty batches have none in that dimension

    def _forms(self) -> set[Any]:
        """The forms of collated tensors whose second size alone follows the number of examples."""
        if self._collate.example is None:
            return set()
        with torch.random.fork_rng(devices=[]):  # a data set may draw, to augment
            one = self._collate.example()
            two, three = (tree_flatten(self._collate._collated([one] * count))[0] for count in (2, 3))
        if len(two) != len(three):
            return set()
        found = set()
        for few, more in zip(two, three):
            if isinstance(few, Tensor) and isinstance(more, Tensor) and few.dim() == more.dim():
                sizes = list(zip(few.shape, more.shape))
                if [i for i, (a, b) in enumerate(sizes) if a != b] == [1] and sizes[1] == (2, 3):
                    found.add(_form(few))
        return found


def _form(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.shape[0], *tensor.shape[2:]
