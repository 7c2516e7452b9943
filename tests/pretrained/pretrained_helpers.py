"""Models as people bring them, small: a text encoder, a vision transformer as timm writes it, a tied language model.

They are written out here in the way of the libraries, so that the engine is tried on their structure with or without
the libraries installed. Where they are, the tests take theirs as well.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.engine_helpers import cast, distance, explicit, length
from saltflat.engine import clipped_sum
from saltflat.training.losses import cross_entropy

ROWS, TOKENS, WORDS, WIDTH, CLASSES = 6, 7, 23, 16, 3


class Attention(nn.Module):
    """Projections of their own for query, key and value, as in BERT; by the fused function or written out."""

    def __init__(self, heads: int, fused: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.fused, self.p = heads, fused, dropout
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.view(*t.shape[:2], self.heads, -1).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        dropout = self.p if self.training else 0.0
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + mask
            mixed = F.dropout(scores.softmax(-1), dropout) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class TextBlock(nn.Module):
    """Norms after the sums, as in BERT."""

    def __init__(self, fused: bool, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(2, fused, dropout)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.first(x + self.dropout(self.attention(x, mask)))
        return self.second(x + self.dropout(self.down(F.gelu(self.up(x)))))


class TextEncoder(nn.Module):
    """Words, positions and types; blocks; a pooler and a classifier. Returns an object with logits, as BERT does."""

    def __init__(self, fused: bool = True, dropout: float = 0.0, checkpoints: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.positions, self.types = nn.Embedding(12, WIDTH), nn.Embedding(2, WIDTH)
        self.register_buffer("position_ids", torch.arange(12).expand(1, -1), persistent=False)
        self.norm, self.checkpoints = nn.LayerNorm(WIDTH), checkpoints
        self.blocks = nn.ModuleList(TextBlock(fused, dropout) for _ in range(2))
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> SimpleNamespace:
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.words(input_ids) + self.types(kinds)
        x = self.norm(x + self.positions(self.position_ids[:, : x.shape[1]]))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.checkpoints else block(x, mask)
        return SimpleNamespace(logits=self.classifier(torch.tanh(self.pooler(x[:, 0]))), loss=None)


def texts(rows: int = ROWS, seed: int = 0) -> dict[str, Tensor]:
    """Texts of several lengths, padded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (rows, TOKENS), generator=generator)
    lengths = torch.randint(2, TOKENS + 1, (rows, 1), generator=generator)
    mask = (torch.arange(TOKENS)[None] < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


class VisionBlock(nn.Module):
    """Norms before, one projection for query, key and value, learned scales: as timm writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ls1, self.ls2 = (nn.Parameter(0.5 * torch.ones(WIDTH)) for _ in range(2))
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, count, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).reshape(rows, count, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, count, width)
        x = x + self.proj(mixed).mul(self.ls1)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)))) * self.ls2


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token and positions as bare parameters, blocks, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.cls_token = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(0.1 * torch.randn(1, 5, WIDTH))
        self.blocks = nn.Sequential(VisionBlock(), VisionBlock())
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight turned around, and one ``addmm`` over all tokens."""

    def __init__(self, out: int, inside: int) -> None:
        super().__init__()
        self.nf, self.weight = out, nn.Parameter(0.2 * torch.randn(inside, out))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class LanguageModel(nn.Module):
    """GPT-2 in small: the output layer is the table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(12, WIDTH)
        self.ln_1, self.ln_f = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1])[None])
        q, k, v = (
            t.view(*t.shape[:2], 2, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(x.shape))
        return SimpleNamespace(logits=self.lm_head(self.ln_f(x)))


def next_words(outputs: Any, words: Tensor) -> Tensor:
    """The mean loss of a language model over the words of each text."""
    return F.cross_entropy(outputs.logits[:, :-1].mT, words[:, 1:], reduction="none").mean(1)


def assert_agrees(
    model: nn.Module,
    inputs: Any,
    targets: Tensor,
    loss_fn: Callable[[Any, Tensor], Tensor] = cross_entropy,
    tolerance: float = 1e-8,
) -> dict[str, str]:
    """Norms and clipped sums are those of explicit per-example gradients, in float64. Returns the rules."""
    exact, rows = copy.deepcopy(model).double(), cast(inputs, torch.float64)
    _, norms = explicit(exact, loss_fn, rows, targets, math.inf)
    clip_norm = float(norms.median())
    assert clip_norm > 0
    expected, _ = explicit(exact, loss_fn, rows, targets, clip_norm)
    rules: dict[str, str] = {}
    for micro_batch in (None, 2):
        found = clipped_sum(exact, loss_fn, rows, targets, clip_norm, micro_batch=micro_batch)
        error = distance(found.grads, expected) / max(length(expected), clip_norm)
        worst = float(((found.norms.double() - norms) / norms.clamp(min=clip_norm / 10)).abs().max())
        assert error <= tolerance, f"sum off by {error:.1e}"
        assert worst <= tolerance, f"norm off by {worst:.1e}"
        rules = found.rules
    assert not any(rule.startswith("example") for rule in rules.values()), rules
    return rules


def labels(rows: int = ROWS) -> Tensor:
    return torch.arange(rows) % CLASSES


def shaken(model: nn.Module, size: float = 0.05) -> nn.Module:
    """Weights moved a little, so that nothing is zero by its initialisation."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator).to(p))
    return model
