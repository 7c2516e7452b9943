"""Attention with the parts and parameters that Opacus gives it, computed by torch's own function."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROJECTIONS = ("qlinear", "klinear", "vlinear")


class SequenceBias(nn.Module):
    """Adds a learned element to the end of each sequence.

    >>> SequenceBias(16)(torch.zeros(20, 4, 16)).shape
    torch.Size([21, 4, 16])
    """

    def __init__(self, embed_dim: int, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.bias = nn.Parameter(torch.empty(embed_dim))
        nn.init.normal_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The sequences, one element longer."""
        rows, length = (0, 1) if self.batch_first else (1, 0)
        last = self.bias.expand(x.shape[rows], -1).unsqueeze(length)
        return torch.cat([x, last], dim=length)


class DPMultiheadAttention(nn.Module):
    """`torch.nn.MultiheadAttention` with one linear layer each for queries, keys and values, as in Opacus.

    Its own ``state_dict()`` has the names of torch's layer, so weights go to and from it; inside a model the names
    are ``qlinear``, ``klinear`` and ``vlinear``, as in checkpoints of Opacus. Either are loaded, everywhere.

    >>> attention = DPMultiheadAttention(8, 2)
    >>> sorted(attention.state_dict())
    ['in_proj_bias', 'in_proj_weight', 'out_proj.bias', 'out_proj.weight']
    >>> sorted(nn.Sequential(attention).state_dict())[:2]
    ['0.klinear.bias', '0.klinear.weight']
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise AssertionError(
                f"embed_dim must be divisible by num_heads: {embed_dim} is not divisible by {num_heads}"
            )
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        sizes = zip(PROJECTIONS, (embed_dim, self.kdim, self.vdim), strict=True)
        for name, size in sizes:
            setattr(self, name, nn.Linear(size, embed_dim, bias=bias, device=device, dtype=dtype))
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.add_bias_kv, self.add_zero_attn = add_bias_kv, add_zero_attn
        if add_bias_kv:
            self.seq_bias_k = SequenceBias(embed_dim).to(device=device, dtype=dtype)
            self.seq_bias_v = SequenceBias(embed_dim).to(device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        # Asked for by torch's TransformerEncoderLayer, before it takes a short cut that is not for this layer.
        self._qkv_same_embed_dim = False
        self.in_proj_weight = self.in_proj_bias = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What torch's layer returns: outputs, and the weights averaged over the heads (or None)."""
        if query.dim() != 3:
            raise AssertionError("The query must have a dimension of 3.")
        if self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        q, k, v = (getattr(self, name) for name in PROJECTIONS)
        bias_k, bias_v = (
            (self.seq_bias_k.bias.view(1, 1, -1), self.seq_bias_v.bias.view(1, 1, -1))
            if self.add_bias_kv
            else (None, None)
        )
        out, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads,
            in_proj_weight=None,
            in_proj_bias=None if q.bias is None else torch.cat([q.bias, k.bias, v.bias]),
            bias_k=bias_k, bias_v=bias_v, add_zero_attn=self.add_zero_attn, dropout_p=self.dropout.p,
            out_proj_weight=self.out_proj.weight, out_proj_bias=self.out_proj.bias,
            training=self.training, key_padding_mask=key_padding_mask, need_weights=need_weights,
            attn_mask=attn_mask, is_causal=is_causal, use_separate_proj_weight=True,
            q_proj_weight=q.weight, k_proj_weight=k.weight, v_proj_weight=v.weight,
        )  # fmt: skip
        return (out.transpose(0, 1) if self.batch_first else out), weights

    # --- names of weights -------------------------------------------------------------------------

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """The weights: by torch's names if this layer is asked, by Opacus's if a model is that contains it."""
        if args or destination is not None:
            return super().state_dict(*args, destination=destination, prefix=prefix, keep_vars=keep_vars)
        own: Any = OrderedDict()
        own._metadata = OrderedDict({prefix[:-1]: {"version": self._version}})
        self._save_to_state_dict(own, prefix, keep_vars)
        for name, layer in self._modules.items():
            if layer is not None:
                layer.state_dict(destination=own, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        renamed = _with_names_of_torch(
            own, prefix, (self.kdim, self.vdim) == (self.embed_dim, self.embed_dim)
        )
        for hook in self._state_dict_hooks.values():
            changed = hook(self, renamed, prefix, own._metadata[prefix[:-1]])
            renamed = renamed if changed is None else changed
        return renamed

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        _to_names_of_opacus(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _with_names_of_torch(own: Any, prefix: str, one_size: bool) -> Any:
    found: Any = OrderedDict()
    found._metadata = own._metadata
    weights = [own.pop(f"{prefix}{name}.weight") for name in PROJECTIONS]
    if one_size:
        found[f"{prefix}in_proj_weight"] = torch.cat(weights)
    else:
        found.update({f"{prefix}{kind}_proj_weight": w for kind, w in zip("qkv", weights, strict=True)})
    biases = [own.pop(f"{prefix}{name}.bias", None) for name in PROJECTIONS]
    if biases[0] is not None:
        found[f"{prefix}in_proj_bias"] = torch.cat(biases)
    for kind in "kv":
        if f"{prefix}seq_bias_{kind}.bias" in own:
            found[f"{prefix}bias_{kind}"] = own.pop(f"{prefix}seq_bias_{kind}.bias").view(1, 1, -1)
    found.update(own)
    return found


def _to_names_of_opacus(weights: Any, prefix: str) -> None:
    """Rename, in place, what torch's layer has stored."""
    for kind in ("weight", "bias"):
        joined = weights.pop(f"{prefix}in_proj_{kind}", None)
        if joined is not None:
            parts = zip(PROJECTIONS, joined.chunk(3), strict=True)
            weights.update({f"{prefix}{name}.{kind}": part for name, part in parts})
    for kind, name in zip("qkv", PROJECTIONS, strict=True):
        if f"{prefix}{kind}_proj_weight" in weights:
            weights[f"{prefix}{name}.weight"] = weights.pop(f"{prefix}{kind}_proj_weight")
        if f"{prefix}bias_{kind}" in weights:
            weights[f"{prefix}seq_bias_{kind}.bias"] = weights.pop(f"{prefix}bias_{kind}").flatten()
