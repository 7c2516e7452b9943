"""Products with a tall, narrow side, in shares: each thread takes the rows that it has in its cache already.

torch's operations on rows deal them out in equal shares, first rows first. A product that sums over the rows, or one
with few outputs, is dealt out by columns instead: then each thread reads what the other wrote, and whoever writes
there next waits for it. Measured on two cores, 256 rows of 3,969 features: the products take 0.5 instead of 0.8 ms,
and the group normalisation of the next call 0.3 instead of 1.0 ms.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine import native

NARROW = 16  # up to as many columns, a product takes no longer than reading its other side
# Fewer numbers stay in the first caches, and fewer rows are not worth a call of their own.
LARGE = 1 << 18
ROWS_A_SHARE = 8
MOST_SHARES = 64  # as in `threads.h`


def shares_of(rows: int, narrow: int, wide: int, example: Tensor) -> int:
    """In how many shares such rows are best taken; 1 for all at once."""
    return _worth(rows, rows * wide) if narrow <= NARROW and example.is_cpu else 1


def shares_of_rows(x: Tensor) -> int:
    """In how many shares the loops in C best take these rows."""
    return _worth(len(x), x.numel())


def _worth(rows: int, numbers: int) -> int:
    threads = min(torch.get_num_threads(), MOST_SHARES)
    return threads if numbers >= LARGE and rows >= ROWS_A_SHARE * threads else 1


def _is_for_loops(x: Tensor, *others: Tensor | None) -> bool:
    """Whether rows are so many, and lie so, that the compiled loops take them."""
    return x.numel() >= LARGE and native.fits(x, *(t for t in others if t is not None))


def scaled_products(left: Tensor, right: Tensor, factors: Tensor) -> Tensor:
    """``left.T @ right``, for two matrices with as many rows, each scaled by its factor.

    >>> scaled_products(torch.ones(3, 1), torch.arange(6.0).view(3, 2), torch.tensor([1.0, 1.0, 0.0]))
    tensor([[2., 4.]])
    """
    (rows, few), wide = left.shape, right.shape[1]
    if few <= NARROW <= wide and _is_for_loops(right, left, factors):
        return native.few_sums(left, factors, right, shares_of(rows, few, wide, right))
    if few <= wide:  # scale the narrower side
        return summed_products(left * factors[:, None], right)
    return summed_products(left, right * factors[:, None])


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """``left.T @ right``, for two matrices with as many rows.

    >>> summed_products(torch.ones(3, 1), torch.arange(6.0).view(3, 2))
    tensor([[6., 9.]])
    """
    rows = left.shape[0]
    narrow, wide = sorted((left.shape[1], right.shape[1]))
    shares = shares_of(rows, narrow, wide, left)
    if shares == 1:
        return left.mT @ right
    even = rows // shares * shares
    total = torch.bmm(_dealt(left[:even], shares).mT, _dealt(right[:even], shares)).sum(0)
    return total.addmm_(left[even:].mT, right[even:]) if even < rows else total


def measured_outputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """``x @ weight.T + bias`` for a weight with few rows; and the squared length of each row of x, where it is free."""
    if x.shape[1] == weight.shape[1] and _is_for_loops(x, weight, bias):
        return native.few_outputs(x, weight, bias, shares_of(x.shape[0], weight.shape[0], x.shape[1], x))
    return few_outputs(x, weight, bias), None


def few_outputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` for a weight with few rows, as rows that are nobody's view.

    With the sides exchanged where products with many columns are faster: twice on an AMD processor, while it is
    slower by half on an Intel one.
    """
    rows, outputs = x.shape[0], weight.shape[0]
    shares = shares_of(rows, outputs, x.shape[1], x)
    even = rows // shares * shares
    if _prefers_few_columns() and even == rows:
        if shares == 1:
            return F.linear(x, weight, bias)
        sides = _dealt(x, shares), weight.mT.expand(shares, *weight.mT.shape)
        products = torch.bmm(*sides) if bias is None else torch.baddbmm(bias, *sides)
        return torch.ops.aten._unsafe_view(products, [rows, outputs])
    if shares == 1:
        out = (weight @ x.mT).mT
    else:
        products = torch.bmm(weight.expand(shares, *weight.shape), _dealt(x[:even], shares).mT)
        out = products.mT.reshape(even, outputs)
        if even < rows:
            out = torch.cat([out, (weight @ x[even:].mT).mT])
    return out.clone(memory_format=torch.contiguous_format) if bias is None else out + bias


@lru_cache(maxsize=1)
def _prefers_few_columns() -> bool:
    """Whether this machine multiplies by a narrow matrix as fast as by a wide one: what its maker's library does."""
    return "Intel" in native.processor()


def _dealt(rows: Tensor, shares: int) -> Tensor:
    return rows.reshape(shares, rows.shape[0] // shares, rows.shape[1])
