"""A head on a pretrained encoder: one vector an example, and a linear layer on it."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from saltflat.errors import InputError, check_count, check_known

Pooling = Literal["mean", "first"]


class Headed(nn.Module):
    """An encoder whose tokens become one vector, normalised, and a linear layer on it. See `with_head`."""

    def __init__(self, encoder: nn.Module, width: int, classes: int, pooling: Pooling) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.head = nn.Linear(width, classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, *inputs: Any, attention_mask: Tensor | None = None, **named: Any) -> Tensor:
        if attention_mask is not None:
            named["attention_mask"] = attention_mask
        vectors = self.pooled(self.encoder(*inputs, **named), attention_mask)
        # Features of one length: the clip then weighs examples alike.
        return self.head(F.layer_norm(vectors, vectors.shape[-1:]))

    def pooled(self, outputs: Any, mask: Tensor | None) -> Tensor:
        """One vector an example, from what the encoder returns."""
        hidden = getattr(outputs, "last_hidden_state", outputs)
        if isinstance(hidden, tuple):
            hidden = hidden[0]
        if hidden.dim() == 2:
            return hidden
        if self.pooling == "first":
            return hidden[:, 0]
        if mask is None:
            return hidden.mean(1)
        kept = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1.0)


def with_head(
    encoder: nn.Module, classes: int, *, pooling: Pooling = "mean", width: int | None = None
) -> Headed:
    """A classifier on an encoder: texts or images in, one number a class out.

    ``encoder`` is a Hugging Face model without a head (``AutoModel``), or any module that returns N × T × D tokens or
    N × D vectors. Tokens become one vector by their ``mean`` where ``attention_mask`` is 1, or by the ``first`` of
    them. ``width`` is D; a Hugging Face model knows it.

    >>> encoder = nn.Linear(6, 16)  # stands for a sequence of tokens in, one vector a token out
    >>> import torch
    >>> with_head(encoder, classes=3, width=16)(torch.zeros(2, 5, 6)).shape
    torch.Size([2, 3])
    """
    check_count("classes", classes, 2)
    check_known("pooling", pooling, get_args(Pooling), "a known pooling")
    known = getattr(getattr(encoder, "config", None), "hidden_size", None)
    found = known if width is None else width
    if not isinstance(found, int):
        raise InputError(
            "width", width, "how many numbers the encoder gives for a token", problem="is missing"
        )
    check_count("width", found)
    return Headed(encoder, found, classes, pooling)
