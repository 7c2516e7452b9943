"""Weights made from parameters (a standardised kernel, a weight norm): from their gradients back to the parameters.

A derived weight ``f(p)`` keeps its small autograd graph. The gradient of unit i in p is ``Jᵀ gᵢ``, and pulling
every unit's gradient through the graph is many times the work of an ordinary step. Two things spare it:

- the clipped sum is linear: ``Σ cᵢ Jᵀ gᵢ = Jᵀ Σ cᵢ gᵢ`` goes through the graph once;
- the norms ``‖Jᵀ gᵢ‖`` are known where J has the form that standardisation gives it, channel by channel:
  it removes the mean, scales the rest, and scales the direction of the weight itself by another number.
  Nobody has to declare that: the numbers are fitted to how the graph answers to two random vectors, and kept
  only if they explain both answers. Two linear maps that agree on a random vector are the same map.

Where a unit's gradient is nearly all mean, as that of a blank image, the rest is a difference of large numbers. Such
units are found, and both their norms and their sums are taken in float64, from what the form leaves of them.

Everything else is pulled back unit by unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from saltflat.engine import native
from saltflat.engine.ghost import CANCELLATION, Centred, GhostMoments, Moments
from saltflat.engine.lengths import lengths
from saltflat.engine.uses import DirectUse, KernelUse, RowUse, Use

# Numbers in the diagonal gradients that are carried back at once.
DIAGONAL_LIMIT = 4_000_000
# How far an answer may be from the fitted form, relative to its length: some hundred roundings.
MISFIT = 256
# A kernel of fewer numbers is as quickly pulled back unit by unit.
SMALL = 64


def pulled_back(
    weight: Tensor, parameters: Sequence[Tensor], use: Use, notes: dict[Any, Any], place: int
) -> list[tuple[Tensor, Use]]:
    """For each parameter that the derived ``weight`` depends on, its use.

    ``notes`` remembers forms from one micro-batch to the next, by the place of the weight on the tape.
    """
    parents = [p for p in parameters if _depends(weight, p)]
    if not isinstance(use, RowUse):
        key = place, weight.shape, tuple((id(p), p._version) for p in parents)
        if key not in notes:
            notes[key] = _forms(weight, parents)
        forms = notes[key]
        if forms is not None:
            shared = _Graph(weight, parents, use, forms)
            name = f"{use.rule} (derived weight)"
            return [
                (p, _FormedUse(shared, place, f, name)) for place, (p, f) in enumerate(zip(parents, forms))
            ]
    parts = [use.gradients()] if not isinstance(use, RowUse) else _few_units_at_a_time(use)
    pulled = [vector_jacobian_products(weight, parents, part) for part in parts]
    found: list[tuple[Tensor, Use]] = []
    for parent, column in zip(parents, zip(*pulled)):
        if column[0] is not None:
            whole = column[0] if len(column) == 1 else torch.cat(column)
            found.append((parent, DirectUse(whole, rule=f"{use.rule} (derived weight)")))
    return found


def vector_jacobian_products(
    output: Tensor, inputs: Sequence[Tensor], grads: Tensor
) -> tuple[Tensor | None, ...]:
    """For each row of ``grads``, the gradient of ``output`` in that direction; batched where torch can."""
    try:
        return torch.autograd.grad(
            output, inputs, grads, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:  # an operation without a batching rule: one row at a time
        rows = [torch.autograd.grad(output, inputs, g, retain_graph=True, allow_unused=True) for g in grads]
        return tuple(None if column[0] is None else torch.stack(column) for column in zip(*rows))


def _depends(weight: Tensor, parameter: Tensor) -> bool:
    """Whether there is a path in the graph of ``weight`` to the parameter: without running it."""
    found, todo = set(), [weight.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in found:
            continue
        if getattr(node, "variable", None) is parameter:
            return True
        found.add(node)
        todo += [following for following, _ in node.next_functions]
    return False


# --- the form of a standardisation ----------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """``Jᵀ g`` of one parameter, channel by channel; ``along`` is the direction of the weight without its mean.

    For a kernel: ``rest · (g − mean(g) − along ⟨along, g⟩) + own · along ⟨along, g⟩``.
    For one number a channel (``rest`` is None): ``own · ⟨along, g⟩``.
    """

    weight: Centred
    own: Tensor  # channels
    rest: Tensor | None

    def applied(self, grads: Tensor) -> Tensor:
        """``Jᵀ g`` itself, for units x channels x numbers; one number a channel where ``rest`` is None."""
        along = self.weight.along
        product = torch.einsum("ucn,cn->uc", grads, along)
        if self.rest is None:
            return self.own * product
        left = grads - grads.mean(2, keepdim=True)
        # rest · left + (own − rest) · along ⟨along, g⟩: along has no mean, so it is part of what is left
        ours = ((self.own - self.rest) * product)[:, :, None] * along
        return left.mul_(self.rest[:, None]).add_(ours)

    def squared_norms(self, along: Tensor, rest: Tensor) -> Tensor:
        """The squared norms of ``Jᵀ g`` of each unit, from squared lengths along the weight and of the rest."""
        squared = (self.own.square() * along).sum(1)
        return squared if self.rest is None else squared + (self.rest.square() * rest).sum(1)


def moments_of(grads: Tensor, along: Tensor) -> Moments:
    """Of units x channels x numbers, each within a few roundings of the squared length."""
    units, channels, size = grads.shape
    if native.fits(grads, along):
        total, product, squared = native.moments(grads, along)
    else:
        total, product = grads.sum(2), torch.bmm(grads.transpose(0, 1), along[:, :, None]).squeeze(2).mT
        squared = lengths(grads.reshape(-1, size)).square().view(units, channels).to(grads.dtype)
    return total.square() / size, product.square(), squared


def rest_of(moments: Moments, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Units x channels: the squared length of what is neither mean nor along the weight, overstated by a rounding and
    never understated; and the units in which it is too small a difference. ``scale`` is what each channel counts.
    """
    mean, along, length = moments
    rest = (length - mean - along).clamp(min=0) + 16 * torch.finfo(length.dtype).eps * length
    enough = (rest * scale).sum(1) >= CANCELLATION * (length * scale).sum(1)
    return rest, ~(enough & torch.isfinite(length).all(1))


def _forms(weight: Tensor, parents: Sequence[Tensor]) -> list[_Form] | None:
    """How the graph of a derived weight answers, if it is in the form of a standardisation; else None."""
    if weight.dim() < 2 or not weight.is_floating_point() or weight[0].numel() < SMALL:
        return None
    channels = len(weight)
    if any(p.shape != weight.shape and p.numel() != channels for p in parents):
        return None
    centred = centred_of(weight.detach())
    if not bool((centred.length > 0).all()):
        return None
    # Fixed directions: what is computed must not depend on how often somebody drew before. The probe makes draws
    # constant, but not these.
    with torch._C.DisableTorchFunction():
        draw = torch.Generator().manual_seed(weight.numel())
        drawn = torch.randn(2, *weight.shape, generator=draw, dtype=weight.dtype)
    tries = list(drawn.to(weight.device))
    answers = [
        torch.autograd.grad(weight, list(parents), each, retain_graph=True, allow_unused=True)
        for each in tries
    ]
    forms = []
    for parent, found in zip(parents, zip(*answers)):
        if any(answer is None for answer in found):
            return None
        fit = _fit_kernel if parent.shape == weight.shape else _fit_scale
        form = fit(
            centred, [each.flatten(1) for each in tries], [answer.reshape(channels, -1) for answer in found]
        )
        if form is None:
            return None
        forms.append(form)
    return forms


def centred_of(weight: Tensor) -> Centred:
    """The weight without its mean, channel by channel."""
    flat = weight.flatten(1)
    mean = flat.mean(1)
    length = torch.linalg.vector_norm(flat - mean[:, None], dim=1)
    return Centred((flat - mean[:, None]) / length[:, None], mean, length)


def _fit_kernel(weight: Centred, tries: list[Tensor], answers: list[Tensor]) -> _Form | None:
    along, eps = weight.along, torch.finfo(weight.along.dtype).eps
    own_tries = [(along * each).sum(1) for each in tries]
    own_answers = [(along * answer).sum(1) for answer in answers]
    rests = [t - t.mean(1, keepdim=True) - along * q[:, None] for t, q in zip(tries, own_tries)]
    left = [a - along * q[:, None] for a, q in zip(answers, own_answers)]
    rest = _ratio([(a * t).sum(1) for a, t in zip(left, rests)], [(t * t).sum(1) for t in rests])
    own = _ratio([a * q for a, q in zip(own_answers, own_tries)], [q * q for q in own_tries])
    for a, t, answer, q in zip(left, rests, own_answers, own_tries):
        scale = rest.abs() * torch.linalg.vector_norm(t, dim=1)
        misfit = torch.linalg.vector_norm(a - rest[:, None] * t, dim=1) + (answer - own * q).abs()
        if not bool((misfit <= MISFIT * eps * scale).all()):
            return None
    return _Form(weight, own, rest)


def _fit_scale(weight: Centred, tries: list[Tensor], answers: list[Tensor]) -> _Form | None:
    """One number a channel, which scales the channel."""
    along, eps = weight.along, torch.finfo(weight.along.dtype).eps
    own_tries = [(along * each).sum(1) for each in tries]
    flat = [answer.squeeze(1) for answer in answers]
    own = _ratio([a * q for a, q in zip(flat, own_tries)], [q * q for q in own_tries])
    for answer, q, each in zip(flat, own_tries, tries):
        scale = own.abs() * torch.linalg.vector_norm(each, dim=1)
        if not bool(((answer - own * q).abs() <= MISFIT * eps * scale).all()):
            return None
    return _Form(weight, own, None)


def _ratio(above: list[Tensor], below: list[Tensor]) -> Tensor:
    return torch.stack(above).sum(0) / torch.stack(below).sum(0)


@dataclass
class _Graph:
    """A derived weight with its graph and its use, shared by the parameters it was made from."""

    weight: Tensor
    parents: Sequence[Tensor]
    use: Use
    forms: Sequence[_Form]
    _lengths: tuple[Tensor, Tensor] | None = None
    _doubtful: Tensor | None = None  # the units whose gradients nearly vanish in the derivation
    _sums: list[tuple[Tensor, tuple[Any, ...]]] = field(default_factory=list)

    def squared_lengths(self) -> tuple[Tensor, Tensor]:
        """By unit and channel, along the weight and of the rest: what all parents of the weight ask for."""
        if self._lengths is None:
            moments, doubtful = self._moments()
            scales = [form.rest.square() for form in self.forms if form.rest is not None]
            along, scale = moments[1], scales[0] if scales else torch.ones_like(moments[1][0])
            rest, vanishing = rest_of(moments, scale)
            doubtful = vanishing if doubtful is None else doubtful | vanishing
            if bool(doubtful.any()):
                self._doubtful, along, rest = doubtful, along.double(), rest.double()
                for units, product, left in self._in_float64(doubtful):
                    along[units], rest[units] = product.square(), left.square().sum(2)
            self._lengths = along, rest
        return self._lengths

    def _moments(self) -> tuple[Moments, Tensor | None]:
        weight = self.forms[0].weight
        if isinstance(self.use, GhostMoments):
            return self.use.moments(weight)
        if isinstance(self.use, KernelUse):  # as they lie in memory
            along = self.use.as_stored(weight.along.view(self.weight.shape)).flatten(1)
            return moments_of(self.use.grads.flatten(2), along), None
        return moments_of(self.use.gradients().flatten(2), weight.along), None

    def _in_float64(self, marked: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """A few of the marked units at a time: which, their product with the direction of the weight, and the rest."""
        along = centred_of(self.weight.detach().double()).along
        for units in marked.nonzero().flatten().split(max(1, DIAGONAL_LIMIT // self.weight.numel())):
            if hasattr(self.use, "chosen"):  # it forms no gradients of all units
                some = torch.zeros_like(marked).index_fill_(0, units, True)
                grads = self.use.chosen(some).gradients().flatten(2)
            else:
                grads = self.use.gradients()[units].double().flatten(2)
            left = grads - grads.mean(2, keepdim=True)
            product = (left * along).sum(2)
            yield units, product, left - product[:, :, None] * along

    def weighted_sum(self, factors: Tensor, place: int) -> Tensor:
        """``Jᵀ Σ cᵢ gᵢ`` for the parent at this place."""
        found: Tensor = self._of_resolved(factors)[place]
        if self._doubtful is None:
            return found
        form, total = self.forms[place], found.double()
        own, along = form.own.double(), centred_of(self.weight.detach().double()).along
        for units, product, rest in self._in_float64(self._doubtful):
            counts = factors[units].double()
            ours = own * (counts @ product)
            if form.rest is not None:
                rests = (counts @ rest.flatten(1)).view(rest.shape[1:])
                ours = (form.rest.double()[:, None] * rests + ours[:, None] * along).view(total.shape)
            total += ours.view(total.shape)
        return total.to(found.dtype)

    def _of_resolved(self, factors: Tensor) -> tuple[Any, ...]:
        """For each parent, from all units but the doubtful; flat clipping asks for the same factors each time."""
        for known, sums in self._sums:
            if known is factors:
                return sums
        counted = factors if self._doubtful is None else factors.masked_fill(self._doubtful, 0)
        total = self.use.weighted_sum(counted)
        sums = torch.autograd.grad(self.weight, list(self.parents), total, retain_graph=True)
        self._sums.append((factors, sums))
        return sums


@dataclass
class _FormedUse:
    """A parameter of a derived weight, where the form of the derivation is known."""

    graph: _Graph
    place: int
    form: _Form
    rule: str

    def squared_norms(self) -> Tensor:
        return self.form.squared_norms(*self.graph.squared_lengths())

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self.graph.weighted_sum(factors, self.place)

    def gradients(self) -> Tensor:
        parent = self.graph.parents[self.place]
        grads = self.graph.use.gradients()
        return self.form.applied(grads.flatten(2)).view(len(grads), *parent.shape)

    def silence(self, units: Tensor) -> None:
        self.graph.use.silence(units)


def _few_units_at_a_time(use: RowUse) -> Iterable[Tensor]:
    """A gradient that is zero but for one unit's rows is as large as the batch: not all of them at once."""
    size = max(1, DIAGONAL_LIMIT // max(use.grads.numel(), 1))
    for start in range(0, use.units, size):
        yield use.of_units(start, min(start + size, use.units))


def unexpanded(use: RowUse, source: Tensor) -> Tensor | None:
    """Per-unit gradients of what was expanded over the rows: sums instead of a diagonal embedding.

    None unless rows were made by broadcasting alone; a repeated dimension may also have tiled something.
    """
    grads = use.grads
    shape = (1,) * (grads.dim() - source.dim()) + tuple(source.shape)
    if shape[0] != 1 or any(a not in (1, b) for a, b in zip(shape, grads.shape)):
        return None
    summed = [d for d in range(1, grads.dim()) if shape[d] == 1 and grads.shape[d] != 1]
    reduced = grads.sum(summed, keepdim=True) if summed else grads
    return reduced.reshape(use.units, -1, *source.shape).sum(1)
