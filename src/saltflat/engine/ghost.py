"""Ghost norms: the lengths of gradients from Gram matrices, never understated.

``‖Σ_t left[t] ⊗ right[t]‖² = Σ_st ⟨left[s], left[t]⟩ ⟨right[s], right[t]⟩`` needs no gradient. Where the terms of a
sequence cancel it is a difference of large numbers, which float32 may get wrong; such units are found, and
computed again in float64.

Reference: Li et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from saltflat.engine import native
from saltflat.engine.lengths import lengths
from saltflat.engine.shares import shares_of_rows

# A ghost norm is a difference of large numbers when the terms of a sequence cancel. Below this
# fraction of its terms, float32 cannot be trusted to bound the norm, and the unit is computed in float64.
CANCELLATION = 3e-2
# Taken channel by channel, terms cancel more, and errors average out over the channels.
CANCELLATION_BY_CHANNEL = 4e-3
# The square of a short vector can vanish in float32; beside a vector longer than this it would matter.
LONG = 1e10
# Vectors of fewer numbers, on both sides together, are multiplied as fast by torch.
LOOPS_FROM = 256


class Ghost(Protocol):
    """A use whose norms are known without its gradients."""

    def plain_sum(self, factors: Tensor) -> Tensor:
        """The weighted sum, in the precision of what was recorded."""
        ...

    def chosen(self, units: Tensor) -> Ghost:
        """The same for some of the units, in float64."""
        ...


Gram = tuple[Tensor, Tensor, Tensor]
"""By unit: the squared norm, the sum of its terms without their signs, the longest vector squared."""


Moments = tuple[Tensor, Tensor, Tensor]
"""Units x channels: the squared length of the gradient in the direction of the mean, along the weight, in all.

The last may be overstated by a rounding, and is never understated.
"""


class Centred(NamedTuple):
    """A weight without its mean, channel by channel: ``weight = mean + length · along``."""

    along: Tensor  # channels x numbers, of length 1
    mean: Tensor  # channels
    length: Tensor  # channels


@runtime_checkable
class GhostMoments(Protocol):
    """A use that knows the moments of its gradients without the gradients."""

    def moments(self, weight: Centred) -> tuple[Moments, Tensor]:
        """The moments, and the units whose moments float32 cannot be trusted with."""
        ...


def product_of_norms(left: Tensor, right: Tensor, right_squares: Tensor | None = None) -> Tensor:
    """``‖left‖ · ‖right‖`` by unit, in float64 where one could be too short for float32 and still matter."""
    norms = [lengths(left), lengths(right) if right_squares is None else right_squares.sqrt()]
    longer = torch.maximum(*norms)
    if not float(longer.amax()) <= LONG:  # one question for all units; also if one is not finite
        long = longer > LONG
        for norm, side in zip(norms, (left, right)):
            norm[long] = torch.linalg.vector_norm(side[long].double(), dim=1)
    return norms[0] * norms[1]


def outer_gram(left: Tensor, right: Tensor) -> Gram:
    if left.shape[2] + right.shape[2] >= LOOPS_FROM and native.fits(left, right):
        return native.gram_norms(left, right, shares_of_rows(left))
    return gram_norms(torch.bmm(left, left.mT), torch.bmm(right, right.mT))


def gram_norms(gram: Tensor, other: Tensor) -> Gram:
    """The norms of ``Σ_t left[t] ⊗ right[t]`` from the Gram matrices of the two sides; writes into the first."""
    longest = torch.maximum(_diagonal(gram), _diagonal(other)).amax(1)
    gram.mul_(other)
    return gram.sum(dim=(1, 2)), torch.linalg.vector_norm(gram, ord=1, dim=(1, 2)), longest


def gram_moments(patches: Tensor, outer: Tensor) -> Gram:
    """By unit and channel: the norms of ``Σ_t outer[t, c] · patch[t]``, from the Gram matrices of the patches."""
    longest = torch.maximum(_diagonal(patches), outer.square().sum(2)).amax(1)
    squared = (torch.bmm(patches, outer) * outer).sum(1)
    sizes = outer.abs()
    return squared, (torch.bmm(patches.abs(), sizes) * sizes).sum(1), longest


def tied_gram(left: Tensor, right: Tensor, index: Tensor, grad: Tensor) -> Gram:
    outer, outer_terms, longest = outer_gram(left, right)
    lookup = torch.bmm(grad, grad.mT) * (index[:, :, None] == index[:, None, :])
    looked_up = left.gather(2, index[:, None, :].expand(-1, left.shape[1], -1))
    cross = 2 * looked_up * torch.bmm(right, grad.mT)
    terms = outer_terms + sum(torch.linalg.vector_norm(part, ord=1, dim=(1, 2)) for part in (lookup, cross))
    return outer + lookup.sum(dim=(1, 2)) + cross.sum(dim=(1, 2)), terms, longest


def _diagonal(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2)


def resolved(form: Callable[..., Gram], *parts: Tensor) -> tuple[Tensor, Tensor | None]:
    """The squared norms of a ghost form, and the units that float32 could not resolve, if any.

    These are computed again in float64, and rounded up where even that leaves a doubt: a norm may be
    overstated, never understated.
    """
    squared, terms, longest = form(*parts)
    doubtful = in_doubt(squared, terms, longest)
    if not bool(doubtful.any()):
        return squared, None
    rows = [part[doubtful] for part in parts]
    exact, exact_terms, _ = form(*[row.double() if row.is_floating_point() else row for row in rows])
    squared = squared.double()
    squared[doubtful] = exact + 1e-14 * exact_terms
    return squared, doubtful


def in_doubt(squared: Tensor, terms: Tensor, longest: Tensor, fraction: float = CANCELLATION) -> Tensor:
    """The units whose norms float32 cannot be trusted with; also where it has no number large enough."""
    return ~((squared >= fraction * terms) & (longest <= LONG**2) & torch.isfinite(terms))


def careful_sum(use: Ghost, factors: Tensor, doubtful: Tensor | None) -> Tensor:
    """The weighted sum, with doubtful units added up in float64: their terms cancel here as well."""
    if doubtful is None:
        return use.plain_sum(factors)
    rest = use.plain_sum(factors.masked_fill(doubtful, 0))
    return rest + use.chosen(doubtful).plain_sum(factors[doubtful].double()).to(rest.dtype)
