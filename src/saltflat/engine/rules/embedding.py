"""Embedding tables, with a padding index."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.functions import embedding_arguments
from saltflat.engine.registry import rule, unwatched
from saltflat.engine.rules.linear import as_sequence
from saltflat.engine.tape import OffTapeError, Slot, Tape
from saltflat.engine.uses import LookupUse
from saltflat.errors import RefusedError


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, index: Tensor, weight: Tensor, anchor: Tensor, record: Any) -> Tensor:
        ctx.save_for_backward(index)
        ctx.record = record
        return F.embedding(index, weight)

    @staticmethod
    @unwatched
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.record(*ctx.saved_tensors, grads[0])
        return None, None, None, None


@rule(F.embedding)
def _embedding_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = embedding_arguments(args, kwargs)
    index, weight, padding = named["input"], named["weight"], named.get("padding_idx")
    slot = tape.slot_of(weight)
    if slot is None or not tape.splits(index.shape[0]):
        return NotImplemented
    if named.get("max_norm") is not None:
        raise RefusedError(
            "Embedding(max_norm=...)",
            "it rewrites the rows that were looked up, without noise, which shows the tokens of the data.",
            "Leave max_norm out.",
        )
    if named.get("scale_grad_by_freq"):
        raise RefusedError(
            "Embedding(scale_grad_by_freq=True)",
            "it divides by counts over the whole batch, so one example changes the gradients of others.",
            "Leave scale_grad_by_freq out.",
        )
    return _lookup(tape, slot, index, None if padding is None else padding % len(weight))


def _lookup(tape: Tape, slot: Slot, index: Tensor, padding: int | None) -> Tensor:
    rows = len(slot.value)

    def record(looked_up: Tensor, grad: Tensor) -> None:
        flat, sequence = looked_up.reshape(tape.units, -1), as_sequence(tape, grad)
        if padding is not None:
            sequence = sequence.masked_fill((flat == padding)[:, :, None], 0)
        slot.add(LookupUse(flat, sequence, rows))

    return _Lookup.apply(index, slot.value, tape.anchor, record)


@rule(Tensor.__getitem__, torch.index_select, Tensor.index_select)
def _row_of_table_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """``table[tokens]``: an embedding without the layer."""
    if kwargs or (func is not Tensor.__getitem__ and args[1] != 0):
        return NotImplemented
    table, index = args[0], args[-1]
    slot = tape.slot_of(table)
    if slot is None or table.dim() != 2 or not tape.holds_rows(index) or index.dim() == 0:
        return NotImplemented
    if index.dtype != torch.long or not tape.splits(len(index)):
        return NotImplemented
    # whatever else is no row of the table, torch refuses
    return _lookup(tape, slot, torch.where(index < 0, index + len(table), index), None)


@rule(F.embedding_bag)
def _embedding_bag_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Bags of equal length: looked up, weighted, then reduced."""
    names = (
        "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
        "per_sample_weights", "include_last_offset", "padding_idx",
    )  # fmt: skip
    named = dict(zip(names, args)) | kwargs
    index, padding, mode = named["input"], named.get("padding_idx"), named.get("mode", "mean")
    if index.dim() != 2 or tape.slot_of(named.get("per_sample_weights")) is not None:
        raise OffTapeError  # one long list with offsets: rows of different lengths
    passed_on = {key: named.get(key) for key in ("max_norm", "scale_grad_by_freq")}
    rows = _embedding_rule(tape, F.embedding, (index, named["weight"], padding), passed_on)
    if rows is NotImplemented:
        return NotImplemented
    if named.get("per_sample_weights") is not None:
        rows = rows * named["per_sample_weights"].unsqueeze(-1)
    kept = torch.ones_like(index) if padding is None else (index != padding % named["weight"].shape[0]).long()
    kept = kept.unsqueeze(-1)
    if mode == "max":
        return rows.masked_fill(kept == 0, -torch.inf).amax(1).masked_fill((kept == 0).all(1), 0)
    total = (rows * kept).sum(1)
    return total if mode == "sum" else total / kept.sum(1).clamp(min=1)
