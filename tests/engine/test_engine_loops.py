"""Loops in C for narrow layers, sequences, activations and strides, against float64 and inside models."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_matches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from saltflat.engine import clipped_sum, ghost, native, shares, tape
from saltflat.engine.clipped_sum import _facts
from saltflat.engine.kernels import Geometry, weighted_kernel_sum

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler on this machine")
few_examples = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- a linear layer with few outputs ------------------------------------------------------------------


@compiled
@few_examples
@given(
    rows=st.integers(1, 40), wide=st.integers(1, 2500), few=st.integers(1, 16), parts=st.integers(1, 5),
    with_bias=st.booleans(),
)  # fmt: skip
def test_few_outputs(rows: int, wide: int, few: int, parts: int, with_bias: bool) -> None:
    """Outputs, squared lengths and clipped sums, however the rows are shared.

    Fails when the features behind the last whole vector are left out, or a share's rows (both tried).
    """
    torch.set_num_threads(2)
    x, weight, side = random(1, rows, wide), random(2, few, wide), random(3, rows, few)
    factors, bias = random(4, rows).abs(), random(5, few) if with_bias else None
    out, squares = native.few_outputs(x, weight, bias, parts)
    sums = native.few_sums(side, factors, x, parts)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6 * wide**0.5 * 10)
    torch.testing.assert_close(squares.double(), x.double().square().sum(1), rtol=1e-5, atol=1e-6)
    expected = (side * factors[:, None]).double().T @ x.double()
    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-4)


@compiled
def test_nothing_of_a_row_reaches_another() -> None:
    """A row that is not finite spoils its own outputs and lengths alone."""
    x, weight = random(1, 9, 700), random(2, 10, 700)
    broken = x.clone()
    broken[4] = torch.nan
    clean = native.few_outputs(x, weight, None, 2)
    found = native.few_outputs(broken, weight, None, 2)
    others = torch.arange(9) != 4
    for before, after in zip(clean, found):
        assert torch.equal(before[others], after[others])
        assert bool(after[4].isnan().all())


@compiled
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("longest", [1.0, 1e12, 1e25])
def test_a_narrow_layer_is_clipped_right(threads: int, longest: float) -> None:
    """Also where squares leave float32: lengths that came with the outputs are then measured again."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = nn.Sequential(nn.GroupNorm(3, 9, affine=False), nn.Flatten(), nn.Linear(9 * 500, 4))
    x = torch.randn(70, 9, 20, 25)
    x = torch.cat([x[:69], x[69:] * longest])
    plain = nn.Sequential(nn.Flatten(), nn.Linear(9 * 500, 4))
    labels = torch.arange(70) % 4
    loss = nn.CrossEntropyLoss(reduction="none")
    for net in (model, plain):
        assert shares._is_for_loops(x.flatten(1))
        found = clipped_sum(net, loss, x, labels, 0.1)
        exact = [p.detach().double().requires_grad_() for p in net.parameters()]
        total = [torch.zeros_like(p) for p in exact]
        for i in range(70):
            rows = net[0](x[i : i + 1]) if net is model else x[i : i + 1]
            outputs = F.linear(rows.double().flatten(1), *exact)
            grads = torch.autograd.grad(loss(outputs, labels[i : i + 1]).sum(), exact)
            norm = torch.cat([g.flatten() for g in grads]).norm()
            for whole, grad in zip(total, grads):
                whole += grad * min(1.0, 0.1 / float(norm))
        for name, whole in zip(("weight", "bias"), total):
            grad = next(g for key, g in found.grads.items() if key.endswith(name))
            torch.testing.assert_close(grad.double(), whole, rtol=1e-3, atol=1e-5)


@compiled
@few_examples
@given(
    rows=st.integers(1, 20), groups=st.integers(1, 9), each=st.integers(1, 4), side=st.integers(1, 9),
    affine=st.booleans(), shift=st.sampled_from([0.0, 300.0]), parts=st.integers(1, 3),
)  # fmt: skip
def test_group_norm_of_features_as_they_lie(
    rows: int, groups: int, each: int, side: int, affine: bool, shift: float, parts: int
) -> None:
    """Also far from zero. Fails when a group's last numbers are left out of its mean (tried)."""
    torch.set_num_threads(2)
    channels = groups * each
    x = random(1, rows, channels, side, side) + shift
    weight, bias = (random(2, channels), random(3, channels)) if affine else (None, None)
    found = native.group_norm_by_rows(x, groups, weight, bias, 1e-5, parts)
    flat = x.double().reshape(rows, groups, -1)
    normal = (flat - flat.mean(2, keepdim=True)) / (flat.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
    expected = normal.view(x.shape)
    if weight is not None and bias is not None:
        expected = expected * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)
    assert torch.allclose(found.double(), expected, atol=2e-5 * (1 + shift))


# --- sequences ----------------------------------------------------------------------------------------


@compiled
@few_examples
@given(
    units=st.integers(1, 20), length=st.integers(1, 14), rows=st.integers(1, 70), columns=st.integers(1, 70),
    parts=st.integers(1, 3),
)  # fmt: skip
def test_gram_norms(units: int, length: int, rows: int, columns: int, parts: int) -> None:
    """Half of each Gram matrix is enough. Fails when the diagonal counts twice (tried)."""
    torch.set_num_threads(2)
    left, right = random(1, units, length, rows), random(2, units, length, columns)
    found = native.gram_norms(left, right, parts)
    grams = [torch.bmm(t.double(), t.double().mT) for t in (left, right)]
    expected = ghost.gram_norms(grams[0], grams[1])
    for own, exact in zip(found, expected):
        torch.testing.assert_close(own.double(), exact, rtol=2e-5, atol=2e-5 * float(expected[1].max()))


@compiled
def test_sequences_whose_terms_cancel_are_still_found_out() -> None:
    """The loops say how large the terms were; what float32 cannot resolve is computed again."""
    left = random(1, 6, 4, 200)
    left[2, 2:] = -left[2, :2] * (1 + 1e-4)  # with equal right sides, almost nothing is left
    right = random(2, 6, 2, 200).repeat(1, 2, 1)
    squared, doubtful = ghost.resolved(ghost.outer_gram, left, right)
    assert doubtful is not None
    assert doubtful.tolist() == [i == 2 for i in range(6)]
    exact = torch.bmm(left.double().mT, right.double()).flatten(1).norm(dim=1).square()
    assert bool((squared.double() >= exact * (1 - 1e-6)).all())
    torch.testing.assert_close(squared.double(), exact, rtol=1e-4, atol=0)


# --- activations --------------------------------------------------------------------------------------

SPECIAL = torch.tensor(
    [0.0, -0.0, 1e-30, -1e-30, 1e-7, -1e-7, 88.0, -88.0, 1e38, -1e38, torch.inf, -torch.inf]
)


@compiled
@pytest.mark.parametrize("count", [1, 7, 8, 100_003])
def test_activations_are_as_exact_as_torch(count: int) -> None:
    """Relative to float64, forwards and backwards, over all sizes of numbers."""
    x = torch.cat([random(count, count) * torch.logspace(-6, 2, count), SPECIAL])
    grad = random(3, len(x))
    for own, torchs, back in (
        (lambda t: native.elu(t, 1.05070098735548, 1.05070098735548 * 1.67326324235437), torch.selu,
         lambda g, y: native.elu_backward(g, y, 1.05070098735548, 1.05070098735548 * 1.67326324235437)),
        (lambda t: native.elu(t, 1.0, 0.7), lambda t: F.elu(t, 0.7),
         lambda g, y: native.elu_backward(g, y, 1.0, 0.7)),
        (native.tanh, torch.tanh, native.tanh_backward),
    ):  # fmt: skip
        exact = x.double().requires_grad_()
        expected = torchs(exact)
        found = own(x)
        torch.testing.assert_close(found.double(), expected.detach(), rtol=3e-7, atol=1e-37)
        (slope,) = torch.autograd.grad(expected, exact, grad.double())
        torch.testing.assert_close(back(grad, found).double(), slope, rtol=1e-5, atol=1e-6)
        assert bool(own(torch.tensor([torch.nan, 1.0])).isnan()[0])


class Written(nn.Module):
    """Something writes into what an activation gave."""

    def __init__(self, activation: Any, write: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 3)
        self.activation, self.write = activation, write

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.first(x))
        hidden = self.write(hidden, self.second)
        return self.head(hidden.mean((2, 3)))


def added(h: Tensor, layer: nn.Module) -> Tensor:
    h += layer(h.clone())
    return h


def through_a_view(h: Tensor, layer: nn.Module) -> Tensor:
    h[:, :8].mul_(2.0)
    return layer(h)


def one_channel(h: Tensor, layer: nn.Module) -> Tensor:
    h[:, 0] = 0.0
    return layer(h)


WRITES = {
    "nothing": lambda h, layer: layer(h),
    "added": added,
    "relu": lambda h, layer: layer(F.relu(h, inplace=True)),
    "module": lambda h, layer: layer(nn.Hardtanh(-0.5, 0.5, inplace=True)(h)),
    "view": through_a_view,
    "channel": one_channel,
}


@compiled
@pytest.mark.parametrize(
    ("activation", "write"),
    [
        *itertools.product([F.selu, F.elu, lambda h: F.elu(h, alpha=0.3)], WRITES),
        (torch.tanh, "nothing"),  # torch refuses to write into its output, as into that of the next
        (nn.SELU(inplace=True), "nothing"),
    ],
)
def test_what_is_written_into_an_activation_changes_no_slope(activation: Any, write: str) -> None:
    """Fails when the output is not copied before it is overwritten (tried)."""
    torch.manual_seed(0)
    model, x = Written(activation, WRITES[write]), torch.randn(5, 3, 8, 8)
    assert_matches(model, x, micro_batches=(None, 2))
    clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), x, torch.arange(5) % 3, 1.0)
    assert not any(facts.off_tape for facts in _facts[model].values())


@compiled
def test_a_write_that_nobody_saw_is_found_out() -> None:
    """Through memory that the tape does not watch: then another way is taken, and the sum is right."""

    def hidden_write(h: Tensor, layer: nn.Module) -> Tensor:
        with torch._C.DisableTorchFunction():
            h.detach().mul_(0.5)
        return layer(h)

    torch.manual_seed(0)
    model, x = Written(F.selu, hidden_write), torch.randn(4, 3, 6, 6)
    labels, loss = torch.arange(4) % 3, nn.CrossEntropyLoss(reduction="none")
    clipped_sum(model, loss, x, labels, 1.0, check=False)
    assert all(facts.off_tape for facts in _facts[model].values())


@compiled
def test_outputs_are_let_go_on_the_way_back() -> None:
    """Records take the memory of activations. Fails when the tape holds on to what it kept (tried)."""
    kept: list[tape.Kept] = []

    class Watched(tape.Tape):
        def keep(self, out: Tensor, instead_of: Tensor) -> tape.Kept:
            kept.append(super().keep(out, instead_of))
            return kept[-1]

    model = nn.Sequential(nn.Linear(4, 20), nn.SELU(), nn.Linear(20, 20), nn.ELU(), nn.Linear(20, 3))
    own = Watched(model.parameters(), 5)
    x = torch.randn(5, 4)
    own.mark([x])
    with own:
        losses = model(x).square().sum(1)
    assert [one._out is not None for one in kept] == [True, True]
    for keeping in (True, False):  # somebody may go back twice
        assert own.pulled_to([], [losses], [torch.ones(5)], keep_graph=keeping) is not None
        assert [one._out is not None for one in kept] == [keeping, keeping]


# --- strides ------------------------------------------------------------------------------------------


@few_examples
@given(
    kernel=st.integers(1, 4), stride=st.integers(2, 3), padding=st.integers(0, 2), dilation=st.integers(1, 2),
    channels=st.integers(1, 5), outputs=st.integers(1, 5), rows=st.integers(1, 6),
)  # fmt: skip
def test_clipped_sum_of_a_strided_kernel(
    kernel: int, stride: int, padding: int, dilation: int, channels: int, outputs: int, rows: int
) -> None:
    """Fails when the last block of rows is left out, or a border is not zero (both tried)."""
    geometry = Geometry((kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2, 1)
    x = random(1, rows, channels, 9, 11).double().contiguous(memory_format=torch.channels_last)
    weight = random(2, outputs, channels, kernel, kernel).double()
    grad, factors = torch.randn_like(geometry.forward(x, weight, None)), random(3, rows).double().abs()
    scaled = grad * factors.view(-1, 1, 1, 1)
    expected = geometry.backward(scaled, x, weight, [False, True, False])[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saltflat.engine.kernels.PATCH_BUFFER", 2 * grad[0, 0].numel() * weight[0].numel())
        found = weighted_kernel_sum(x, grad, factors, geometry)
    torch.testing.assert_close(found, expected)


# --- memory -------------------------------------------------------------------------------------------

STEPS = """
import resource, torch
import saltflat as sf
from torch import nn
torch.set_num_threads(2)
torch.rand(1 << 20).exp().sum()  # torch has threads of its own now
layers = [nn.Conv2d(3, 32, 3, padding=1), nn.SELU(), nn.Conv2d(32, 32, 3, padding=1), nn.SELU(), nn.MaxPool2d(2)]
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 256, 10))
x, y = torch.rand(256, 3, 32, 32), torch.arange(256) % 10
step = lambda: sf.clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), x, y, 1.0)
pages = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(6): step()
found = []
for _ in range(8):
    before = pages()
    step()
    found.append(pages() - before)
print(sorted(found)[4])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library is told on Linux alone")
def test_no_memory_is_fetched_again() -> None:
    """In the median of eight steps: now and then, two lanes together need more than ever before.

    Four pages at most, and 8,000 to 20,000 where threads have heaps of their own (tried: without the call).
    """
    from saltflat.heap import keeps_freed_memory

    if not keeps_freed_memory():
        return
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300
