"""``nn.MultiheadAttention``: its projections are linear layers, its attention has no weights.

torch calls one function for the whole layer, with the batch in the second dimension. Here it is written out
with the batch first, on the tape's own linear layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.lifting import lift
from saltflat.engine.registry import rule
from saltflat.engine.rules.linear import linear
from saltflat.engine.tape import OffTapeError, Tape

_NAMES = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k",
    "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training",
    "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight", "q_proj_weight",
    "k_proj_weight", "v_proj_weight", "static_k", "static_v", "average_attn_weights", "is_causal",
)  # fmt: skip


@rule(F.multi_head_attention_forward)
def _attention_rule(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(_NAMES, args)) | kwargs
    query = named["query"]
    if query.dim() != 3 or named.get("static_k") is not None or named.get("static_v") is not None:
        raise OffTapeError  # one sequence without a batch, or keys that bypass the projections
    q, k, v = _projected(tape, named)
    tape.require_rows(q)
    rows, heads = q.shape[0], named["num_heads"]
    k = _with_extra(tape, k, named.get("bias_k"), bool(named.get("add_zero_attn")))
    v = _with_extra(tape, v, named.get("bias_v"), bool(named.get("add_zero_attn")))
    mask = _mask(named, rows, heads, q.shape[1], k.shape[1], q.dtype)
    q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    dropout = named["dropout_p"] if named.get("training", True) else 0.0
    if named.get("need_weights", True):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, dropout) if dropout > 0 else weights
        mixed = weights @ v
    else:
        weights = None
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    mixed = mixed.transpose(1, 2).flatten(2)
    out = linear(tape, mixed, named["out_proj_weight"], named.get("out_proj_bias"), "attention")
    if weights is not None and named.get("average_attn_weights", True):
        weights = weights.mean(dim=1)
    return out.transpose(0, 1), weights


def _rows_first(tape: Tape, tensor: Tensor) -> Tensor:
    """Sequence x rows x features to rows x sequence x features; learned queries become rows."""
    if tape.slot_of(tensor) is None:
        return tensor.transpose(0, 1)
    return lift(tape, tape.derive(torch.transpose, tensor, 0, 1), 3, tensor.shape[1])


def _projected(tape: Tape, named: dict[str, Any]) -> list[Tensor]:
    inputs = [named[name] for name in ("query", "key", "value")]
    bias = named.get("in_proj_bias")
    width = named["query"].shape[-1]
    if named.get("use_separate_proj_weight"):
        matrices = [named[f"{letter}_proj_weight"] for letter in "qkv"]
    elif inputs[0] is inputs[1] and inputs[1] is inputs[2]:
        packed = linear(tape, _rows_first(tape, inputs[0]), named["in_proj_weight"], bias, "attention")
        return list(packed.chunk(3, dim=-1))
    else:
        matrices = _thirds(tape, named["in_proj_weight"], width)
    biases = [None] * 3 if bias is None else _thirds(tape, bias, width)
    return [
        linear(tape, _rows_first(tape, x), weight, shift, "attention")
        for x, weight, shift in zip(inputs, matrices, biases)
    ]


def _thirds(tape: Tape, packed: Tensor, width: int) -> list[Tensor]:
    if tape.slot_of(packed) is None:
        return list(packed.split(width))
    return list(tape.derive(torch.split, packed, width))


def _with_extra(tape: Tape, keys: Tensor, learned: Tensor | None, zero: bool) -> Tensor:
    """Append a learned key (or value) and a key of zeros, as the layer's options ask."""
    if learned is not None:
        extra = lift(tape, learned, 3, len(keys)).expand(len(keys), 1, -1)
        keys = torch.cat([keys, extra], dim=1)
    return F.pad(keys, (0, 0, 0, 1)) if zero else keys


def _mask(
    named: dict[str, Any], rows: int, heads: int, queries: int, keys: int, dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one additive tensor that broadcasts over rows x heads x queries x keys."""
    total: Tensor | None = None
    padding, attention = named.get("key_padding_mask"), named.get("attn_mask")
    if padding is not None:
        total = _additive(padding, dtype)[:, None, None, :]
    if attention is not None:
        additive = _additive(attention, dtype)
        additive = additive[None, None] if additive.dim() == 2 else additive.view(rows, heads, queries, -1)
        total = additive if total is None else total + additive
    if total is not None and total.shape[-1] < keys:
        total = F.pad(total, (0, keys - total.shape[-1]))
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
