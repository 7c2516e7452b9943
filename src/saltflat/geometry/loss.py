"""The loss of a model on some rows, as a function of its weights: value, gradient, Hessian times a vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn
from torch.func import functional_call

from saltflat.data.source import map_tensors
from saltflat.engine import lanes
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import check_losses, take, without_compilation
from saltflat.errors import InputError, check_count
from saltflat.geometry.rows import Rows, as_rows
from saltflat.geometry.smooth import Smooth, plain_attention, pooled_first, without_weights
from saltflat.heap import keep_freed_memory
from saltflat.training.losses import default_loss, found_logits

MICRO_BATCH = 32  # what a core's cache holds of a small network: 8, 16 and 64 were no faster
SHORT_MICRO_BATCH = 128  # the same in bfloat16, without gradients

Sums = list[Tensor]
Task = Callable[[nn.Module, Any, Tensor], Sums]


@dataclass(frozen=True)
class Measured:
    """Mean loss, and the share of right answers where targets are classes."""

    loss: float
    accuracy: float | None


class Loss:
    """The mean loss of ``model`` over rows, as a function of its trainable weights in one vector.

    ``data`` is anything that `saltflat.fit` takes, or `Rows`; of more than ``rows`` rows, that many are drawn
    with ``seed``. The model is copied and set to evaluation; yours stays as it is. ``weights`` takes the place
    of the model's own, for an average. ``dtype=torch.float64`` computes in double precision.

    Guarantee: micro-batches and threads change nothing beyond rounding. Derivatives are exact, not differences.

    Reference: Pearlmutter, Fast exact multiplication by the Hessian, 1994.

    >>> import saltflat as sf
    >>> digits = sf.data.load("digits")
    >>> loss = Loss(sf.models.build("mlp"), digits.test, rows=50)
    >>> len(loss), loss.dimension, loss.rows.covered
    (50, 4810, 'not covered by ε')
    >>> direction = torch.ones(loss.dimension)
    >>> loss.hessian_times(direction).shape
    torch.Size([4810])
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        loss_fn: LossFunction | None = None,
        rows: int | None = None,
        seed: int = 0,
        weights: Mapping[str, Tensor] | None = None,
        micro_batch: int = MICRO_BATCH,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_count("micro_batch", micro_batch)
        self.rows: Rows = as_rows(data)
        chosen = _chosen(len(self.rows), rows, seed)
        inputs, self.targets = self.rows.source.fetch(chosen)
        self.model = _copied(model, weights).to(device=device, dtype=dtype)
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not parameters:
            raise InputError(
                "model", model, "at least one parameter with requires_grad=True", problem="has none"
            )
        some = next(iter(parameters.values()))
        self.inputs = map_tensors(
            lambda t: t.to(some.device, some.dtype if t.is_floating_point() else t.dtype), inputs
        )
        self.targets = self.targets.to(some.device)
        if self.targets.is_floating_point():
            self.targets = self.targets.to(some.dtype)
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.weights = flat({name: p.detach() for name, p in parameters.items()})
        self.loss_fn = loss_fn if loss_fn is not None else default_loss(self.targets)
        self.micro_batch = micro_batch
        self.dimension = self.weights.numel()
        self._forward_over_reverse = True  # until an operation cannot
        self._copies: list[nn.Module] | None = None
        self._short = False

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, rows: int) -> Loss:
        """The loss on the first so many of the rows: cheaper, and much alike. Rows come in random order."""
        return self._piece(slice(0, rows))

    def _piece(self, rows: slice) -> Loss:
        piece = copy.copy(self)
        piece.inputs, piece.targets = take(self.inputs, rows), self.targets[rows]
        return piece

    def in_bfloat16(self) -> Loss:
        """The same loss with activations and weights of eight bits' precision, for `measure` alone.

        Losses are off by some thousandths. Processors that multiply bfloat16 take half the time.
        """
        short = copy.copy(self)
        model, inputs = copy.deepcopy(self.model), self.inputs
        if isinstance(inputs, Tensor):  # what no weight changes is done once, and exactly
            before, model = without_weights(model)
            with torch.no_grad():
                inputs = before(inputs)
        short.model = pooled_first(model).to(torch.bfloat16)
        short.inputs = map_tensors(lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t, inputs)
        short.micro_batch, short._copies, short._short = SHORT_MICRO_BATCH, None, True
        return short

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector over all weights, by the names of the parameters."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts)}

    @torch.no_grad()
    def measure(self, at: Tensor | None = None) -> Measured:
        """Loss and accuracy with other weights, or with the model's own."""
        vector = self.weights if at is None else at
        weights = self.named(vector.to(torch.bfloat16) if self._short else vector)

        def task(model: nn.Module, inputs: Any, targets: Tensor) -> Sums:
            with torch.no_grad(), Smooth():
                outputs = functional_call(model, weights, *_arguments(inputs))
                if self._short:
                    outputs = map_tensors(_longer, outputs)
                total = self._losses(outputs, targets).double().sum()
                logits = found_logits(outputs)
                if targets.is_floating_point() or logits is None or logits.dim() != 2:
                    return [total]
                return [total, (logits.argmax(1) == targets).double().sum()]

        sums = self._over_rows(task)
        return Measured(float(sums[0]) / len(self), float(sums[1]) / len(self) if len(sums) > 1 else None)

    def gradient(self, at: Tensor | None = None) -> Tensor:
        """The gradient of the mean loss."""
        weights = self.weights if at is None else at

        def task(model: nn.Module, inputs: Any, targets: Tensor) -> Sums:
            with torch.enable_grad(), Smooth():
                leaves = {name: w.detach().requires_grad_() for name, w in self.named(weights).items()}
                total = self._total(model, leaves, inputs, targets)
                return list(_gradients(total, leaves))

        return flat(self._over_rows(task)) / len(self)

    def hessian_times(self, vector: Tensor) -> Tensor:
        """The Hessian of the mean loss times a vector, exactly.

        Forward over reverse: the gradient is computed with its derivative along the vector carried along. A
        model with an operation that knows no forward mode gets the gradient of a gradient instead.
        """
        if vector.shape != self.weights.shape:
            raise InputError("vector", str(tuple(vector.shape)), f"one number a weight, ({self.dimension},)")
        weights, along = self.weights, self.named(vector.to(self.weights))
        if self._forward_over_reverse:
            try:
                return self._carried_along(weights, along)
            except (NotImplementedError, RuntimeError):
                self._forward_over_reverse = False

        def task(model: nn.Module, inputs: Any, targets: Tensor) -> Sums:
            with torch.enable_grad(), plain_attention():
                leaves = {name: w.detach().requires_grad_() for name, w in self.named(weights).items()}
                total = self._total(model, leaves, inputs, targets)
                gradients = _gradients(total, leaves, create_graph=True)
                inner = sum((g * along[name]).sum() for name, g in zip(leaves, gradients) if g.requires_grad)
                if not isinstance(inner, Tensor):  # the loss is linear in the weights
                    return [torch.zeros_like(leaf) for leaf in leaves.values()]
                return list(_gradients(inner, leaves))

        return flat(self._over_rows(task)) / len(self)

    def _carried_along(self, weights: Tensor, along: dict[str, Tensor]) -> Tensor:
        def task(model: nn.Module, inputs: Any, targets: Tensor) -> Sums:
            with torch.enable_grad(), Smooth(), plain_attention():
                leaves = {
                    name: forward_mode.make_dual(w.detach().requires_grad_(), along[name])
                    for name, w in self.named(weights).items()
                }
                total = self._total(model, leaves, inputs, targets)
                found = (forward_mode.unpack_dual(g).tangent for g in _gradients(total, leaves))
                return [
                    torch.zeros_like(along[name]) if tangent is None else tangent.detach()
                    for name, tangent in zip(leaves, found)
                ]

        totals: Sums = []
        step = self.micro_batch * max(1, lanes.lane_count(list(self.model.parameters())))
        for start in range(0, len(self), step):
            piece = self._piece(slice(start, start + step))
            # One level for all lanes: torch has no more than one. It keeps every tangent until it ends, so it
            # ends after one micro-batch a lane.
            with forward_mode.dual_level():
                found = [t.clone() for t in piece._over_rows(task)]
            self._copies = piece._copies
            totals = [a.add_(b) for a, b in zip(totals, found)] if totals else found
        return flat(totals) / len(self)

    def _total(self, model: nn.Module, weights: dict[str, Tensor], inputs: Any, targets: Tensor) -> Tensor:
        return self._losses(functional_call(model, weights, *_arguments(inputs)), targets).sum()

    def _losses(self, outputs: Any, targets: Tensor) -> Tensor:
        losses = self.loss_fn(outputs, targets)
        check_losses(losses, len(targets))
        return losses

    def _over_rows(self, task: Task) -> Sums:
        """The sums of a task over all rows: micro-batches, dealt out to a lane for each thread."""
        keep_freed_memory()
        parts = list(self._parts())
        many = min(lanes.lane_count(list(self.model.parameters())), len(parts))
        if self._copies is None or len(self._copies) < many:
            self._copies = lanes.copies(self.model, many)
        if self._copies is None:
            self._copies, many = [self.model], 1

        def lane(model: nn.Module, mine: list[slice]) -> Sums:
            sums: Sums = []
            with without_compilation(model):
                for part in mine:
                    found = task(model, take(self.inputs, part), self.targets[part])
                    sums = [a.add_(b) for a, b in zip(sums, found)] if sums else [t.clone() for t in found]
            return sums

        if many == 1:
            return lane(self.model, parts)
        works = [(model, parts[i::many]) for i, model in enumerate(self._copies[:many])]
        done = lanes.run([lambda work=work: lane(*work) for work in works])  # type: ignore[misc]
        return [torch.stack(each).sum(0) for each in zip(*done)]

    def _parts(self) -> Iterator[slice]:
        """Equal parts of the rows, as many for every lane."""
        many = max(1, lanes.lane_count(list(self.model.parameters())))
        count = min(-(-len(self) // (self.micro_batch * many)) * many, len(self))
        edges = [len(self) * i // count for i in range(count + 1)]
        yield from (slice(start, stop) for start, stop in pairwise(edges))


def flat(tensors: Mapping[str, Tensor] | list[Tensor]) -> Tensor:
    """One vector of all numbers, in order."""
    values = list(tensors.values()) if isinstance(tensors, Mapping) else tensors
    return torch.cat([t.reshape(-1) for t in values])


def _gradients(total: Tensor, leaves: dict[str, Tensor], create_graph: bool = False) -> tuple[Tensor, ...]:
    """The gradient of each weight; zeros for one that the loss does not depend on."""
    found = torch.autograd.grad(total, list(leaves.values()), create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves.values()))


def _longer(value: Any) -> Any:
    """Outputs may hold more than tensors."""
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _arguments(inputs: Any) -> tuple[Any, dict[str, Any] | None]:
    """The inputs of a model as `functional_call` takes them."""
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), None


def _chosen(many: int, rows: int | None, seed: int) -> Tensor:
    if rows is not None:
        check_count("rows", rows)
    order = torch.randperm(many, generator=torch.Generator().manual_seed(seed))
    return order if rows is None else order[:rows]


def _copied(model: nn.Module, weights: Mapping[str, Tensor] | None) -> nn.Module:
    model = copy.deepcopy(getattr(model, "_orig_mod", model)).eval()
    if weights is not None:
        parameters = dict(model.named_parameters())
        unknown = sorted(set(weights) - set(parameters))
        if unknown:
            raise InputError("weights", unknown[0], "names of the model's parameters", problem="is none")
        with torch.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(value)
    return model
