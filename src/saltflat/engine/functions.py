"""What a torch function was called with, and what it wrote: facts about functions, whoever calls them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

EXPANSIONS = {
    Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.broadcast_to, Tensor.repeat, Tensor.tile,
    torch.tile,
}  # fmt: skip

# Their answers hold no rows.
QUESTIONS = {
    Tensor.dim, Tensor.size, Tensor.numel, Tensor.stride, Tensor.__len__, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.is_contiguous, Tensor.element_size, Tensor.get_device,
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "requires_grad", "ndim", "layout")),
    *(getattr(Tensor, name).__get__ for name in ("is_leaf", "grad_fn", "output_nr", "is_sparse", "is_cuda")),
}  # fmt: skip


def writes_in_place(func: Any) -> bool:
    """Whether an operation changes its first argument: ``add_``, ``__iadd__``, ``x[i] = y``."""
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__setitem__"))


def written(func: Any, args: Any, out: Any) -> Iterable[Tensor]:
    """The tensors that hold the result of an operation: what it returns, and what it wrote into."""
    yield from tensors_in((out,), {})
    if writes_in_place(func) and args and isinstance(args[0], Tensor):
        yield args[0]
        if args[0]._base is not None:
            yield args[0]._base


def tensors_in(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterable[Tensor]:
    """Those among the arguments, also in tuples and lists."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value, {})


def embedding_arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """What `F.embedding` was called with, by name; the layer passes all of it by position."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    return dict(zip(names, args)) | kwargs
