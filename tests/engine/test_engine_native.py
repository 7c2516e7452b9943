"""The loops in C against torch, and the engine without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_matches
from engine_networks import ARCHITECTURES
from torch import Tensor, nn

from saltflat.engine import clipped_sum, native
from saltflat.engine.kernels import Geometry, depthwise_by_taps

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler on this machine")


@compiled
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "dilation"),
    [
        (16, 3, 1, 1, 1),
        (40, 3, 1, 2, 1),
        (24, 3, 1, 0, 1),
        (19, 3, 2, 1, 1),
        (5, 1, 1, 0, 1),
        (33, 5, 1, 2, 2),
        (16, 9, 3, 4, 1),
        (40, 2, 1, 0, 1),
    ],
)
def test_depthwise_kernels(channels: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    """Fails when a border, a stride or the channels beyond the sixteenth are wrong."""
    torch.manual_seed(0)
    geometry = Geometry((kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2, channels)
    x = torch.randn(3, channels, 13, 11)
    grad = torch.randn_like(geometry.forward(x, torch.zeros(channels, 1, kernel, kernel), None))
    out = torch.empty(3, kernel, kernel, channels)
    last = [t.movedim(1, -1).contiguous() for t in (x, grad)]
    native.depthwise(*last, out, geometry.stride, geometry.padding, geometry.dilation)
    expected = depthwise_by_taps(x.double(), grad.double(), geometry).squeeze(-1).movedim(1, -1)
    assert torch.allclose(out.double(), expected, atol=1e-4)


@compiled
@pytest.mark.parametrize("size", [1, 31, 32, 100])
def test_moments(size: int) -> None:
    torch.manual_seed(0)
    grads, along = torch.randn(4, 3, size), torch.randn(3, size)
    total, product, squared = native.moments(grads, along)
    assert torch.allclose(total, grads.sum(2), atol=1e-5)
    assert torch.allclose(product, (grads * along).sum(2), atol=1e-5)
    assert torch.allclose(squared, grads.square().sum(2), atol=1e-4)


@compiled
@pytest.mark.parametrize(("channels", "groups"), [(8, 2), (32, 32), (21, 7), (16, 1)])
@pytest.mark.parametrize("shift", [0.0, 300.0])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(channels: int, groups: int, shift: float, affine: bool) -> None:
    """Forwards and backwards, also far from zero. Fails when the mean is not subtracted first."""
    torch.manual_seed(0)
    x, grad = torch.randn(3, 6, 5, channels) + shift, torch.randn(3, 6, 5, channels)
    weight, bias = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    out = torch.empty_like(x)
    mean, rstd = native.group_norm(x, out, groups, weight, bias, 1e-5)
    back, scales, shifts = native.group_norm_backward(grad, x, weight, mean, rstd, True)

    exact = x.double().movedim(-1, 1).requires_grad_()
    longer = [None if t is None else t.double() for t in (weight, bias)]
    expected = F.group_norm(exact, groups, *longer, 1e-5)
    (slope,) = torch.autograd.grad(expected, exact, grad.double().movedim(-1, 1))
    normal = F.group_norm(exact.detach(), groups)
    tolerance = 1e-5 * (1 + shift)
    assert torch.allclose(out.double(), expected.movedim(1, -1), atol=tolerance)
    assert back is not None
    assert torch.allclose(back.double(), slope.movedim(1, -1), atol=tolerance)
    assert torch.allclose(scales.double(), (normal * grad.movedim(-1, 1)).sum((2, 3)), atol=30 * tolerance)
    assert torch.allclose(shifts, grad.sum((1, 2)), atol=1e-4)


@compiled
@pytest.mark.parametrize("channels", [5, 16, 40])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((2, 2), (2, 2), (0, 0)), ((3, 3), (1, 1), (1, 1)), ((3, 2), (2, 1), (1, 0)), ((2, 3), (3, 4), (0, 1))],
)
def test_max_pooling(
    channels: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    """As torch does it, ties and what is not a number too. Fails when the last of equal numbers wins (tried)."""
    torch.manual_seed(0)
    x = torch.randn(3, channels, 9, 7).relu()  # many zeros
    x[1, 0, 3, 3], x[2, :, 4] = torch.nan, -torch.inf
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = F.max_pool2d(x, kernel, stride, padding)
    out = torch.empty_like(expected, memory_format=torch.channels_last)
    taps = native.max_pool(x.detach().movedim(1, -1), out.movedim(1, -1), kernel, stride, padding)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    grad = torch.randn_like(expected)
    (slope,) = torch.autograd.grad(expected, x, grad)
    back = torch.empty_like(x)
    last = grad.movedim(1, -1).contiguous()
    native.max_pool_backward(last, taps, back.movedim(1, -1), kernel, stride, padding)
    torch.testing.assert_close(back, slope, rtol=0, atol=1e-6)


@compiled
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d((2, 3), padding=(1, 0)), nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, 1, dilation=2), nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(17, padding=8),
    ],
    ids=str,
)  # fmt: skip
def test_pooling_in_a_model(pool: nn.MaxPool2d, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the loops, or left to torch: the sums are the explicit ones."""
    torch.manual_seed(0)
    whole, asked = native.max_pool, []
    monkeypatch.setattr(native, "max_pool", lambda *parts: (asked.append(1), whole(*parts))[1])
    first, last = nn.Conv2d(3, 16, 3, padding=1), nn.LazyLinear(3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pool, self.last = first, pool, last

        def forward(self, x: Tensor) -> Tensor:
            pooled = self.pool(torch.tanh(self.first(x)))
            return self.last((pooled[0] if isinstance(pooled, tuple) else pooled).flatten(1))

    model, x = Net(), torch.randn(5, 3, 7, 6)
    model(x)
    assert_matches(model, x, micro_batches=(None, 2))
    special = pool.ceil_mode or pool.return_indices or pool.dilation != 1 or pool.kernel_size == 17
    assert bool(asked) is not special


def test_a_model_that_differentiates_itself_is_still_right() -> None:
    """The loops have no second derivative: such a model goes another way, and not silently wrong."""

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(2, 8, 3), nn.GroupNorm(4, 8, affine=False), nn.Tanh(), nn.MaxPool2d(2)
            )
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                total = self.body(x).square().sum()
                (slope,) = torch.autograd.grad(total, x, create_graph=True)
            return slope.flatten(1)[:, :3] * self.scale

    torch.manual_seed(0)
    assert_matches(Slope(), torch.randn(5, 2, 6, 6), micro_batches=(None,))


@pytest.mark.parametrize("name", ["depthwise_separable", "convnext_block", "squeeze_and_excite"])
def test_the_engine_is_right_without_a_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sums by torch operations alone."""
    monkeypatch.setattr(native, "_library", lambda: None)
    torch.manual_seed(0)
    assert not native.available()
    assert_matches(*ARCHITECTURES[name][0](), micro_batches=(None, 3))


@compiled
def test_a_library_that_others_can_write_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the folder's rights are not looked at."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "saltflat" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    native._library.cache_clear()
    try:
        assert not native.available()
        folder.chmod(0o700)
        native._library.cache_clear()
        assert native.available()
        assert [path.suffix for path in folder.iterdir()] == [".so"]
    finally:
        native._library.cache_clear()


def test_the_loops_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALTFLAT_NATIVE", "0")
    native._library.cache_clear()
    try:
        assert not native.available()
        model = nn.Sequential(nn.Conv2d(16, 16, 3, groups=16), nn.Flatten(), nn.Linear(64, 2))
        loss = nn.CrossEntropyLoss(reduction="none")
        clipped_sum(model, loss, torch.randn(3, 16, 4, 4), torch.zeros(3, dtype=torch.long), 1.0)
    finally:
        native._library.cache_clear()
