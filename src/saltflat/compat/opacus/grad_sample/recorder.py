"""The recorder: stands around a model's forward, and leaves records at its parameters after each backward pass."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from saltflat.compat.opacus.grad_sample.bags import by_example
from saltflat.compat.opacus.grad_sample.parameters import EmptyRecord, Record, Watched, unwatch, watch
from saltflat.compat.opacus.utils.packed_sequences import Padded
from saltflat.engine.acquaintance import Acquaintance
from saltflat.engine.calling import in_full_precision, untouched
from saltflat.engine.one_call import Call, Known
from saltflat.engine.passes import Clip, Pass
from saltflat.errors import PrivacyWarning, RefusedError

ACCUMULATION = (
    "Poisson sampling is not compatible with grad accumulation. "
    "You need to call optimizer.step() after every forward/backward pass "
    "or consider using BatchMemoryManager"
)


class Recorder:
    """Runs a module's calls through the engine while it trains.

    Calls that went forward before the first of them went backward belong to the same examples: example i of
    one and example i of the other are clipped together, as in Opacus. A call after a backward pass begins
    another batch.
    """

    def __init__(self, module: nn.Module, *, batch_first: bool, loss_reduction: str) -> None:
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction = {loss_reduction}. Only 'sum' and 'mean' losses are supported")
        self.module, self.batch_first, self.loss_reduction = module, batch_first, loss_reduction
        self.enabled = True
        self.ghost = False
        self.accumulation_allowed = True
        # Whether p.grad gets the gradient of the batch as well, as an ordinary backward pass would leave it.
        self.batch_gradient = True
        self.clip: Callable[[], Clip | None] = lambda: None  # an optimizer says how, if it knows already
        self.weights: Callable[[], Sequence[Tensor] | None] = lambda: None  # where gradients are taken
        # Asked whether the examples are in the second dimension of all arguments: what to do if that is taken.
        self.rows_second: Callable[[Sequence[Any]], Callable[[], None] | None] = lambda _: None
        self._known = Acquaintance()
        self._types: dict[Any, list[torch.dtype | None]] = {}  # of outputs under autocast
        self._waiting: list[weakref.ref[Pass]] = []
        self._group: list[Pass] = []
        self._orders: weakref.WeakKeyDictionary[Pass, Tensor] = weakref.WeakKeyDictionary()
        for p in self.trainable():
            watch(p, self)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a wrapped module is not recorded: who copies, averages or teaches, and trains the original."""

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained at the moment."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def close(self) -> None:
        """Leave the parameters as they were found."""
        self.enabled = False
        for p in self.module.parameters():
            unwatch(p)
            p.__dict__.pop("summed_grad", None)

    def __call__(self, run: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call the module, ``run(module, *args, **kwargs)``, and record what a backward pass will say."""
        parameters = self.trainable()
        if not (self.enabled and self.module.training and torch.is_grad_enabled() and parameters):
            return run(self.module, *args, **kwargs)
        for p in parameters:
            if not isinstance(p, Watched):  # was frozen when the module was wrapped
                watch(p, self)
        if self.batch_first:
            run, args = by_example(self.module, run, args)
        padded = Padded((args, kwargs), self.batch_first)
        if padded.found:
            rows, named = padded.arguments
            out = self._recorded(_repacking(run, padded), rows, named, padded.order)
            return padded.outputs_packed_again(out)
        return self._recorded(run, args, kwargs)

    def _recorded(
        self, run: Callable[..., Any], args: Any, kwargs: dict[str, Any], order: Tensor | None = None
    ) -> Any:
        parameters = self.trainable()
        call = Call.of(self.module, run, args, kwargs, dim=0 if self.batch_first else 1)
        if call is None:
            raise RefusedError(
                "A call without a tensor", "nothing in it says which examples it is about.",
                "Pass the batch as a tensor whose first dimension holds the examples.",
            )  # fmt: skip
        if self._group:
            self.close_group()
        if call.units == 0:
            return self._empty(call, parameters)
        call, known = self._looked_at(call)
        this = Pass(
            call, parameters, known, scale=partial(self._scale, float(call.units)), clip=self._clip_now,
            arrived=self._arrived, weights=self.weights(),
        )  # fmt: skip
        self._waiting = [ref for ref in self._waiting if ref() is not None]
        self._waiting.append(weakref.ref(this))
        if order is not None:
            self._orders[this] = order
        return self._in_types_of_torch(call, this.forward())

    def _in_types_of_torch(self, call: Call, out: Any) -> Any:
        """Under autocast, outputs in the types that torch gives them; gradients of weights keep that of the weights.

        The tape meets weights in their own type, so its outputs are longer. They are rounded row by row before any
        gradient is known: what is clipped, and how, stays the same. The first call of a form is compared with
        a plain one.
        """
        device = self.trainable()[0].device.type
        if not torch.is_autocast_enabled(device):
            return out
        leaves, spec = tree_flatten(out)
        form = torch.get_autocast_dtype(device), call.form(), spec
        if form not in self._types:
            with torch.no_grad(), untouched(self.module):
                plainly = tree_flatten(call.filled(self.module, {}))[0]
            self._types[form] = [leaf.dtype if isinstance(leaf, Tensor) else None for leaf in plainly]
        found = [
            leaf.to(kind) if isinstance(leaf, Tensor) and kind is not None else leaf
            for leaf, kind in zip(leaves, self._types[form], strict=True)
        ]
        return tree_unflatten(found, spec)

    def _looked_at(self, call: Call) -> tuple[Call, Known]:
        try:
            return call, self._known.with_call(call)
        except RefusedError as error:
            if not self.batch_first:
                raise
            turned = self._turned(call)
            if turned is not None:
                return turned
            hint = f"{error.cure} If the examples are in the second dimension, pass batch_first=False."
            raise RefusedError(error.what, error.why, hint) from error

    def _turned(self, call: Call) -> tuple[Call, Known] | None:
        """The call with its examples in the second dimension, where the loader and the model say so."""
        taken = self.rows_second(call.leaves)
        if taken is None:
            return None
        args, kwargs = tree_unflatten(call.leaves, call.spec)
        turned = Call.of(self.module, call.run, args, kwargs, dim=1)
        assert turned is not None
        known = self._known.with_call(turned)
        if not known.together:
            return None
        self.batch_first = False
        taken()
        warnings.warn(
            "The examples are in the second dimension of the batches that the private loader makes, and the model "
            "keeps them apart there: batch_first=False is taken, and each example is clipped. (Opacus would clip "
            "each position over all examples.) Pass batch_first=False to say so yourself.",
            PrivacyWarning,
            stacklevel=6,
        )  # fmt: skip
        return turned, known

    @property
    def _by_hand(self) -> bool:
        """Whether a backward pass is the second of somebody who clips by hand: of a sum of weighed losses."""
        return self.ghost and not self.enabled

    def _scale(self, units: float) -> float:
        return units if self.loss_reduction == "mean" and not self._by_hand else 1.0

    def _clip_now(self) -> Clip | None:
        """How to clip at once; None while other calls may belong to the same examples."""
        alone = not self._group and sum(ref() is not None for ref in self._waiting) == 1
        return self.clip() if alone else None

    def _arrived(self, this: Pass) -> None:
        self._waiting = [ref for ref in self._waiting if ref() not in (None, this)]
        self._group.append(this)
        if not self._waiting:
            self.close_group()

    def close_group(self) -> None:
        """The calls that went backward so far are one batch."""
        passes, self._group = self._group, []
        if passes:
            parameters = passes[0].parameters
            record = Record(passes, parameters, self._orders.get(passes[0]))
            record.counts_norms = not self._by_hand
            self._leave(record, parameters)

    def drop_group(self) -> None:
        """Somebody cleared the gradients: what arrived is forgotten."""
        self._group = []

    def _leave(self, record: Record, parameters: Sequence[nn.Parameter]) -> None:
        for p in parameters:
            p._records.append(record)  # type: ignore[attr-defined]
            if len(p._records) > 1 and not self.accumulation_allowed:  # type: ignore[attr-defined]
                raise ValueError(ACCUMULATION)
        if self.batch_gradient:
            self._leave_batch_gradient(record, parameters)

    def _leave_batch_gradient(self, record: Record, parameters: Sequence[nn.Parameter]) -> None:
        with torch.no_grad(), in_full_precision(parameters[0].device):
            for p in parameters:
                for units, uses in record.parts():
                    use = uses.get(id(p))
                    if use is None:
                        continue
                    scale = 1 / self._scale(sum(u for u, _ in record.parts()))
                    grad = use.weighted_sum(torch.full((units,), scale, dtype=p.dtype, device=p.device))
                    p.grad = grad.view_as(p).clone() if p.grad is None else p.grad.add_(grad.view_as(p))

    def _empty(self, call: Call, parameters: Sequence[nn.Parameter]) -> Any:
        """A batch without rows: the outputs have none either, whether or not the model can compute them."""
        self._leave(EmptyRecord(parameters), parameters)
        args, kwargs = tree_unflatten(call.leaves, call.spec)
        try:
            with torch.no_grad():
                out = call.run(self.module, *args, **kwargs)
        except Exception:  # whatever a model raises that was not made for no rows
            out = self._outputs_of_none(call)

        def tied(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return value.detach().requires_grad_()  # so that loss.backward() has somewhere to go

        return tree_map(tied, out)

    def _outputs_of_none(self, call: Call) -> Any:
        """What the model says about one row of zeros, without that row."""

        def one(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() <= call.dim or value.shape[call.dim] != 0:
                return value
            shape = list(value.shape)
            shape[call.dim] = 1
            return value.new_zeros(shape)

        args, kwargs = tree_unflatten([one(leaf) for leaf in call.leaves], call.spec)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = call.run(self.module, *args, **kwargs)

        def none(value: Any) -> Any:
            if isinstance(value, Tensor):
                for dim in dict.fromkeys((0, call.dim)):
                    if value.dim() > dim and value.shape[dim] == 1:
                        return value.narrow(dim, 0, 0)
            return value

        leaves, spec = tree_flatten(out)
        return tree_unflatten([none(leaf) for leaf in leaves], spec)


def _repacking(run: Callable[..., Any], padded: Padded) -> Callable[..., Any]:
    """The same call with packed sequences inside, and rows of examples outside."""

    def repacked(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        own_args, own_kwargs = padded.packed_again((args, kwargs))
        return padded.outputs(run(module, *own_args, **own_kwargs))

    return repacked
