"""Networks that people bring, each with the rules it is expected to go through."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from engine_helpers import Fn, weight
from torch import Tensor, nn

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
