"""Records are released after each micro-batch: memory is flat, and no graph outlives its step."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import Fn, smooth_loss, targets_for
from engine_zoo import ZOO
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from saltflat.engine import clipped_sum
from saltflat.engine.batch import Facts
from saltflat.engine.clipped_sum import LEARNING_UNITS, micro_batches


def conv_and_lstm() -> nn.Module:
    def net(self: Any, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        return self.head(self.lstm(h.flatten(2).transpose(1, 2))[0][:, -1])

    return Fn(
        net,
        conv=nn.Conv2d(3, 8, 3),
        norm=nn.GroupNorm(2, 8),
        lstm=nn.LSTM(8, 6, batch_first=True),
        head=nn.Linear(6, 3),
    )


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def live_tensors() -> int:
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())


class Hook:
    """Something that can be referred to weakly, and that autograd may call."""

    def __call__(self, grad: Tensor) -> None:
        return None


def test_memory_is_flat_over_many_steps() -> None:
    """A thousand steps, without the collector's help. Fails when a record keeps the history of its input (tried)."""
    torch.manual_seed(0)
    model, x, targets = conv_and_lstm(), torch.randn(16, 3, 5, 5), targets_for(16, torch.float32)

    def step() -> None:
        clipped_sum(model, smooth_loss, x, targets, 1.0, micro_batch=8)

    for _ in range(20):
        step()
    gc.collect()
    gc.disable()
    try:
        tensors, memory = live_tensors(), resident()
        for _ in range(1000):
            step()
        assert live_tensors() <= tensors + 5
        assert resident() <= memory + 30 * 2**20
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", ZOO)
def test_no_activation_outlives_its_step(name: str) -> None:
    """Of any layer, the moment the sum is there. Fails when a record keeps an input with its graph (tried)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    model = nn.Sequential(kind.build(), nn.Tanh())
    seen: list[weakref.ref[Any]] = []

    def remember(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.append(weakref.ref(output))
        if output.requires_grad:  # a hook lives as long as the node of the graph that it hangs on
            hook = Hook()
            output.register_hook(hook)
            seen.append(weakref.ref(hook))

    for module in model.modules():
        module.register_forward_hook(lambda m, a, o: remember(m, a, o) if isinstance(o, Tensor) else None)
    rows = kind.inputs(6), targets_for(6, torch.float32), 1.0
    clipped_sum(model, smooth_loss, *rows)  # torch.func imports more at its first use, in frames that linger
    seen.clear()
    gc.disable()  # what is not kept goes at once, without the collector
    try:
        found = clipped_sum(model, smooth_loss, *rows, micro_batch=4)
        assert seen
        assert not any(ref() is not None for ref in seen)
    finally:
        gc.enable()
    assert all(value.grad_fn is None and not value.requires_grad for value in found.grads.values())
    assert not found.norms.requires_grad


def test_a_model_is_forgotten_with_its_last_name() -> None:
    """What was learned of a model does not keep it. Fails when models are keys of a plain dict (tried)."""
    model = nn.Linear(4, 2)
    clipped_sum(model, smooth_loss, torch.randn(4, 4), torch.ones(4), 1.0)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_memory_grows_with_the_micro_batch_not_with_the_batch() -> None:
    """No more rows are ever in the model at once. Fails when a batch goes through in one piece (tried)."""
    rows: list[int] = []
    model = Fn(lambda self, x: (rows.append(len(x)), self.layer(x))[1], layer=nn.Linear(4, 2))
    clipped_sum(model, smooth_loss, torch.randn(100, 4), torch.ones(100), 1.0, micro_batch=8)
    assert max(rows) == 8


@given(st.integers(0, 700), st.integers(1, 70), st.integers(1, 5), st.booleans(), st.booleans())
def test_micro_batches_count_every_row_once(
    units: int, size: int, many: int, few_sizes: bool, fill: bool
) -> None:
    parts = list(micro_batches(units, size, many, 3, few_sizes, fill))
    counted = [row for part in parts for row in range(part.rows.start + 3 * part.again, part.rows.stop)]
    assert counted == list(range(3 * units))
    for part in parts:
        assert 0 <= part.rows.start < part.rows.stop <= 3 * units
        assert (part.rows.stop - part.rows.start) // 3 in range(part.again + 1, size + 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("clip_norm", [0.5, float("inf")])
def test_units_that_fill_a_micro_batch_up_count_once(
    monkeypatch: pytest.MonkeyPatch, threads: int, clip_norm: float
) -> None:
    """Fails when units are added again (tried), and when their norms are told twice (tried)."""
    monkeypatch.setattr("saltflat.engine.batch.WORTH_LANES", 0)
    monkeypatch.setattr("saltflat.engine.lanes.lane_count", lambda parameters: threads)
    rows: list[int] = []
    model = Fn(
        lambda self, x: (rows.append(len(x)), self.layer(x).flatten(1))[1], layer=nn.Conv2d(2, 3, 3)
    ).double()
    x, y = torch.randn(61, 2, 5, 5, dtype=torch.float64), torch.randn(61, dtype=torch.float64)
    x[54] = float("nan")  # of those that fill up
    weights = torch.rand(61, dtype=torch.float64)
    ours = clipped_sum(
        model, smooth_loss, x, y, clip_norm, row_weights=weights, micro_batch=16 * threads, check=False
    )
    assert sum(rows) > 61 + LEARNING_UNITS
    total, norms = torch.zeros(3, 2, 3, 3, dtype=torch.float64), []
    for i in range(61):
        loss = (smooth_loss(model(x[i : i + 1]), y[i : i + 1]) * weights[i]).sum()
        grads = torch.autograd.grad(loss, [*model.parameters()])
        norms.append(torch.stack([g.square().sum() for g in grads]).sum().sqrt())
        if norms[-1].isfinite():
            total += grads[0] * min(1.0, float(clip_norm / norms[-1]))
    torch.testing.assert_close(ours.grads["layer.weight"], total)
    torch.testing.assert_close(ours.norms, torch.stack(norms), equal_nan=True)


def test_batches_of_random_size_are_taken_in_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size leaves kernels and a torn heap behind. Fails with equal shares of the rest (tried)."""
    monkeypatch.setattr("saltflat.engine.batch.WORTH_LANES", 0)
    rows: list[int] = []
    model = Fn(lambda self, x: (rows.append(len(x)), self.layer(x))[1], layer=nn.Linear(4, 2))
    for units in range(150, 300):
        clipped_sum(model, smooth_loss, torch.randn(units, 4), torch.ones(units), 1.0, micro_batch=128)
    assert {size for size in rows if size > 3} <= {8, 16, 32, 64, 128}  # fewer are the probe's
    assert len(rows) <= 150 * 9  # half more than equal shares would need


def test_a_lane_takes_what_its_caches_can_gain_from() -> None:
    """Measured on nine models; a GPU has other caches, and takes what memory allows. Should fail without the bound."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    cnn = Facts(unit_bytes=670_000, unit_activations=1_000_000, crowding=1.6)
    assert (cnn.fitting_units(2, cpu), cnn.fitting_units(1, cpu), cnn.fitting_units(1, gpu)) == (64, 64, 512)
    many_activations = Facts(unit_bytes=130_000, unit_activations=5_200_000)
    assert (many_activations.fitting_units(2, cpu), many_activations.fitting_units(1, gpu)) == (64, 4096)
    large_records = Facts(unit_bytes=5_600_000, unit_activations=7_000_000, crowding=1.6)
    assert (large_records.fitting_units(2, cpu), large_records.fitting_units(16, cpu)) == (32, 16)
    assert Facts(unit_bytes=3000, unit_activations=40, crowding=73.0).fitting_units(2, cpu) == 4096


@pytest.mark.parametrize("wanted", [1, 2, 3, 64])
def test_a_crowded_micro_batch_is_taken_in_smaller_parts(wanted: int) -> None:
    """Wide per-unit gradients come on top of small activations. Fails without the division by crowding (tried)."""
    rows: list[int] = []
    kernels = nn.Conv2d(64, 64, 5, padding=2)  # 400 kB of gradient a unit, 64 kB of activations
    model = Fn(lambda self, x: (rows.append(len(x)), self.layer(x).mean((2, 3)))[1], layer=kernels)
    x = torch.randn(8 + wanted, 64, 8, 8)
    ours = clipped_sum(model, smooth_loss, x, torch.ones(len(x)), 1.0, micro_batch=wanted, check=False)
    rows.clear()
    whole = clipped_sum(model, smooth_loss, x, torch.ones(len(x)), 1.0, micro_batch=len(x), check=False)
    assert max(rows) <= len(x)
    torch.testing.assert_close(ours.grads["layer.weight"], whole.grads["layer.weight"], rtol=1e-4, atol=1e-5)
    if wanted == 64:
        rows.clear()
        many = torch.randn(256, 64, 8, 8)
        clipped_sum(model, smooth_loss, many, torch.ones(256), 1.0, micro_batch=128, check=False)
        assert max(rows) < 64


PROBE = """
import torch
from torch import nn
from saltflat.bench.fresh_process import growth_of, warm_up_torch
from saltflat.engine.probe import examine

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(12)])
size = sum(p.numel() * p.element_size() for p in model.parameters())
warm_up_torch()
step = lambda: examine(model, lambda out, targets: (out * targets[:, None]).sum(1), torch.randn(5, 1024), torch.ones(5))
print(growth_of(step)["peak_bytes"] / size)
"""


def test_the_probe_holds_a_few_models_at_most() -> None:
    """Gradients are compared by sketches. Fails when it keeps those of several examples at once (tried)."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 9
