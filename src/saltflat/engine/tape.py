"""The tape: watches one forward pass, operation by operation, and notes how weights meet the batch.

Every torch function that is called with a trainable weight passes through `Tape`. Three things can
happen to it:

1. **It involves weights only** (a transposed weight, a standardised kernel, a weight norm). The result is
   itself a weight, *derived* from others: it keeps its small autograd graph, through which per-unit
   gradients are pulled back later.
2. **A rule knows how the weight meets the batch** (linear, convolution, norms, recurrent layers, ...).
   The rule runs the operation with the weight detached and records a `Use` in the backward pass.
3. **Nobody wrote a rule.** `saltflat.engine.fallback` runs torch.func on this one operation.

What escapes even that (a custom autograd function, TorchScript) still reaches the real parameters in the
backward pass, is noticed there, and is computed example by example. So no gradient is ever missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointError

from saltflat.engine.derived import pulled_back, unexpanded
from saltflat.engine.functions import (
    EXPANSIONS,
    QUESTIONS,
    embedding_arguments,
    tensors_in,
    writes_in_place,
    written,
)
from saltflat.engine.lanes import SharedRowsError
from saltflat.engine.order import keeps_order, what_goes_in
from saltflat.engine.registry import FASTER, RULES
from saltflat.engine.uses import DirectUse, LookupUse, RowUse, Use, merged
from saltflat.engine.workspace import Workspace
from saltflat.errors import RefusedError


class OffTapeError(Exception):
    """The tape cannot follow this operation; the caller computes the batch example by example."""


class BatchElsewhereError(OffTapeError):
    """A layer's input seems to have the batch in its second dimension."""


class Slot:
    """A weight on the tape: a parameter, or a tensor derived from parameters.

    Two derivations are known by name, because a shortcut leads back from them: rows made by expanding
    ``source``, and rows of ``source`` looked up at ``index``.
    """

    def __init__(self, tensor: Tensor, source: Slot | None = None, index: Tensor | None = None) -> None:
        self.tensor = tensor
        self.value = tensor.detach()
        self.source, self.index = source, index
        self.uses: list[Use] = []
        self.open = False

    @property
    def is_parameter(self) -> bool:
        return self.tensor.is_leaf

    def add(self, use: Use) -> None:
        """Record a use. Called in the backward pass, when the gradient is known."""
        if not self.open:  # the model itself asks for a gradient, which is no use of the weight yet
            raise OffTapeError
        self.uses.append(use)


class Kept:
    """What came out of an operation, for its backward pass, though the model may write into it after."""

    def __init__(self, out: Tensor) -> None:
        self._out: Tensor | None = out.detach()
        self._version = out._version

    def spare(self, other: Tensor) -> None:
        """Take a copy if somebody is about to write where it lies."""
        out = self._out
        if out is not None and other.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
            self._out = out.clone()
            self._version = self._out._version

    def value(self) -> Tensor:
        """The numbers that came out, for the backward pass: unless another one follows, they are let go."""
        out = self._out
        if (
            out is None or out._version != self._version
        ):  # written into by something that the tape did not see
            raise OffTapeError
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self._out = None  # its memory is for the records now
        return out


class Tape(TorchFunctionMode):
    """Records every use of the model's trainable weights during one forward pass.

    ``units`` is the number of protected units in the batch. A tensor with r · units rows holds r rows of
    each unit, one unit after the other. ``workspace`` holds what serves several micro-batches.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        units: int,
        workspace: Workspace | None = None,
        in_company: bool = False,
        weighing: dict[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.units = units
        self.workspace = workspace or Workspace()
        self.in_company = in_company  # of tapes in other lanes, whose rows must not come here
        self.weighing = weighing  # bytes of activations by their address, where somebody wants to know
        self.slots: dict[int, Slot] = {id(p): Slot(p) for p in parameters}
        self.parameters = [slot.tensor for slot in self.slots.values()]
        # The root of every recorded operation: without it, autograd would not visit a first layer whose
        # input needs no gradient and whose weight is detached.
        device = self.parameters[0].device if self.parameters else None
        self.anchor = torch.zeros((), requires_grad=True, device=device)
        self.ratios: set[int] = set()
        self.kept: list[Kept] = []
        self.held: list[Tensor] = []
        self._backwards = False
        self._marks = object(), object()  # rows in the order of the units, rows out of order

    # --- the forward pass -------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in QUESTIONS or (self._backwards and not torch.is_grad_enabled()):
            return func(*args, **kwargs)
        if self.kept:
            self._spare_kept(func, args, kwargs)
        tensors = list(tensors_in(*what_goes_in(func, args, kwargs)))
        slots = self.slots
        if self.in_company:
            self._refuse_strangers(tensors)
        if not torch.is_grad_enabled() or not any(id(t) in slots for t in tensors):
            marks = {getattr(t, "_saltflat_rows", None) for t in tensors}
            if marks.isdisjoint(self._marks):
                return _run(func, args, kwargs)
            in_order = self._marks[1] not in marks and keeps_order(
                self.holds_rows, self.units, func, args, kwargs
            )
            out = NotImplemented
            if func in FASTER and in_order and torch.is_grad_enabled():
                out = FASTER[func](self, func, args, kwargs)
            if out is NotImplemented:
                out = _run(func, args, kwargs)
            self.mark(written(func, args, out), in_order)
            return out
        if not any(self.holds_rows(t) for t in tensors):
            return self.derive(func, *args, **kwargs)
        if torch.is_autocast_enabled(self.anchor.device.type):
            with torch.autocast(self.anchor.device.type, enabled=False):
                return self._meet(func, *self._in_one_precision(func, args, kwargs))
        return self._meet(func, args, kwargs)

    def keep(self, out: Tensor, instead_of: Tensor) -> Kept:
        """Keep what came out of an operation until its backward pass, where torch would keep what went in."""
        self.kept.append(Kept(out))
        if self.weighing is not None:
            # Weighed as an ordinary step would hold it: what is freed now may or may not be weighed, by chance.
            self.held.append(instead_of.detach())
        return self.kept[-1]

    def _spare_kept(self, func: Any, args: Any, kwargs: Any) -> None:
        """Copy what is kept before somebody writes into it."""
        if not (writes_in_place(func) or kwargs.get("inplace") or kwargs.get("out") is not None):
            return
        for target in tensors_in((*args[:1], kwargs.get("input"), kwargs.get("out")), {}):
            for kept in self.kept:
                kept.spare(target)

    def _refuse_strangers(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            mark = getattr(tensor, "_saltflat_rows", None)
            if mark is not None and mark not in self._marks:
                raise SharedRowsError

    def _meet(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation in which weights meet rows: by its rule, or by the fallback."""
        tensors = list(tensors_in(args, kwargs))
        if any(getattr(t, "_saltflat_rows", None) is self._marks[1] for t in tensors):
            raise OffTapeError
        # The rules are written for real numbers: a complex gradient is conjugated on the way.
        known = None if any(t.is_complex() for t in tensors) else RULES.get(func)
        out = NotImplemented if known is None else known(self, func, args, kwargs)
        if out is NotImplemented:
            from saltflat.engine.fallback import run_one_operation

            out = run_one_operation(self, func, args, kwargs)
        self.mark(written(func, args, out))
        return out

    def _in_one_precision(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Rows that autocast made short, in the precision of the weights that they meet."""
        if writes_in_place(func):
            return args, kwargs
        dtype = next(t.dtype for t in tensors_in(args, kwargs) if id(t) in self.slots)

        def cast(value: Any) -> Any:
            if not self.holds_rows(value) or not value.is_floating_point() or value.dtype == dtype:
                return value
            longer = value.to(dtype)
            self.mark([longer])
            return longer

        return tree_map(cast, (args, kwargs))

    def derive(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operation on weights alone: its results are weights too."""
        out = func(*args, **kwargs)
        for t in written(func, args, out):
            if t.requires_grad and id(t) not in self.slots:
                self.slots[id(t)] = Slot(t, *self._origin(func, args, kwargs))
        return out

    def _origin(self, func: Any, args: Any, kwargs: Any) -> tuple[Slot | None, Tensor | None]:
        """Of which weight the result holds rows, and which ones, where that is known."""
        if func in EXPANSIONS and args:
            return self.slots.get(id(args[0])), None
        if func is not F.embedding:
            return None, None
        named = embedding_arguments(args, kwargs)
        # A row that is left out, or one that is scaled by how often it was looked up, is no plain look-up.
        unlike = named.get("padding_idx") is not None or named.get("max_norm") is not None
        if unlike or named.get("scale_grad_by_freq"):
            return None, None
        return self.slots.get(id(named["weight"])), named["input"]

    def slot_of(self, tensor: Any) -> Slot | None:
        """The slot of a trainable or derived weight; None for anything else."""
        return self.slots.get(id(tensor)) if isinstance(tensor, Tensor) else None

    def holds_rows(self, tensor: Any) -> bool:
        """Whether a tensor depends on the batch."""
        if not isinstance(tensor, Tensor) or id(tensor) in self.slots:
            return False
        return tensor.requires_grad or getattr(tensor, "_saltflat_rows", None) in self._marks

    def splits(self, rows: int) -> bool:
        """Whether ``rows`` rows can be the rows of the units, as many for each; if so, note how many."""
        if rows == 0 or rows % self.units:
            return False
        self.ratios.add(rows // self.units)
        return True

    def require_rows(self, tensor: Tensor) -> None:
        """Make sure that a layer's input has its rows first."""
        if tensor.dim() > 1 and self.splits(tensor.shape[0]):
            return
        if tensor.dim() > 2 and tensor.shape[1] == self.units:
            raise BatchElsewhereError(tuple(tensor.shape))
        raise OffTapeError  # ragged rows, such as the tokens under a mask

    def mark(self, tensors: Iterable[Tensor], in_order: bool = True) -> None:
        """Note that these tensors depend on the batch."""
        for tensor in tensors:
            # On the tensor object: torch keeps it alive as long as the tensor itself, and no longer.
            tensor._saltflat_rows = self._marks[not in_order]  # type: ignore[attr-defined]
            if self.weighing is not None and tensor.layout is torch.strided and not tensor._is_view():
                # By address: what autograd did not keep is overwritten by what came after. A view holds nothing of
                # its own, and rows of the batch lie in the memory of all its rows.
                storage = tensor.untyped_storage()
                self.weighing[storage.data_ptr()] = storage.nbytes()

    def require_backward(self) -> None:
        """Stop unless this is the backward pass of the losses: a model may ask for gradients of its own."""
        if not self._backwards:
            raise OffTapeError

    # --- after the backward pass ------------------------------------------------------------------

    def backward(self, losses: Tensor) -> bool:
        """Run the backward pass; True if every gradient went through the tape."""
        return not losses.requires_grad or self.pulled_to([], [losses], [torch.ones_like(losses)]) is not None

    def pulled_to(
        self, inputs: list[Tensor], outputs: list[Tensor], grads: list[Tensor], keep_graph: bool = False
    ) -> list[Tensor | None] | None:
        """Run the backward pass from gradients that are known; those at ``inputs``, or None if one escaped the tape."""
        self._backwards = True
        for slot in self.slots.values():
            slot.open = True
        wanted = [get_gradient_edge(self.anchor), *map(self.workspace.edge, self.parameters)]
        wanted += [get_gradient_edge(t) for t in inputs]
        try:
            found = gradients_of(outputs, wanted, self, grads, keep_graph)
        except (CheckpointError, OffTapeError):
            return None
        weights = found[1 : 1 + len(self.parameters)]
        return list(found[1 + len(self.parameters) :]) if all(grad is None for grad in weights) else None

    @torch.no_grad()
    def collected(self) -> dict[int, Use]:
        """One use for each parameter that was used, by the parameter's id."""
        slots = list(self.slots.values())
        # later derivations first: they feed earlier ones
        for place, slot in reversed(list(enumerate(slots))):
            if slot.uses and not slot.is_parameter:
                self._pull_back(slot, place)
        return {id(s.tensor): merged(s.uses) for s in slots if s.uses and s.is_parameter}

    def _pull_back(self, slot: Slot, place: int) -> None:
        """Carry the per-unit gradients of a derived weight back to the parameters it came from."""
        uses, slot.uses = slot.uses, []
        use = merged(uses)
        source = slot.source
        if source is not None and isinstance(use, RowUse):
            if slot.index is not None:
                index, width = slot.index.reshape(use.units, -1), slot.value.shape[-1]
                rows = use.grads.reshape(use.units, -1, width)
                source.add(LookupUse(index, rows, len(source.value)))
                return
            grads = unexpanded(use, source.value)
            if grads is not None:
                source.add(DirectUse(grads, rule=use.rule))
                return
        for parent, found in pulled_back(slot.tensor, self.parameters, use, self.workspace.notes, place):
            self.slots[id(parent)].add(found)


def gradients_of(
    outputs: list[Tensor],
    inputs: list[GradientEdge],
    tape: Tape | None = None,
    grads: list[Tensor] | None = None,
    keep_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Autograd of the summed outputs, or from their gradients where these are given.

    From edge to edge, not of tensors: the tape must not see this call. A checkpointed part runs forward again,
    under the same tape.
    """
    starts = [get_gradient_edge(t) for t in outputs]
    given = [torch.ones_like(t) for t in outputs] if grads is None else grads
    try:
        with tape or nullcontext():
            return torch.autograd.grad(starts, inputs, given, retain_graph=keep_graph, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise RefusedError(
            "A model with reentrant checkpoints",
            "they accumulate the gradients of the whole batch where no unit can be told apart.",
            "Call torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
        ) from error


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        # Convolutions run with channels last; a model written for the default layout may flatten by view.
        if func is Tensor.view and not any(isinstance(size, torch.dtype) for size in args[1:]):
            return Tensor.reshape(*args, **kwargs)
        raise
