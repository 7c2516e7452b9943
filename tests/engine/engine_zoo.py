"""One small model for each kind of layer, with inputs of any number of rows and the rule it goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from engine_helpers import Fn, weight
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


@dataclass(frozen=True)
class Kind:
    """A layer, what it is fed, and the names of the rules that its parameters go through."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    rules: frozenset[str]


ZOO: dict[str, Kind] = {}


def _add(name: str, build: Callable[[], nn.Module], inputs: Callable[[int], Any], *rules: str) -> None:
    ZOO[name] = Kind(build, inputs, frozenset(rules))


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randn(rows, *shape)


def _tokens(length: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(0, 10, (rows, length))


class Scale(torch.autograd.Function):
    """A custom function: the engine sees nothing of its inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return grads[0] * scale, (grads[0] * x).sum(tuple(range(x.dim() - 1)))


def attention(**options: Any) -> nn.Module:
    return Fn(
        lambda self, x: self.mha(x, x, x)[0], mha=nn.MultiheadAttention(8, 2, batch_first=True, **options)
    )


def recurrent(layer: type[nn.Module], **options: Any) -> nn.Module:
    return Fn(lambda self, x: self.rnn(x)[0], rnn=layer(8, 4, batch_first=True, **options))


def cell(layer: type[nn.Module]) -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state

    return Fn(run, cell=layer(8, 4))


def _direct() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        return (y * self.scale / (1 + self.gate)) @ self.matrix - self.shift

    return Fn(
        run, token=weight(1, 1, 8), position=weight(1, 6, 8), scale=weight(8), gate=weight(),
        matrix=weight(8, 3), shift=weight(1),
    )  # fmt: skip


def _tied() -> nn.Module:
    model = Fn(
        lambda self, t: self.head(torch.tanh(self.body(self.embed(t)))),
        embed=nn.Embedding(10, 8), body=nn.Linear(8, 8), head=nn.Linear(8, 10, bias=False),
    )  # fmt: skip
    model.head.weight = model.embed.weight
    return model


def _standardised(self: Any, x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
    return F.conv2d(x, (self.weight - mean) * torch.rsqrt(variance + 1e-4), self.bias)


_add("Linear", lambda: nn.Linear(8, 4), _normal(8), "linear")
_add("Linear on sequences", lambda: nn.Linear(8, 4), _normal(5, 8), "linear")
_add("Linear on images", lambda: nn.Linear(8, 4, bias=False), _normal(2, 3, 8), "linear")
_add("Conv1d", lambda: nn.Conv1d(4, 6, 3, padding=1), _normal(4, 7), "convolution")
_add("Conv2d", lambda: nn.Conv2d(4, 6, 3), _normal(4, 6, 6), "convolution")
_add(
    "Conv2d with all options",
    lambda: nn.Conv2d(4, 6, (3, 2), 2, (2, 1), dilation=(1, 2), groups=2, padding_mode="reflect"),
    _normal(4, 7, 6), "convolution",
)  # fmt: skip
# Channels in sixteens: the way with fewer multiplications (saltflat.engine.winograd), formed and by Gram matrices.
_add(
    "Conv2d, wide",
    lambda: nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 48, 3, bias=False)),
    _normal(32, 7, 6), "convolution",
)  # fmt: skip
_add("Conv2d, wide on small maps", lambda: nn.Conv2d(64, 64, 3, padding=1), _normal(64, 3, 3), "convolution")
_add("Conv2d, same", lambda: nn.Conv2d(4, 6, 3, padding="same"), _normal(4, 6, 6), "convolution")
_add(
    "Conv2d, circular",
    lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
    _normal(4, 6, 6),
    "convolution",
)
_add("Conv2d, depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4), _normal(4, 6, 6), "convolution")
_add("Conv3d", lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1)), _normal(2, 3, 4, 5), "convolution")
_add(
    "ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), _normal(4, 5, 5), "convolution"
)
_add("GroupNorm", lambda: nn.GroupNorm(2, 4), _normal(4, 5, 5), "group norm")
_add("LayerNorm", lambda: nn.LayerNorm(8), _normal(5, 8), "layer norm")
_add("RMSNorm", lambda: nn.RMSNorm((5, 8)), _normal(5, 8), "rms norm")
_add("InstanceNorm", lambda: nn.InstanceNorm2d(4, affine=True), _normal(4, 5, 5), "instance norm")
_add("BatchNorm, frozen", lambda: nn.BatchNorm2d(4).eval(), _normal(4, 5, 5), "batch norm, frozen statistics")
_add("Embedding", lambda: nn.Embedding(10, 4, padding_idx=0), _tokens(5), "embedding")
_add("EmbeddingBag", lambda: nn.EmbeddingBag(10, 4), _tokens(5), "embedding")
_add("MultiheadAttention", attention, _normal(5, 8), "attention")
_add(
    "MultiheadAttention with extra keys",
    lambda: attention(add_bias_kv=True, add_zero_attn=True), _normal(5, 8), "attention", "direct",
)  # fmt: skip
_add("LSTM", lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True), _normal(5, 8), "lstm")
_add("LSTM, projected", lambda: recurrent(nn.LSTM, proj_size=2), _normal(5, 8), "lstm")
_add("GRU", lambda: recurrent(nn.GRU, bidirectional=True), _normal(5, 8), "gru")
_add("RNN", lambda: recurrent(nn.RNN, nonlinearity="relu", bias=False), _normal(5, 8), "rnn")
_add("LSTMCell", lambda: cell(nn.LSTMCell), _normal(4, 8), "lstm cell")
_add("GRUCell", lambda: cell(nn.GRUCell), _normal(4, 8), "gru cell")
_add("RNNCell", lambda: cell(nn.RNNCell), _normal(4, 8), "rnn cell")
_add("PReLU", lambda: nn.PReLU(4), _normal(4, 5), "prelu")
_add("direct parameters", _direct, _normal(5, 8), "direct", "direct (derived weight)", "linear")
_add("tied", _tied, _tokens(5), "linear", "linear + embedding")
_add(
    "re-used",
    lambda: Fn(lambda self, x: self.layer(torch.tanh(self.layer(x))), layer=nn.Linear(8, 8)),
    _normal(5, 8), "linear",
)  # fmt: skip
_add(
    "re-used convolution",
    lambda: Fn(lambda self, x: self.layer(torch.tanh(self.layer(x))), layer=nn.Conv2d(3, 3, 3, padding=1)),
    _normal(3, 5, 5), "convolution",
)  # fmt: skip
_add("weight norm", lambda: weight_norm(nn.Linear(8, 4)), _normal(5, 8), "linear", "linear (derived weight)")
_add(
    "weight standardisation", lambda: Fn(_standardised, weight=weight(6, 4, 3, 3), bias=weight(6)),
    _normal(4, 6, 6), "convolution", "convolution (derived weight)",
)  # fmt: skip
_add(
    "Bilinear", lambda: Fn(lambda self, x: self.layer(x, x.sin()), layer=nn.Bilinear(8, 8, 3)),
    _normal(8), "torch.func on bilinear",
)  # fmt: skip
_add(
    "custom function",
    lambda: Fn(lambda self, x: self.head(Scale.apply(x, self.w)), w=weight(8), head=nn.Linear(8, 3)),
    _normal(5, 8), "example by example",
)  # fmt: skip
