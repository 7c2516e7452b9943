"""Uses of a weight: what one operation's backward pass says about each unit's gradient.

A *unit* is what the guarantee protects: an example, or a person with several rows. A use keeps just
enough to answer three questions about the per-unit gradients of one weight, without ever letting
autograd form the batch gradient:

- ``squared_norms()``   how long each unit's gradient is,
- ``weighted_sum(c)``   the sum of the gradients, unit i scaled by ``c[i]``,
- ``gradients()``       the gradients themselves, one row a unit, where nothing cheaper will do.

References: Lee & Kifer 2021 (fast clipping), Li et al. 2022 (ghost norms for sequences), Bu et al.
2023 (book-keeping: one backward pass).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saltflat.engine.ghost import careful_sum, outer_gram, product_of_norms, resolved, tied_gram
from saltflat.engine.lengths import squared_lengths
from saltflat.engine.shares import scaled_products

# Above this many numbers a weight's per-unit gradients are not instantiated if a ghost form exists.
INSTANTIATION_LIMIT = 48_000_000
# Gradients of as many numbers are formed and measured at once: they stay in cache in between.
CACHED = 512 * 1024


class Use(Protocol):
    """One weight, used once in the forward pass."""

    rule: str

    def squared_norms(self) -> Tensor: ...
    def weighted_sum(self, factors: Tensor) -> Tensor: ...
    def gradients(self) -> Tensor: ...
    def silence(self, units: Tensor) -> None:
        """Make the marked units contribute exactly zero, whatever they held."""
        ...


@dataclass
class DirectUse:
    """Per-unit gradients that are small enough to hold: biases, scales, norms, tokens."""

    grads: Tensor  # units x *shape
    rule: str = "direct"
    squared: Tensor | None = None  # the norms, where they were taken while the gradients were in cache

    def squared_norms(self) -> Tensor:
        return squared_lengths(self.grads) if self.squared is None else self.squared

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return (factors @ self.grads.reshape(len(self.grads), -1)).view(self.grads.shape[1:])

    def gradients(self) -> Tensor:
        return self.grads

    def silence(self, units: Tensor) -> None:
        self.grads = without(self.grads, units)


@dataclass
class KernelUse:
    """A kernel's per-unit gradients, with the channels innermost as they were formed."""

    grads: Tensor  # units x output channels x *kernel x input channels of a group
    rule: str = "convolution"
    squared: Tensor | None = None

    def squared_norms(self) -> Tensor:
        return DirectUse(self.grads, squared=self.squared).squared_norms()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self._in_order(DirectUse(self.grads).weighted_sum(factors))

    def gradients(self) -> Tensor:
        return self._in_order(self.grads)

    def silence(self, units: Tensor) -> None:
        self.grads = without(self.grads, units)

    @staticmethod
    def as_stored(kernel: Tensor) -> Tensor:
        """A tensor of the kernel's shape, in the order in which the gradients lie in memory."""
        return kernel.movedim(1, -1)

    def _in_order(self, channels_last: Tensor) -> Tensor:
        spatial = self.grads.dim() - 3
        return channels_last.movedim(-1, -1 - spatial)


@dataclass
class OuterUse:
    """A matrix whose gradient is a sum of outer products: ``Σ_t left[t] ⊗ right[t]``.

    ``left`` is units x T x rows and ``right`` units x T x columns. With T = 1 the norm is a product of
    two norms. With sequences it is either read off the two Gram matrices (T² (rows + columns)) or off
    the instantiated gradient (T · rows · columns), whichever is less work.
    """

    left: Tensor
    right: Tensor
    rule: str = "linear"
    right_squares: Tensor | None = None  # by unit, where the forward pass measured them and T = 1
    _instantiated: Tensor | None = None
    _doubtful: Tensor | None = None  # the units whose terms cancel, once the ghost norms are known

    def squared_norms(self) -> Tensor:
        if self.left.shape[1] == 1:
            return product_of_norms(self.left.squeeze(1), self.right.squeeze(1), self.right_squares).square()
        if self.prefers_ghost():
            return self.ghost_norms()
        return DirectUse(self.gradients()).squared_norms()

    def prefers_ghost(self) -> bool:
        """Whether the Gram matrices are less work (and memory) than the gradients themselves."""
        units, length, rows = self.left.shape
        return ghost_is_cheaper(units, length, rows, self.right.shape[2])

    def ghost_norms(self) -> Tensor:
        """Squared norms off the two Gram matrices."""
        squared, self._doubtful = resolved(outer_gram, self.left, self.right)
        return squared

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if self._instantiated is not None:
            return DirectUse(self._instantiated).weighted_sum(factors)
        return careful_sum(self, factors, self._doubtful)

    def plain_sum(self, factors: Tensor) -> Tensor:
        length = self.left.shape[1]
        by_row = factors if length == 1 else factors.repeat_interleave(length)
        return scaled_products(self.left.flatten(0, 1), self.right.flatten(0, 1), by_row)

    def chosen(self, units: Tensor) -> OuterUse:
        return OuterUse(self.left[units].double(), self.right[units].double())

    def gradients(self) -> Tensor:
        if self._instantiated is None:
            self._instantiated = torch.bmm(self.left.mT, self.right)
        return self._instantiated

    def settled(self) -> OuterUse | DirectUse:
        """The gradients themselves, if they are less work than Gram matrices; now, while all is in cache."""
        units, length, rows = self.left.shape
        columns = self.right.shape[2]
        if length == 1 or self.prefers_ghost():
            return self
        grads = self.left.new_empty(units, rows, columns)
        squared = []
        block = max(1, CACHED // (rows * columns))
        for start in range(0, units, block):
            part = slice(start, start + block)
            torch.bmm(self.left[part].mT, self.right[part], out=grads[part])
            squared.append(squared_lengths(grads[part]))
        return DirectUse(grads, self.rule, torch.cat(squared))

    def silence(self, units: Tensor) -> None:
        self.left, self.right = without(self.left, units), without(self.right, units)
        if self._instantiated is not None:
            self._instantiated = without(self._instantiated, units)


def ghost_is_cheaper(
    units: int, length: int, rows: int, columns: int, gram: int | None = None, saved: float = 1.0
) -> bool:
    """Gram matrices, or per-unit gradients, for a rows x columns matrix and sequences of this length?

    ``gram`` is the work of the Gram matrices in multiply-adds, where it is not that of plain sequences; ``saved`` is
    how many times as many a gradient would take by its definition. Other costs are told in multiply-adds of the
    same time: a number of an instantiated gradient is written once and read twice, and an entry of a Gram matrix
    is multiplied, and added up twice.
    """
    if length == 1 or units * rows * columns > INSTANTIATION_LIMIT:
        return True
    if rows * columns <= 256:  # so small that both are free, and the gradient itself is exact
        return False
    if gram is None:
        gram = length * length * (rows + columns)
    # The clipped sum is then one large product, a little faster than many small ones.
    products = length * rows * columns / saved
    ghost = gram + 50 * length * length + products * 4 / 5
    return ghost < products + 20 * rows * columns


@dataclass
class LookupUse:
    """A table of which rows were looked up: the gradient of row v is ``Σ_{t: index[t] = v} grad[t]``."""

    index: Tensor  # units x T
    grad: Tensor  # units x T x columns
    rows: int
    rule: str = "embedding"

    def squared_norms(self) -> Tensor:
        owners, _, sums = self._by_row()
        squared = sums.new_zeros(len(self.index), dtype=torch.float64)
        return squared.index_add_(0, owners, squared_lengths(sums))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        owners, rows, sums = self._by_row()
        total = sums.new_zeros(self.rows, sums.shape[1])
        return total.index_add_(0, rows, sums * factors[owners, None])

    def gradients(self) -> Tensor:
        owners, rows, sums = self._by_row()
        total = sums.new_zeros(len(self.index), self.rows, sums.shape[1])
        total[owners, rows] = sums
        return total

    def chosen(self, units: Tensor) -> LookupUse:
        return LookupUse(self.index[units], self.grad[units].double(), self.rows)

    def silence(self, units: Tensor) -> None:
        self.grad = without(self.grad, units)

    def _by_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of each row that a unit looked up, once: its unit, its row, its sum."""
        offset = torch.arange(len(self.index), device=self.index.device)[:, None] * self.rows
        keys, places = torch.unique(self.index + offset, return_inverse=True)
        sums = self.grad.new_zeros(len(keys), self.grad.shape[2])
        sums.index_add_(0, places.reshape(-1), self.grad.reshape(-1, self.grad.shape[2]))
        return keys // self.rows, keys % self.rows, sums


@dataclass
class RowUse:
    """A tensor with one row a unit (or several rows, grouped by unit): unit i touches its own rows only."""

    grads: Tensor  # rows x *shape
    units: int
    rule: str = "direct"

    def squared_norms(self) -> Tensor:
        return squared_lengths(self.grads.reshape(self.units, -1))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        shape = (self.units, -1, *self.grads.shape[1:])
        scale = factors.view(-1, *[1] * (len(shape) - 1))
        return (self.grads.reshape(shape) * scale).view(self.grads.shape)

    def gradients(self) -> Tensor:
        """The diagonal embedding: unit i's gradient is zero outside its own rows."""
        return self.of_units(0, self.units)

    def of_units(self, start: int, stop: int) -> Tensor:
        """The gradients of some units."""
        each = len(self.grads) // self.units
        grads = self.grads.new_zeros(stop - start, self.units, each, *self.grads.shape[1:])
        own = torch.arange(start, stop, device=grads.device)
        grads[own - start, own] = self.grads.reshape(self.units, each, *self.grads.shape[1:])[start:stop]
        return grads.view(stop - start, *self.grads.shape)

    def silence(self, units: Tensor) -> None:
        each = len(self.grads) // self.units
        self.grads = without(self.grads, units.repeat_interleave(each))


def merged(uses: Sequence[Use]) -> Use:
    """One use for a weight that was used several times (tied, re-used, recurrent by hand).

    A unit's gradient is the sum over the uses, so norms do not add: the uses are put together first.

    >>> half = OuterUse(torch.ones(2, 1, 3), torch.ones(2, 1, 4))
    >>> merged([half, half]).squared_norms().round()      # (1 + 1)² · 12, not 12 + 12
    tensor([48., 48.], dtype=torch.float64)
    """
    if len(uses) == 1:
        return uses[0]
    outer = _joined_outer([use for use in uses if isinstance(use, OuterUse)])
    lookup = _joined_lookup([use for use in uses if isinstance(use, LookupUse)])
    own_rows = _joined_rows([use for use in uses if isinstance(use, RowUse)])
    rest = [use for use in uses if not isinstance(use, OuterUse | LookupUse | RowUse)]
    parts: list[Use] = [use for use in (outer, lookup, own_rows) if use is not None] + rest
    if len(parts) == 1:
        return parts[0]
    if outer is not None and lookup is not None and len(parts) == 2:
        return TiedUse(outer, lookup)
    total = parts[0].gradients()
    for use in parts[1:]:
        total = total + use.gradients()
    return DirectUse(total, rule=" + ".join(dict.fromkeys(use.rule for use in uses)))


@dataclass
class TiedUse:
    """A table looked up at the input and multiplied at the output, as language models tie them."""

    outer: OuterUse  # left: units x S x vocabulary, right: units x S x columns
    lookup: LookupUse
    rule: str = "linear + embedding"
    _doubtful: Tensor | None = None

    def squared_norms(self) -> Tensor:
        parts = (self.outer.left, self.outer.right, self.lookup.index, self.lookup.grad)
        squared, self._doubtful = resolved(tied_gram, *parts)
        return squared

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return careful_sum(self, factors, self._doubtful)

    def plain_sum(self, factors: Tensor) -> Tensor:
        return self.outer.plain_sum(factors) + self.lookup.weighted_sum(factors)

    def chosen(self, units: Tensor) -> TiedUse:
        return TiedUse(self.outer.chosen(units), self.lookup.chosen(units))

    def gradients(self) -> Tensor:
        return self.outer.gradients() + self.lookup.gradients()

    def silence(self, units: Tensor) -> None:
        self.outer.silence(units)
        self.lookup.silence(units)


def _joined_outer(uses: list[OuterUse]) -> OuterUse | None:
    if len(uses) <= 1:
        return uses[0] if uses else None
    left = torch.cat([use.left for use in uses], dim=1)
    return OuterUse(left, torch.cat([use.right for use in uses], dim=1), rule=uses[0].rule)


def _joined_lookup(uses: list[LookupUse]) -> LookupUse | None:
    if len(uses) <= 1:
        return uses[0] if uses else None
    index = torch.cat([use.index for use in uses], dim=1)
    return LookupUse(index, torch.cat([use.grad for use in uses], dim=1), uses[0].rows)


def _joined_rows(uses: list[RowUse]) -> RowUse | None:
    if len(uses) <= 1:
        return uses[0] if uses else None
    return RowUse(torch.stack([use.grads for use in uses]).sum(0), uses[0].units)


def without(values: Tensor, rows: Tensor) -> Tensor:
    """The values with the marked rows set to zero, whatever they held."""
    # where, not a product: zero times infinity is not zero
    return torch.where(rows.view(-1, *[1] * (values.dim() - 1)), torch.zeros_like(values[:1]), values)
