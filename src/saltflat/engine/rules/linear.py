"""Linear layers on any leading shape, matrix products on either side, and Einstein sums."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.lifting import lift
from saltflat.engine.registry import rule, unwatched
from saltflat.engine.shares import NARROW, measured_outputs
from saltflat.engine.tape import OffTapeError, Slot, Tape
from saltflat.engine.uses import DirectUse, OuterUse


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, record: Any, keep: bool
    ) -> Tensor:
        ctx.save_for_backward(x if keep else None, weight)
        ctx.record, ctx.squares = record, None
        if x.dim() == 2:
            if not len(weight) <= NARROW <= x.shape[1]:
                return F.linear(x, weight, bias)
            out, ctx.squares = measured_outputs(x, weight, bias)
            return out
        # Not a view of the product: the next layer may write into its input.
        out = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
        return torch.ops.aten._unsafe_view(out, [*x.shape[:-1], weight.shape[0]])

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        ctx.record(None if x is None else x.detach(), grad, ctx.squares)
        return grad @ weight if ctx.needs_input_grad[0] else None, None, None, None, None, None


def linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, name: str = "linear") -> Tensor:
    """``x @ weight.T + bias`` for x with its rows first; either weight may be frozen."""
    weight_slot, bias_slot = tape.slot_of(weight), tape.slot_of(bias)

    def record(inputs: Tensor | None, grad: Tensor, squares: Tensor | None) -> None:
        if weight_slot is not None and inputs is not None:
            weight_slot.add(linear_use(tape, inputs, grad, name, squares))
        if bias_slot is not None:
            bias_slot.add(bias_use(tape, grad, name))

    value, shift = value_of(weight_slot, weight), value_of(bias_slot, bias)
    # A frozen weight has no use for its inputs: where only biases are trained, no activation is kept.
    return _Linear.apply(x, value, shift, tape.anchor, record, weight_slot is not None)


def linear_use(
    tape: Tape, inputs: Tensor, grad: Tensor, name: str, squares: Tensor | None = None
) -> OuterUse | DirectUse:
    """The use of a weight ``out x in`` by ``inputs @ weight.T``; ``squares`` are those of the rows of the inputs."""
    tape.require_backward()
    own = squares if squares is not None and len(squares) == tape.units else None
    return OuterUse(as_sequence(tape, grad), as_sequence(tape, inputs), name, own).settled()


def bias_use(tape: Tape, grad: Tensor, name: str) -> DirectUse:
    """The use of a bias added along the last dimension."""
    sequence = as_sequence(tape, grad)
    return DirectUse(sequence.squeeze(1) if sequence.shape[1] == 1 else sequence.sum(1), rule=name)


def as_sequence(tape: Tape, tensor: Tensor) -> Tensor:
    """View rows x ... x features as units x T x features."""
    return tensor.reshape(tape.units, -1, tensor.shape[-1])


def value_of(slot: Slot | None, tensor: Any) -> Any:
    """The detached weight if it is trainable, the tensor itself if it is frozen or absent."""
    return tensor if slot is None else slot.value


@rule(F.linear)
def _linear_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("input", "weight", "bias"), args)) | kwargs
    x, weight, bias = named["input"], named["weight"], named.get("bias")
    if not tape.holds_rows(x) or tape.holds_rows(weight) or tape.holds_rows(bias):
        return NotImplemented
    tape.require_rows(x)
    return linear(tape, x, weight, bias)


@rule(
    torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.mm, Tensor.mm, torch.mv,
    Tensor.mv,
)  # fmt: skip
def _matmul_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    a, b = args[::-1] if func is Tensor.__rmatmul__ else args
    left, right = tape.slot_of(a), tape.slot_of(b)
    if right is not None and tape.holds_rows(a) and a.dim() > 1:
        tape.require_rows(a)
        return product(tape, a, right)
    if left is not None and tape.holds_rows(b) and b.dim() > 2 and a.dim() == 2:
        tape.require_rows(b)
        return linear(tape, b.mT, a, None).mT
    return NotImplemented


def product(tape: Tape, x: Tensor, slot: Slot) -> Any:
    """``x @ weight`` for a matrix, a vector, or a stack of matrices that lies along the dimensions of x."""
    weight = slot.value
    if weight.dim() > 2:
        return x @ lift(tape, slot.tensor, x.dim(), len(x)) if weight.dim() < x.dim() else NotImplemented

    def record(inputs: Tensor, grad: Tensor, squares: Tensor | None) -> None:
        use = OuterUse(as_sequence(tape, inputs), as_sequence(tape, grad))
        slot.add(use if weight.dim() == 2 else DirectUse(use.gradients().squeeze(2), rule="linear"))

    turned = weight.mT if weight.dim() == 2 else weight.unsqueeze(0)
    out = _Linear.apply(x, turned, None, tape.anchor, record, True)
    return out if weight.dim() == 2 else out.squeeze(-1)


@rule(torch.addmm, Tensor.addmm)
def _addmm_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """``beta · bias + alpha · x @ W``, as GPT-2 writes its linear layers."""
    if len(args) != 3 or not kwargs.keys() <= {"beta", "alpha"}:
        return NotImplemented
    bias, x, weight = args
    weight_slot = tape.slot_of(weight)
    if not tape.holds_rows(x) or tape.holds_rows(weight):
        return NotImplemented
    tape.require_rows(x)
    out = x @ weight if weight_slot is None else product(tape, x, weight_slot)
    shift = kwargs.get("beta", 1) * lift(tape, bias, 2, len(x))
    return torch.add(shift, out, alpha=kwargs.get("alpha", 1))


@rule(torch.einsum)
def _einsum_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    labels, arrow, result = str(equation).replace(" ", "").partition("->")
    terms = labels.split(",")
    rows = [tape.holds_rows(t) for t in operands]
    batch, plain = result[:1], arrow and result and "." not in labels and not kwargs
    if not plain or any(holds != (batch in term) or term.find(batch) > 0 for term, holds in zip(terms, rows)):
        return NotImplemented  # the batch must come first wherever there are rows, and nowhere else
    count = operands[rows.index(True)].shape[0]
    if not tape.splits(count):
        raise OffTapeError
    if len(operands) == 2:
        at = rows.index(True)
        slot = tape.slot_of(operands[1 - at])
        if slot is not None and _is_linear(terms[at], terms[1 - at], result):
            return _linear_einsum(tape, operands[at], slot, terms[at], terms[1 - at], result)
    for i, t in enumerate(operands):
        if tape.slot_of(t) is not None:
            operands[i], terms[i] = lift(tape, t, t.dim() + 1, count), batch + terms[i]
    return torch.einsum(f"{','.join(terms)}->{result}", *operands)


def _is_linear(x: str, matrix: str, result: str) -> bool:
    """Whether one label of x is summed against a matrix whose other label replaces it: ``btd,dk->btk``."""
    summed, new = set(x) - set(result), set(result) - set(x)
    once = len(set(x)) == len(x) and len(matrix) == 2
    return once and len(summed) == len(new) == 1 and set(matrix) == summed | new


def _linear_einsum(tape: Tape, x: Tensor, slot: Slot, terms: str, matrix: str, result: str) -> Any:
    (summed,) = set(terms) - set(result)
    others = terms.replace(summed, "")
    last = x.permute([terms.index(label) for label in others + summed])
    out = linear(tape, last, slot.tensor, None) if matrix[1] == summed else product(tape, last, slot)
    order = others + matrix.replace(summed, "")
    return out.permute([order.index(label) for label in result])
