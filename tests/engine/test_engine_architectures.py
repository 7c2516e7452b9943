"""Architectures that people bring, against explicit per-example gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import Fn, assert_matches, weight
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from saltflat.engine import tape

ROWS = 7
Built = tuple[nn.Module, Any]
ARCHITECTURES: dict[str, tuple[Callable[[], Built], set[str]]] = {}


def architecture(*rules: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Register a model with its inputs, and the rules it is expected to go through."""

    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        ARCHITECTURES[build.__name__] = (build, set(rules))
        return build

    return register


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 10, shape)


@architecture("attention", "direct", "layer norm", "linear")
def swin_windows() -> Built:
    """Windows become rows: four of each example, one example after the other."""

    def windows(self: Any, x: Tensor) -> Tensor:
        rows, height, width, channels = x.shape
        x = x.view(rows, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, 4, channels)
        x = self.norm(x + self.position)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.mlp(x).view(rows, height // 2, width // 2, 2, 2, channels)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(rows, height, width, channels)

    return Fn(
        windows, position=weight(1, 4, 8), norm=nn.LayerNorm(8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True), mlp=nn.Linear(8, 8),
    ), torch.randn(ROWS, 4, 4, 8)  # fmt: skip


@architecture("direct (derived weight)", "linear")
def swin_relative_bias() -> Built:
    def attend(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) / 2 + bias.unsqueeze(0)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(len(x), 4, 8)

    index = torch.arange(16).view(4, 4) % 9
    return Fn(attend, qkv=nn.Linear(8, 24), table=weight(9, 2), index=index), torch.randn(ROWS, 4, 8)


@architecture("convolution", "direct", "layer norm", "linear")
def convnext_block() -> Built:
    def block(self: Any, x: Tensor) -> Tensor:
        h = self.depthwise(x).permute(0, 2, 3, 1)
        h = self.gamma * self.down(F.gelu(self.up(self.norm(h))))
        return x + h.permute(0, 3, 1, 2)

    return Fn(
        block, depthwise=nn.Conv2d(6, 6, 7, padding=3, groups=6), norm=nn.LayerNorm(6), up=nn.Linear(6, 24),
        down=nn.Linear(24, 6), gamma=weight(6),
    ), torch.randn(ROWS, 6, 5, 5)  # fmt: skip


@architecture("layer norm", "linear")
def mlp_mixer() -> Built:
    def mix(self: Any, x: Tensor) -> Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))

    return Fn(
        mix, first=nn.LayerNorm(8), second=nn.LayerNorm(8),
        tokens=nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5)), channels=nn.Linear(8, 8),
    ), torch.randn(ROWS, 5, 8)  # fmt: skip


@architecture("convolution", "group norm")
def u_net() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        one = torch.tanh(self.norm(self.one(x)))
        two = torch.tanh(self.two(one))
        up = self.up(two)
        return self.out(torch.cat([up, one], dim=1))

    return Fn(
        net, one=nn.Conv2d(3, 4, 3, padding=1), norm=nn.GroupNorm(2, 4), two=nn.Conv2d(4, 8, 3, 2, 1),
        up=nn.ConvTranspose2d(8, 4, 2, 2), out=nn.Conv2d(8, 2, 1),
    ), torch.randn(ROWS, 3, 6, 6)  # fmt: skip


@architecture("convolution", "linear")
def squeeze_and_excite() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        h = self.conv(x)
        gate = torch.sigmoid(self.up(torch.tanh(self.down(h.mean((2, 3))))))
        return h * gate[:, :, None, None]

    return Fn(net, conv=nn.Conv2d(3, 8, 3), down=nn.Linear(8, 2), up=nn.Linear(2, 8)), torch.randn(
        ROWS, 3, 6, 6
    )


@architecture("direct (derived weight)", "layer norm", "linear", "linear + embedding")
def gpt_block_with_tied_head() -> Built:
    def net(self: Any, t: Tensor) -> Tensor:
        x = self.embed(t) + self.position[: t.shape[1]]
        q, k, v = self.qkv(self.first(x)).split(8, dim=2)
        q, k, v = (part.view(*part.shape[:2], 2, 4).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(self.mask[:6, :6] == 0, -math.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        x = x + self.mlp(self.second(x))
        return self.head(x)

    model = Fn(
        net, embed=nn.Embedding(10, 8), position=weight(6, 8), first=nn.LayerNorm(8), qkv=nn.Linear(8, 24),
        mask=torch.tril(torch.ones(9, 9)), out=nn.Linear(8, 8), second=nn.LayerNorm(8),
        mlp=nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), head=nn.Linear(8, 10, bias=False),
    )  # fmt: skip
    model.head.weight = model.embed.weight
    return model, tokens(ROWS, 6)


@architecture("linear")
def lora() -> Built:
    model = Fn(
        lambda self, x: self.base(x) + 0.5 * self.b(self.a(x)),
        base=nn.Linear(8, 6).requires_grad_(False), a=nn.Linear(8, 2, bias=False),
        b=nn.Linear(2, 6, bias=False),
    )  # fmt: skip
    return model, torch.randn(ROWS, 5, 8)


@architecture("linear (derived weight)")
def lora_merged() -> Built:
    """The low-rank change is multiplied out before it meets the batch."""
    return Fn(
        lambda self, x: F.linear(x, self.base + self.b @ self.a),
        base=torch.randn(6, 8),
        a=weight(2, 8),
        b=weight(6, 2),
    ), torch.randn(ROWS, 5, 8)


@architecture("convolution", "linear")
def film() -> Built:
    def net(self: Any, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.condition(condition).chunk(2, dim=1)
        return torch.tanh(self.conv(x) * (1 + scale[:, :, None, None]) + shift[:, :, None, None])

    return Fn(net, conv=nn.Conv2d(3, 4, 3), condition=nn.Linear(5, 8)), (
        torch.randn(ROWS, 3, 5, 5),
        torch.randn(ROWS, 5),
    )


@architecture("direct")
def capsules() -> Built:
    """Votes of every input capsule for every output capsule, and one round of routing."""

    def net(self: Any, x: Tensor) -> Tensor:
        votes = torch.einsum("ijdk,bid->bijk", self.votes, x)
        agreement = torch.einsum("bijk,bjk->bij", votes, votes.mean(1))
        return torch.einsum("bij,bijk->bjk", agreement.softmax(2), votes)

    return Fn(net, votes=weight(4, 3, 5, 2)), torch.randn(ROWS, 4, 5)


@architecture("attention", "attention (derived weight)", "direct (derived weight)", "linear")
def perceiver() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        latent = self.latent.unsqueeze(0).expand(len(x), -1, -1)
        latent = latent + self.cross(latent, x, x)[0]
        latent = latent + self.own(latent, latent, latent)[0]
        return self.head(latent.mean(1))

    return Fn(
        net, latent=weight(3, 8), cross=nn.MultiheadAttention(8, 2, batch_first=True),
        own=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 3),
    ), torch.randn(ROWS, 5, 8)  # fmt: skip


@architecture("convolution", "lstm", "linear")
def time_distributed() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        rows, steps = x.shape[:2]
        h = torch.tanh(self.conv(x.flatten(0, 1))).mean((2, 3)).view(rows, steps, -1)
        return self.head(self.lstm(h)[0][:, -1])

    return Fn(
        net, conv=nn.Conv2d(2, 4, 3), lstm=nn.LSTM(4, 5, batch_first=True), head=nn.Linear(5, 3)
    ), torch.randn(ROWS, 3, 2, 5, 5)


@architecture("convolution", "group norm")
def depthwise_separable() -> Built:
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.GroupNorm(2, 4), nn.SiLU(inplace=True),
        nn.Conv2d(4, 8, 1),
    ), torch.randn(ROWS, 4, 6, 6)  # fmt: skip


@architecture("convolution", "linear")
def gated_linear_units() -> Built:
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.GLU(dim=1), nn.Flatten(), nn.Linear(16, 6), nn.GLU()
    ), torch.randn(ROWS, 3, 6)


@architecture("linear")
def dense_mixture_of_experts() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        gate = self.gate(x).softmax(-1)
        return torch.stack([expert(x) for expert in self.experts], dim=-1) @ gate.unsqueeze(-1)

    return Fn(
        net, gate=nn.Linear(8, 3), experts=nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
    ), torch.randn(ROWS, 8)


@architecture("direct", "linear")
def batched_experts() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        return torch.einsum(
            "be,beo->bo", self.gate(x).softmax(-1), torch.einsum("bi,eio->beo", x, self.experts)
        )

    return Fn(net, gate=nn.Linear(8, 3), experts=weight(3, 8, 4)), torch.randn(ROWS, 8)


@architecture("example by example")
def sparse_mixture_of_experts() -> Built:
    """Each example goes to one expert: which rows an expert sees depends on the data."""

    def net(self: Any, x: Tensor) -> Tensor:
        choice = self.gate(x).argmax(-1)
        out = x.new_zeros(len(x), 4)
        for i, expert in enumerate(self.experts):
            out[choice == i] = expert(x[choice == i])
        return out * self.gate(x).softmax(-1).amax(-1, keepdim=True)

    return Fn(
        net, gate=nn.Linear(8, 3), experts=nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
    ), torch.randn(ROWS, 8)


@architecture("linear", "linear (derived weight)")
def fourier_features() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        angles = 2 * math.pi * x @ self.frequencies.t()
        return self.head(torch.cat([angles.sin(), angles.cos()], dim=-1))

    return Fn(net, frequencies=weight(6, 2), head=nn.Linear(12, 3)), torch.randn(ROWS, 2)


@architecture("linear", "direct (derived weight)")
def temperature_per_head() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        q, k, v = (part.view(len(x), 5, 2, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scale = self.temperature.clamp(max=4.6).exp()
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * scale
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    return Fn(net, qkv=nn.Linear(8, 24), temperature=weight(2, 1, 1)), torch.randn(ROWS, 5, 8)


@architecture("linear", "rms norm")
def rotary_positions() -> Built:
    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def net(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k = turned(q, self.cos, self.sin), turned(k, self.cos, self.sin)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    angles = torch.arange(5.0)[:, None] / 10 ** torch.arange(4.0)
    return Fn(
        net, qkv=nn.Linear(8, 24, bias=False), norm=nn.RMSNorm(8), cos=angles.cos(), sin=angles.sin()
    ), torch.randn(ROWS, 5, 8)


@architecture("linear", "convolution")
def siamese() -> Built:
    def net(self: Any, a: Tensor, b: Tensor) -> Tensor:
        one, two = (self.head(torch.tanh(self.conv(x)).flatten(1)) for x in (a, b))
        return (one - two).abs() + one * two

    return Fn(net, conv=nn.Conv2d(2, 3, 3), head=nn.Linear(27, 4)), (
        torch.randn(ROWS, 2, 5, 5),
        torch.randn(ROWS, 2, 5, 5),
    )


@architecture("example by example")
def siamese_concatenated() -> Built:
    """Both inputs in one batch, one batch after the other: rows out of the order of the examples."""

    def net(self: Any, a: Tensor, b: Tensor) -> Tensor:
        one, two = self.head(torch.cat([a, b])).chunk(2)
        return one * two

    return Fn(net, head=nn.Linear(8, 4)), (torch.randn(ROWS, 8), torch.randn(ROWS, 8))


@architecture("linear")
def outputs_by_name() -> Built:
    def net(self: Any, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.body(x))
        return {"scores": torch.cat([self.one(h), self.two(h)], dim=1), "features": h}

    return Fn(net, body=nn.Linear(8, 6), one=nn.Linear(6, 3), two=nn.Linear(6, 2)), {
        "x": torch.randn(ROWS, 8)
    }


@architecture("linear", "linear + linear (derived weight)")
def autoencoder_with_tied_weights() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.shift)

    return Fn(net, encoder=nn.Linear(8, 3), shift=weight(8)), torch.randn(ROWS, 8)


@architecture("convolution", "group norm", "linear")
def dense_net() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat([x, conv(F.silu(norm(x)))], dim=1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))

    widths = [4, 6, 8]
    return Fn(
        net, norms=nn.ModuleList(nn.GroupNorm(2, w) for w in widths),
        convs=nn.ModuleList(nn.Conv2d(w, 2, 3, padding=1, bias=False) for w in widths), head=nn.Linear(10, 3),
    ), torch.randn(ROWS, 4, 5, 5)  # fmt: skip


@architecture("linear")
def highway() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        for layer, gate in zip(self.layers, self.gates):
            t = torch.sigmoid(gate(x))
            x = t * torch.tanh(layer(x)) + (1 - t) * x
        return x

    def pair() -> nn.ModuleList:
        return nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    return Fn(net, layers=pair(), gates=pair()), torch.randn(ROWS, 6)


@architecture("linear")
def attention_pooling() -> Built:
    """A learned query scores every token: a matrix times a vector."""

    def net(self: Any, x: Tensor) -> Tensor:
        scores = (torch.tanh(self.project(x)) @ self.query).softmax(1)
        return (scores.unsqueeze(-1) * x).sum(1)

    return Fn(net, project=nn.Linear(8, 6), query=weight(6)), torch.randn(ROWS, 5, 8)


@architecture("gru cell", "linear")
def gru_cell_loop() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 4, dtype=x.dtype)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)

    return Fn(net, cell=nn.GRUCell(8, 4), head=nn.Linear(4, 3)), torch.randn(ROWS, 5, 8)


@architecture("direct", "lstm cell")
def lstm_cell_with_learned_state() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        state = self.hidden.expand(len(x), -1), self.memory.expand(len(x), -1)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0]

    return Fn(net, cell=nn.LSTMCell(8, 4), hidden=weight(1, 4), memory=weight(4)), torch.randn(ROWS, 5, 8)


@architecture("direct (derived weight)", "direct", "linear")
def parameter_list_and_dict() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        for matrix in self.matrices:
            x = torch.tanh(x @ matrix)
        mixed = torch.stack([x, x.sin(), x.cos()], dim=1) * self.extra["mix"].softmax(0)[:, None]
        return mixed.sum(1) + self.extra["shift"]

    return Fn(
        net, matrices=nn.ParameterList([weight(8, 6), weight(6, 6)]),
        extra=nn.ParameterDict({"mix": weight(3), "shift": weight(6)}),
    ), torch.randn(ROWS, 8)  # fmt: skip


@architecture("linear")
def einsum_orders() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        first = torch.einsum("dk,btd->btk", self.a, x)
        second = torch.einsum("btd,kd->btk", x, self.b)
        third = torch.einsum("b t d, d k -> b k t", x, self.c).transpose(1, 2)
        return first + second * third

    return Fn(net, a=weight(8, 3), b=weight(3, 8), c=weight(8, 3)), torch.randn(ROWS, 5, 8)


@architecture("torch.func on einsum")
def einsum_with_dots() -> Built:
    return Fn(lambda self, x: torch.einsum("...d,dk", x, self.a), a=weight(8, 3)), torch.randn(ROWS, 5, 8)


@architecture("example by example")
def mixture_in_another_dimension() -> Built:
    """The batch is the second dimension for a moment: right, if slow, where no layer sees it."""

    def net(self: Any, x: Tensor) -> Tensor:
        mixed = torch.stack([x, x.sin(), x.cos()]) * self.mix.softmax(0)[:, None, None]
        return self.head(mixed.sum(0))

    return Fn(net, mix=weight(3), head=nn.Linear(8, 4)), torch.randn(ROWS, 8)


@architecture("direct")
def einsum_reduces_tokens() -> Built:
    """A matrix that meets two dimensions of the input at once."""
    return Fn(
        lambda self, x: torch.einsum("btd,td->b", x, self.w)[:, None], w=weight(5, 8, scale=0.1)
    ), torch.randn(ROWS, 5, 8)


@architecture("direct")
def bmm_with_expanded_weight() -> Built:
    return Fn(lambda self, x: torch.bmm(x, self.w.expand(len(x), 8, 3)), w=weight(1, 8, 3)), torch.randn(
        ROWS, 5, 8
    )


@architecture("direct (derived weight)")
def bmm_with_expanded_weight_first() -> Built:
    return Fn(
        lambda self, x: torch.bmm(self.w.unsqueeze(0).expand(len(x), -1, -1), x), w=weight(3, 5)
    ), torch.randn(ROWS, 5, 8)


@architecture("linear (derived weight)")
def linear_with_sliced_weight() -> Built:
    return Fn(
        lambda self, x: F.linear(x, self.w[:3, 2:], self.b[:3]), w=weight(5, 10), b=weight(5)
    ), torch.randn(ROWS, 5, 8)


@architecture("direct", "linear")
def addmm() -> Built:
    """As GPT-2 writes its linear layers."""
    return Fn(
        lambda self, x: torch.addmm(self.b, x.view(-1, 8), self.w).view(*x.shape[:2], 3),
        w=weight(8, 3),
        b=weight(3),
    ), torch.randn(ROWS, 5, 8)


@architecture("linear", "direct")
def addmm_scaled() -> Built:
    return Fn(
        lambda self, x: torch.addmm(self.b, x, self.w, beta=0.5, alpha=2.0), w=weight(8, 3), b=weight(1, 3)
    ), torch.randn(ROWS, 8)


@architecture("direct")
def baddbmm() -> Built:
    return Fn(
        lambda self, x: torch.baddbmm(self.b, x, self.w.expand(len(x), -1, -1), beta=0.5),
        w=weight(1, 8, 3),
        b=weight(1, 1, 3),
    ), torch.randn(ROWS, 5, 8)


@architecture("linear")
def weight_first_product() -> Built:
    """``W @ x`` on channels by positions, as graph and state-space layers write it."""
    return Fn(
        lambda self, x: self.b @ torch.tanh(torch.matmul(self.a, x)), a=weight(6, 5), b=weight(3, 6)
    ), torch.randn(ROWS, 5, 8)


@architecture("linear")
def weight_first_four_dimensions() -> Built:
    return Fn(lambda self, x: self.a @ x, a=weight(6, 5)), torch.randn(ROWS, 3, 5, 4)


@architecture("direct")
def product_per_head() -> Built:
    """A stack of matrices, one a head, broadcast over the batch."""
    return Fn(lambda self, x: torch.matmul(x, self.w), w=weight(3, 8, 2)), torch.randn(ROWS, 3, 5, 8)


@architecture("direct (derived weight)")
def batch_of_outer_products() -> Built:
    return Fn(
        lambda self, x: x[:, :, None] * self.w[None, None, :] + self.w.outer(self.w)[:1], w=weight(4)
    ), torch.randn(ROWS, 5)


@architecture("convolution (derived weight)", "convolution", "linear (derived weight)", "linear")
def normalised_weights() -> Built:
    return nn.Sequential(
        weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh(), nn.Flatten(), spectral_norm(nn.Linear(36, 6)).eval(),
        nn.Tanh(), orthogonal(nn.Linear(6, 4)),
    ), torch.randn(ROWS, 3, 5, 5)  # fmt: skip


@architecture("convolution", "convolution (derived weight)")
def scaled_weight_standardisation() -> Built:
    def conv(self: Any, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = torch.rsqrt((variance * self.weight[0].numel()).clamp(min=1e-4)) * self.gain
        return F.conv2d(x, (self.weight - mean) * scale, self.bias, padding=1)

    return Fn(
        conv, weight=weight(6, 4, 3, 3), gain=nn.Parameter(torch.ones(6, 1, 1, 1)), bias=weight(6)
    ), torch.randn(ROWS, 4, 5, 5)


@architecture("convolution", "convolution (derived weight)", "linear")
def checkpointed() -> Built:
    """What is computed again in the backward pass goes through the same rules, derived weights included."""

    def inner(self: Any, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.tanh(self.a(x)).flatten(1)))

    def net(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda z: inner(self, z), x, use_reentrant=False))

    return Fn(net, a=weight_norm(nn.Conv2d(3, 4, 3)), b=nn.Linear(36, 5), head=nn.Linear(5, 3)), torch.randn(
        ROWS, 3, 5, 5
    )


@architecture("linear", "layer norm", "unused")
def frozen_backbone() -> Built:
    """Features computed without gradients are still rows of the batch."""

    def net(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.tanh(self.backbone(x))
        return self.head(self.norm(h).mean(1))

    return Fn(net, backbone=nn.Linear(8, 6), norm=nn.LayerNorm(6), head=nn.Linear(6, 3)), torch.randn(
        ROWS, 5, 8
    )


@architecture("direct", "linear")
def vision_transformer_tokens() -> Built:
    """A class token repeated, not expanded."""

    def net(self: Any, x: Tensor) -> Tensor:
        x = torch.cat([self.token.repeat(len(x), 1, 1), x], dim=1) + self.position
        return self.head(torch.tanh(x)[:, 0] + x.mean(1))

    return Fn(net, token=weight(1, 1, 8), position=weight(1, 6, 8), head=nn.Linear(8, 3)), torch.randn(
        ROWS, 5, 8
    )


@architecture("embedding", "linear")
def last_token() -> Built:
    """The last token of each row, by two indices."""

    def net(self: Any, t: Tensor, lengths: Tensor) -> Tensor:
        h = torch.tanh(self.body(self.embed(t)))
        return self.head(h[torch.arange(len(t)), lengths - 1])

    return Fn(net, embed=nn.Embedding(10, 8), body=nn.Linear(8, 8), head=nn.Linear(8, 3)), (
        tokens(ROWS, 6),
        torch.randint(1, 7, (ROWS,)),
    )


@architecture("embedding")
def table_by_index() -> Built:
    return Fn(
        lambda self, t: self.table[t] * self.other.index_select(0, t.flatten()).view(*t.shape, 3),
        table=weight(10, 3),
        other=weight(10, 3),
    ), tokens(ROWS, 4)


@architecture("example by example")
def packed_sequences() -> Built:
    def net(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])

    return Fn(net, lstm=nn.LSTM(8, 4, batch_first=True), head=nn.Linear(4, 3)), (
        torch.randn(ROWS, 6, 8),
        torch.randint(1, 7, (ROWS,)),
    )


@architecture("example by example")
def gradient_inside_the_model() -> Built:
    """An energy model: its output is itself a gradient."""

    def net(self: Any, x: Tensor) -> Tensor:
        z = x.clone().requires_grad_()
        energy = self.out(torch.tanh(self.body(z)))
        return torch.autograd.grad(energy.sum(), z, create_graph=True)[0]

    return Fn(net, body=nn.Linear(8, 6), out=nn.Linear(6, 1)), torch.randn(ROWS, 8)


@architecture("linear (derived weight)")
def triangular_matrix() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        matrix = torch.zeros(8, 8, dtype=x.dtype)
        i = torch.tril_indices(8, 8)
        matrix[i[0], i[1]] = self.entries
        return x @ matrix

    return Fn(net, entries=weight(36)), torch.randn(ROWS, 5, 8)


@architecture("torch.func on einsum (derived weight)")
def fourier_operator() -> Built:
    """A product in the frequency domain: derived weights that are complex."""

    def net(self: Any, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x, dim=-1)[..., :4]
        return torch.fft.irfft(torch.einsum("bim,iom->bom", modes, torch.view_as_complex(self.w)), n=8)

    return Fn(net, w=weight(5, 3, 4, 2)), torch.randn(ROWS, 5, 8)


@architecture("direct (derived weight) + linear (derived weight)")
def prototypes() -> Built:
    """Squared distances to learned centres."""

    def net(self: Any, x: Tensor) -> Tensor:
        return -(x.square().sum(1, keepdim=True) - 2 * x @ self.centres.t() + self.centres.square().sum(1))

    return Fn(net, centres=weight(4, 8)), torch.randn(ROWS, 8) * 0.3


@architecture("torch.func on cdist")
def distances() -> Built:
    return Fn(lambda self, x: torch.cdist(x, self.centres), centres=weight(4, 8)), torch.randn(ROWS, 5, 8)


@architecture("linear", "torch.func on scaled_dot_product_attention")
def attention_with_learned_bias() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)

    return Fn(net, qkv=nn.Linear(8, 24), bias=weight(1, 5, 5)), torch.randn(ROWS, 5, 8)


@architecture("linear")
def graph_convolution() -> Built:
    def net(self: Any, x: Tensor, adjacency: Tensor) -> Tensor:
        x = torch.tanh(adjacency @ self.one(x))
        return (adjacency @ x) @ self.two

    return Fn(net, one=nn.Linear(8, 6), two=weight(6, 3)), (torch.randn(ROWS, 5, 8), torch.rand(ROWS, 5, 5))


@architecture("linear", "direct (derived weight)")
def state_space() -> Built:
    """A diagonal recurrence with a learned decay."""

    def net(self: Any, x: Tensor) -> Tensor:
        decay, drive = torch.sigmoid(self.decay), self.inward(x)
        state, states = torch.zeros_like(drive[:, 0]), []
        for step in drive.unbind(1):
            state = decay * state + (1 - decay) * step
            states.append(state)
        return self.outward(torch.stack(states, dim=1))

    return Fn(net, decay=weight(6), inward=nn.Linear(8, 6), outward=nn.Linear(6, 3)), torch.randn(ROWS, 5, 8)


@architecture("attention", "attention (derived weight)", "layer norm", "linear")
def transformer_decoder() -> Built:
    def net(self: Any, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5).to(x)
        return self.layer(x, memory, tgt_mask=mask, tgt_is_causal=True)

    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    return Fn(net, layer=layer), (torch.randn(ROWS, 5, 8), torch.randn(ROWS, 4, 8))


@architecture("attention", "attention (derived weight)", "direct (derived weight) + direct")
def induced_set_attention() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        queries = self.queries.expand(len(x), -1, -1)
        induced = self.inward(queries, x, x)[0] + queries
        return self.outward(x, induced, induced)[0]

    def layer() -> nn.Module:
        return nn.MultiheadAttention(8, 2, batch_first=True)

    return Fn(net, inward=layer(), outward=layer(), queries=weight(1, 3, 8)), torch.randn(ROWS, 5, 8)


@architecture("direct", "linear")
def conditional_random_field() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        emissions = self.emit(x)
        score = emissions[:, 0]
        for emission in emissions[:, 1:].unbind(1):
            score = torch.logsumexp(score.unsqueeze(2) + self.transitions, dim=1) + emission
        return score - score.mean(1, keepdim=True)

    return Fn(net, emit=nn.Linear(8, 4), transitions=weight(4, 4)), torch.randn(ROWS, 5, 8)


@architecture("linear", "linear (derived weight)")
def dynamic_convolution() -> Built:
    """Each example mixes its own kernel: the batch hides in the groups, where no weight is."""

    def net(self: Any, x: Tensor) -> Tensor:
        mixture = self.gate(x.mean((2, 3))).softmax(1)
        kernels = (mixture @ self.bank.flatten(1)).view(-1, 3, 3, 3)
        return F.conv2d(x.reshape(1, -1, 6, 6), kernels, groups=len(x)).view(len(x), 4, 4, 4)

    return Fn(net, gate=nn.Linear(3, 5), bank=weight(5, 4, 3, 3, 3)), torch.randn(ROWS, 3, 6, 6)


@architecture("direct", "linear (derived weight)")
def cosine_classifier() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.classes, dim=1)) * self.scale

    return Fn(net, classes=weight(4, 8), scale=weight()), torch.randn(ROWS, 8)


@architecture("embedding")
def vector_quantiser() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.codes.detach()).argmin(2)
        return (self.codes[nearest] - x) ** 2

    return Fn(net, codes=weight(6, 8)), torch.randn(ROWS, 5, 8)


@architecture("direct (derived weight)", "embedding")
def positions_made_like_the_input() -> Built:
    """``type_as`` takes the type of the tokens, not their rows: 30 positions are not 30 rows."""

    def net(self: Any, t: Tensor) -> Tensor:
        return self.embed(t) + self.position(torch.arange(t.shape[1]).type_as(t))

    return Fn(net, embed=nn.Embedding(10, 4), position=nn.Embedding(40, 4)), tokens(ROWS, 30)


@architecture("direct (derived weight)", "embedding")
def positions_repeated() -> Built:
    """The same positions for every row: a weight of the batch's size, of which a row touches its own part."""

    def net(self: Any, t: Tensor) -> Tensor:
        return self.embed(t) * self.position(torch.arange(t.shape[1]).repeat(len(t), 1))

    return Fn(net, embed=nn.Embedding(10, 4), position=nn.Embedding(8, 4)), tokens(ROWS, 5)


@architecture("example by example")
def ensemble_by_vmap() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda w, b: F.linear(x, w, b))(self.w, self.b).movedim(0, 1)

    return Fn(net, w=weight(3, 4, 8), b=weight(3, 4)), torch.randn(ROWS, 8)


@architecture("linear (derived weight)", "linear")
def symmetric_parametrisation() -> Built:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

    layer = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())

    def net(self: Any, x: Tensor) -> Tensor:
        with nn.utils.parametrize.cached():
            return self.layer(torch.tanh(self.layer(x)))

    return Fn(net, layer=layer), torch.randn(ROWS, 5, 8)


@architecture("linear (derived weight)", "linear")
def functional_call() -> Built:
    """Another module run with weights that are made on the way."""
    shell = nn.Linear(8, 4)

    def net(self: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(shell, {"weight": self.w.tanh(), "bias": self.b}, (x,))

    return Fn(net, w=weight(4, 8), b=weight(4)), torch.randn(ROWS, 8)


@architecture("example by example")
def mask_token_written_in() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        h = self.layer(x).clone()
        h[x[..., 0] > 0] = self.token
        return h

    return Fn(net, layer=nn.Linear(8, 8), token=weight(8)), torch.randn(ROWS, 5, 8)


@architecture("lstm", "linear")
def inputs_within_inputs() -> Built:
    """A sequence with the state to start from."""

    def net(self: Any, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        turned = tuple(s.transpose(0, 1).contiguous() for s in state)
        return self.head(self.lstm(x, turned)[0])

    state = torch.randn(ROWS, 1, 4), torch.randn(ROWS, 1, 4)
    return Fn(net, lstm=nn.LSTM(8, 4, batch_first=True), head=nn.Linear(4, 3)), (
        torch.randn(ROWS, 5, 8),
        state,
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_matches_explicit_gradients(name: str) -> None:
    """By the rules that are listed with it. Fails when a rule is taken out (tried with einsum and addmm)."""
    torch.manual_seed(0)
    build, expected = ARCHITECTURES[name]
    rules = assert_matches(*build(), micro_batches=(None, 3))
    assert set(rules.values()) == expected


@pytest.mark.parametrize("limit", [1, 50])
def test_derived_weights_are_carried_back_in_any_number_of_pieces(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a piece gets the rows of another (tried)."""
    monkeypatch.setattr(tape, "DIAGONAL_LIMIT", limit)
    torch.manual_seed(0)
    assert_matches(*positions_repeated())
