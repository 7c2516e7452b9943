"""How a batch is cut into micro-batches: which rows go through the model at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Where micro-batches come in few sizes, this is the smallest, and the last one is filled up to it.
LEAST_UNITS = 8


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one pass; the first ``again`` of their units are counted elsewhere, and not here."""

    rows: slice
    again: int = 0


def micro_batches(
    units: int, size: int, many: int, each: int, few_sizes: bool, fill: bool = False
) -> Iterator[MicroBatch]:
    """Consecutive rows: of one size as long as all lanes get one, and the rest in equal shares.

    With ``few_sizes`` the rest goes by powers of two, and what is left after that; with ``fill`` this is filled up
    with units that are counted already. A library of convolutions keeps a kernel for every number of rows that it
    meets, and blocks of ever new sizes tear the heap: over batches of random size, memory grew to three times
    what one of them needs.

    >>> parts = micro_batches(215, 64, 2, 1, few_sizes=True, fill=True)
    >>> [(part.rows.stop - part.rows.start, part.again) for part in parts]
    [(64, 0), (64, 0), (32, 0), (32, 0), (8, 0), (8, 0), (8, 1)]
    """

    def cut(first: int, last: int, again: int = 0) -> MicroBatch:
        return MicroBatch(slice(first * each, last * each), again)

    start = 0
    while rest := units - start:
        share = min(size, rest // many)
        if share < size:
            share = power_of_two(share) if few_sizes and share >= LEAST_UNITS else 0
        if not share:
            break
        for _ in range(many):
            yield cut(start, start + share)
            start += share
    if not rest:
        return
    share = min(size, LEAST_UNITS)
    first = units - -(-rest // share) * share
    if fill and first >= 0:
        for i in range(first, units, share):
            yield cut(i, i + share, again=max(start - i, 0))
        return
    pieces = min(rest, many)
    for i in range(pieces):
        stop = start + rest // pieces + (i < rest % pieces)
        yield cut(start, stop)
        start = stop


def power_of_two(limit: int) -> int:
    """The largest that is not above the limit, or 1.

    >>> [power_of_two(limit) for limit in (0, 1, 63, 64)]
    [1, 1, 32, 64]
    """
    return 1 << max(limit.bit_length() - 1, 0)
