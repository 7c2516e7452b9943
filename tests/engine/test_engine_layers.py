"""Every layer, with any of its options, against explicit per-example gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import Fn, assert_matches, weight
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from core_helpers import bounded

Draw = st.DrawFn
ROWS = 5
few = st.integers(1, 3)


@st.composite
def convolutions(draw: Draw) -> tuple[nn.Module, Tensor]:
    """Any convolution that torch accepts, and an input for it."""
    torch.manual_seed(draw(st.integers(0, 99)))
    dims = draw(st.integers(1, 3))
    groups = draw(few)
    per_group = draw(st.integers(1, 2))  # one input channel a group is a depthwise convolution
    channels, out = groups * per_group, groups * draw(few)
    kernel = [draw(few) for _ in range(dims)]
    dilation = [draw(st.integers(1, 2)) for _ in range(dims)]
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
    padding: Any = draw(st.sampled_from(["numbers", "numbers", "same", "valid"]))
    stride = [1] * dims if padding == "same" else [draw(few) for _ in range(dims)]
    if padding == "numbers":
        padding = [draw(st.integers(0, 2)) for _ in range(dims)]
    size = [d * (k - 1) + draw(st.integers(3, 5)) for k, d in zip(kernel, dilation)]
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](
        channels, out, kernel, stride, padding, dilation, groups, draw(st.booleans()), mode
    )
    return layer, torch.randn(ROWS, channels, *size)


@st.composite
def transposed_convolutions(draw: Draw) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 99)))
    dims, groups = draw(st.integers(1, 3)), draw(few)
    channels, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel = [draw(few) for _ in range(dims)]
    stride = [draw(few) for _ in range(dims)]
    dilation = [draw(st.integers(1, 2)) for _ in range(dims)]
    padding = [draw(st.integers(0, (k - 1) * d)) for k, d in zip(kernel, dilation)]
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation)]
    layer = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1](
        channels, out, kernel, stride, padding, extra, groups, draw(st.booleans()), dilation
    )
    return layer, torch.randn(ROWS, channels, *[draw(st.integers(3, 4)) for _ in range(dims)])


@pytest.mark.filterwarnings(
    "ignore:Using padding='same':UserWarning"
)  # torch pads a copy; so does the engine
@bounded(50)
@given(convolutions())
def test_convolutions(case: tuple[nn.Module, Tensor]) -> None:
    """Fails when the dilation of the patches is forgotten (tried)."""
    layer, x = case
    rules = assert_matches(layer, x, micro_batches=(None, 3))
    assert set(rules.values()) == {"convolution"}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize(("kernel", "dilation"), [(2, 1), (4, 1), ((2, 3), (3, 1))])
def test_same_padding_of_even_kernels(kernel: Any, dilation: Any) -> None:
    """One side gets more than the other. Fails when it is the wrong one (tried)."""
    torch.manual_seed(0)
    assert_matches(nn.Conv2d(2, 3, kernel, padding="same", dilation=dilation), torch.randn(ROWS, 2, 6, 6))


@bounded(30)
@given(transposed_convolutions())
def test_transposed_convolutions(case: tuple[nn.Module, Tensor]) -> None:
    """Fails when input and output gradient do not change places (tried)."""
    layer, x = case
    rules = assert_matches(layer, x, micro_batches=(None, 3))
    assert set(rules.values()) == {"convolution"}


@bounded(18)
@given(
    st.lists(st.integers(1, 4), max_size=3),
    few,
    few,
    st.booleans(),
    st.sampled_from(["tensor", "tuple", "dict"]),
)
def test_linear_on_any_leading_shape(leading: list[int], width: int, out: int, bias: bool, form: str) -> None:
    """And inputs of any form. Fails when the bias is left out of the norm (tried)."""
    torch.manual_seed(width)
    x = torch.randn(ROWS, *leading, width)
    model = Fn(lambda self, x: self.layer(x), layer=nn.Linear(width, out, bias))
    inputs = {"tensor": x, "tuple": (x,), "dict": {"x": x}}[form]
    assert set(assert_matches(model, inputs).values()) == {"linear"}


@st.composite
def norms(draw: Draw) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 99)))
    # two numbers normalise to ±1 whatever they are: their gradient is all rounding
    spatial = [draw(st.integers(4, 6)) for _ in range(draw(st.integers(1, 3)))]
    groups = draw(few)
    channels = groups * draw(st.integers(1, 3))
    x = torch.randn(ROWS, channels, *spatial)
    kind = draw(st.sampled_from(["group", "layer", "rms", "instance", "batch"]))
    tail = draw(st.integers(1, x.dim() - 1))
    layer: nn.Module
    if kind == "group":
        layer = nn.GroupNorm(groups, channels)
    elif kind == "layer":
        layer = nn.LayerNorm(x.shape[-tail:], bias=draw(st.booleans()))
    elif kind == "rms":
        layer = nn.RMSNorm(x.shape[-tail:])
    else:
        instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
        batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        layer = (
            instance[len(spatial) - 1](channels, affine=True)
            if kind == "instance"
            else batch[len(spatial) - 1](channels).eval()
        )
    for p in layer.parameters():
        nn.init.normal_(p)
    return layer, x


@bounded(30)
@given(norms())
def test_norms(case: tuple[nn.Module, Tensor]) -> None:
    """Fails when a scale's gradient is averaged over positions (tried)."""
    layer, x = case
    rules = assert_matches(
        nn.Sequential(nn.Linear(x.shape[-1], x.shape[-1]), layer), x, micro_batches=(None, 3)
    )
    assert all("norm" in rule or rule == "linear" for rule in rules.values())


@bounded(20)
@given(
    st.integers(1, 6), st.integers(0, 4), st.booleans(), st.sampled_from([None, 0, 2, -1]),
    st.sampled_from(["table", "sum", "mean", "max"]),
)  # fmt: skip
def test_embeddings(length: int, seed: int, weighted: bool, padding: int | None, mode: str) -> None:
    """Tokens repeat within an example. Fails when repeats are not added up, or padding counts (tried)."""
    torch.manual_seed(seed)
    tokens = torch.randint(0, 5, (ROWS, length))
    tokens[:, 0] = 1  # a bag of padding alone would have no gradient
    if mode == "table":
        rules = assert_matches(
            nn.Sequential(nn.Embedding(5, 3, padding_idx=padding), nn.Linear(3, 2)), tokens
        )
        assert set(rules.values()) == {"embedding", "linear"}
        return
    bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
    if weighted and mode == "sum":
        model = Fn(lambda self, t, w: self.bag(t, per_sample_weights=w), bag=bag)
        assert set(assert_matches(model, (tokens, torch.randn(ROWS, length))).values()) == {"embedding"}
    else:
        assert set(assert_matches(bag, tokens).values()) == {"embedding"}


@st.composite
def attentions(draw: Draw) -> tuple[nn.Module, Any]:
    """Self- and cross-attention, masks of each kind, and either place of the batch."""
    torch.manual_seed(draw(st.integers(0, 99)))
    cross, first, weights = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    kdim, vdim = (
        (draw(st.sampled_from([None, 3])), draw(st.sampled_from([None, 6]))) if cross else (None, None)
    )
    options = {name: draw(st.booleans()) for name in ("bias", "add_bias_kv", "add_zero_attn")}
    layer = nn.MultiheadAttention(8, 2, kdim=kdim, vdim=vdim, batch_first=first, **options)
    queries = draw(st.integers(2, 4))
    keys = draw(st.integers(2, 4)) if cross else queries
    mask, padding = draw(st.sampled_from([None, "bool", "float", "rows"])), draw(st.booleans())
    x = torch.randn(ROWS, queries, 8)
    key, value = torch.randn(ROWS, keys, kdim or 8), torch.randn(ROWS, keys, vdim or 8)
    ignored = torch.zeros(ROWS, keys, dtype=torch.bool)
    ignored[1:, -1] = padding

    def run(self: Any, x: Tensor, key: Tensor, value: Tensor, ignored: Tensor) -> Tensor:
        parts = (x, key, value) if cross else (x, x, x)
        if not first:
            parts = tuple(p.transpose(0, 1) for p in parts) if cross else (x.transpose(0, 1),) * 3
        attn_mask: Tensor | None = None
        if mask == "bool":
            attn_mask = torch.ones(queries, keys, dtype=torch.bool).triu(1)
        elif mask == "float":
            attn_mask = torch.linspace(-1, 1, queries * keys, dtype=x.dtype).view(queries, keys)
        elif mask == "rows":
            attn_mask = x[:, :, :1].repeat_interleave(2, dim=0).expand(-1, -1, keys).detach()
        float_padding = torch.zeros_like(ignored, dtype=x.dtype).masked_fill(ignored, -torch.inf)
        out = self.layer(
            *parts, need_weights=weights, attn_mask=attn_mask,
            key_padding_mask=None if not padding else (ignored if mask in (None, "bool") else float_padding),
        )[0]  # fmt: skip
        return out if first else out.transpose(0, 1)

    return Fn(run, layer=layer), {"x": x, "key": key, "value": value, "ignored": ignored}


@bounded(28)
@given(attentions())
def test_attention(case: tuple[nn.Module, Any]) -> None:
    """Fails when the batch stays second for batch_first=False, or a mask misses the extra keys (tried)."""
    model, inputs = case
    rules = assert_matches(model, inputs, micro_batches=(None, 3))
    assert all(rule.startswith(("attention", "direct")) for rule in rules.values())


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # of torch's own layer
@bounded(18)
@given(
    st.sampled_from(["LSTM", "GRU", "tanh", "relu"]), st.integers(1, 2), st.booleans(), st.booleans(),
    st.booleans(), st.integers(0, 2), st.sampled_from(["none", "zeros", "learned"]),
)  # fmt: skip
def test_recurrent_layers(
    kind: str, layers: int, both: bool, bias: bool, first: bool, proj: int, start: str
) -> None:
    """Fails when the two directions share a hidden state, or the biases are confused (tried)."""
    torch.manual_seed(layers)
    options: dict[str, Any] = {
        "num_layers": layers,
        "bidirectional": both,
        "bias": bias,
        "batch_first": first,
    }
    if kind == "LSTM":
        layer: nn.Module = nn.LSTM(3, 4, proj_size=proj, **options)
    else:
        layer = nn.GRU(3, 4, **options) if kind == "GRU" else nn.RNN(3, 4, nonlinearity=kind, **options)
    width, count = (proj or 4) if kind == "LSTM" else 4, layers * (2 if both else 1)

    def run(self: Any, x: Tensor) -> Tensor:
        state: Any = None
        if start != "none":
            hidden = (
                torch.zeros(count, len(x), width, dtype=x.dtype)
                if start == "zeros"
                else self.state.expand(-1, len(x), -1).contiguous()
            )
            memory = torch.zeros(count, len(x), 4, dtype=x.dtype)
            state = (hidden, memory) if kind == "LSTM" else hidden
        out, final = self.layer(x if first else x.transpose(0, 1), state)
        final = final[0] if kind == "LSTM" else final
        return torch.cat(
            [(out if first else out.transpose(0, 1)).flatten(1), final.transpose(0, 1).flatten(1)], dim=1
        )

    parts = {"state": weight(count, 1, width)} if start == "learned" else {}
    rules = assert_matches(Fn(run, layer=layer, **parts), torch.randn(ROWS, 4, 3), micro_batches=(None, 3))
    assert {rule for name, rule in rules.items() if name.startswith("layer")} == {
        "rnn" if kind in ("tanh", "relu") else kind.lower()
    }


@bounded(8)
@given(st.sampled_from([nn.LSTMCell, nn.GRUCell, nn.RNNCell]), st.booleans(), st.booleans())
def test_cells(layer: Any, bias: bool, start: bool) -> None:
    """Fails when the second use of a cell is not merged with the first (tried)."""

    def run(self: Any, x: Tensor) -> Tensor:
        state = None
        if start:
            zeros = torch.zeros(len(x), 4, dtype=x.dtype)
            state = (zeros, zeros) if layer is nn.LSTMCell else zeros
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state

    rules = assert_matches(Fn(run, cell=layer(3, 4, bias=bias)), torch.randn(ROWS, 3, 3))
    assert all(rule.endswith("cell") for rule in rules.values())


OPERATIONS = {
    "add": lambda x, w: x + w,
    "reversed subtraction": lambda x, w: w - x,
    "in place": lambda x, w: x.clone().mul_(w),
    "division": lambda x, w: x / (2 + w.abs()),
    "power": lambda x, w: (1 + x.square()) ** w,
    "where": lambda x, w: torch.where(x > 0, x, w * torch.ones_like(x)),
    "maximum": lambda x, w: torch.maximum(x, w),
    "lerp": lambda x, w: torch.lerp(x, x.sin(), w),
    "addcmul": lambda x, w: torch.addcmul(x, x.cos(), w, value=0.3),
    "clamp": lambda x, w: torch.clamp(x, max=w),
}


@bounded(36)
@given(
    st.sampled_from(sorted(OPERATIONS)),
    st.sampled_from([(), (1,), (4,), (3, 1), (1, 3, 4), (1, 1, 1)]),
    st.booleans(),
)
def test_direct_parameters(operation: str, shape: tuple[int, ...], derived: bool) -> None:
    """Broadcast in any way. Fails when a weight's dimensions are lined up at the wrong end (tried)."""
    torch.manual_seed(len(shape))
    run = OPERATIONS[operation]
    model = Fn(
        lambda self, x: self.body(run(x, self.w.tanh() if derived else self.w)),
        w=weight(*shape),
        body=nn.Linear(4, 4),
    )
    rules = assert_matches(model, torch.randn(ROWS, 3, 4))
    assert set(rules.values()) <= {"direct", "direct (derived weight)", "linear"}


@bounded(12)
@given(st.sets(st.integers(0, 7), min_size=1, max_size=7), st.booleans())
def test_any_part_may_be_frozen(frozen: set[int], nested: bool) -> None:
    """Names are those of what is left. Fails when frozen parameters are among them (tried)."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 4))
    model: nn.Module = nn.Sequential(
        nn.ModuleDict({"body": body})["body"] if nested else body, nn.Linear(4, 3)
    )
    parameters = list(model.parameters())
    for i in frozen:
        parameters[i].requires_grad_(False)
    rules = assert_matches(model, torch.randn(ROWS, 2, 5, 5))
    assert set(rules) == {name for name, p in model.named_parameters() if p.requires_grad}


@bounded(10)
@given(
    st.sampled_from(["conv", "linear", "transposed"]),
    st.sampled_from(["weight", "spectral"]),
    st.integers(0, 9),
)
def test_normalised_weights(kind: str, norm: str, seed: int) -> None:
    """Fails when a derived weight's gradient is not carried back (tried)."""
    torch.manual_seed(seed)
    layer: nn.Module = {
        "conv": nn.Conv2d(3, 4, 3),
        "linear": nn.Linear(5, 4),
        "transposed": nn.ConvTranspose2d(3, 4, 3),
    }[kind]
    layer = weight_norm(layer) if norm == "weight" else spectral_norm(layer).eval()
    rules = assert_matches(layer, torch.randn(ROWS, 3, 5, 5))
    assert any("derived weight" in rule for rule in rules.values())


@bounded(10)
@given(st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_tied_and_reused(length: int, times: int, scaled: bool) -> None:
    """A table looked up and multiplied, a layer used again. Fails when norms of two uses are added (tried)."""
    torch.manual_seed(times)

    def run(self: Any, t: Tensor) -> Tensor:
        h = self.embed(t)
        for _ in range(times):
            h = torch.tanh(self.layer(h))
        table = self.embed.weight * 0.5 if scaled else self.embed.weight
        return F.linear(h, table)

    model = Fn(run, embed=nn.Embedding(6, 4), layer=nn.Linear(4, 4))
    rules = assert_matches(model, torch.randint(0, 6, (ROWS, length)))
    assert not any("torch.func" in rule or "example" in rule for rule in rules.values())
