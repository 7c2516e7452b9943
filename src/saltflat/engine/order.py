"""Rows in order: which operations may take the rows of a batch out of the order of its units.

A weight's use is told apart by rows: rows i·k … i·k+k−1 are unit i. A mask that picks some tokens, or a sort
by length, breaks that with the data, perhaps long after the model was probed. Such an operation is looked at
each time it runs; what comes out of order never meets a weight on the tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# The number of rows that come out depends on what the rows hold.
_RAGGED = {
    "masked_select", "nonzero", "nonzero_numpy", "argwhere", "unique", "unique_consecutive", "_unique",
    "_unique2", "_pack_padded_sequence", "_pad_packed_sequence",
}  # fmt: skip
# Rows are written to where an index says, along the dimension that is the second argument.
_SCATTERING = {
    "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
    "index_add", "index_add_", "index_copy", "index_copy_", "index_reduce", "index_reduce_",
}  # fmt: skip


# Only the type and the device of the other tensor go in.
_AFTER_A_MODEL = {"type_as", "to"}
_ANEW = {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}


def what_goes_in(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments whose numbers can be in the result: ``positions.type_as(x)`` holds no rows of x."""
    name = getattr(func, "__name__", "")
    if name in _ANEW:
        return (), {}
    return (args[:1], {}) if name in _AFTER_A_MODEL else (args, kwargs)


def keeps_order(
    holds_rows: Callable[[Any], bool], units: int, func: Any, args: Any, kwargs: dict[str, Any]
) -> bool:
    """Whether the result has its rows in the order of the units, if the arguments have."""
    name = getattr(func, "__name__", "")
    if units == 1:
        return True
    if name == "__getitem__":
        return _picks_in_order(holds_rows, units, *args)
    if name == "__setitem__":
        return not (_first_is_tensor(args[1]) and holds_rows(args[2])) or _is_range(args[1], len(args[0]))
    if name in ("index_select", "gather", "take_along_dim"):
        return _gathers_in_order(holds_rows, units, *args, **kwargs)
    if name in _SCATTERING:
        return _dimension(args, kwargs) % max(args[0].dim(), 1) != 0
    if name in ("index_put", "index_put_", "masked_scatter", "masked_scatter_", "take"):
        return False
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
        return not holds_rows(repeats)
    if name in ("cat", "concat", "concatenate"):  # one batch after the other, not unit after unit
        # torch passes over an empty vector, as a cache of keys holds before its first token
        first = [t for t in (args[0] if args else kwargs["tensors"]) if t.shape != (0,)]
        batches = len(first) > 1 and all(t.dim() > 0 and len(t) % units == 0 for t in first)
        return not batches or _dimension(args, kwargs) % first[0].dim() != 0
    return name not in _RAGGED and not (name == "where" and len(args) + len(kwargs) == 1)


def _dimension(args: Any, kwargs: dict[str, Any]) -> int:
    return int(args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0)))


def _first_is_tensor(index: Any) -> bool:
    first = index[0] if isinstance(index, tuple) and index else index
    return isinstance(first, Tensor | list)


def _is_range(index: Any, rows: int) -> bool:
    first = index[0] if isinstance(index, tuple) else index
    if not isinstance(first, Tensor) or first.dtype == torch.bool:
        return False
    own = torch.arange(rows, device=first.device)
    return first.dim() > 0 and first.numel() == rows == len(first) and torch.equal(first.flatten(), own)


def _picks_in_order(holds_rows: Callable[[Any], bool], units: int, source: Tensor, index: Any) -> bool:
    if not _first_is_tensor(index) or _is_range(index, len(source)):
        return True
    if not holds_rows(source):  # a table of constants, looked up by rows
        first = index[0] if isinstance(index, tuple) else index
        return not (isinstance(first, Tensor) and first.dtype == torch.bool)
    return _in_order(_owners(source, units)[index], units)


def _gathers_in_order(
    holds_rows: Callable[[Any], bool],
    units: int,
    input: Tensor,
    dim: Any = None,
    index: Any = None,
    **rest: Any,
) -> bool:
    if isinstance(dim, Tensor):  # take_along_dim has the index before the dimension
        dim, index = rest.pop("dim", index), dim
    if index is None:
        index = rest.pop("indices", None)
    if not holds_rows(input) or dim is None or dim % max(input.dim(), 1) != 0:
        return dim is not None
    owners = _owners(input, units)
    picked = owners.index_select(0, index) if index.dim() <= 1 else owners.gather(0, index)
    return _in_order(picked, units)


def _owners(rows: Tensor, units: int) -> Tensor:
    """For each number, the unit that owns it."""
    each = max(len(rows) // units, 1)
    own = torch.arange(len(rows), device=rows.device) // each
    return own.view(-1, *[1] * (rows.dim() - 1)).expand(rows.shape)


def _in_order(owners: Tensor, units: int) -> bool:
    if owners.dim() == 0 or len(owners) % units:
        return False
    expected = torch.arange(units, device=owners.device)[:, None]
    return bool((owners.reshape(units, -1) == expected).all())
