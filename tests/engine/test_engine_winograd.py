"""3×3 convolutions with fewer multiplications, against torch's own in float64, and the engine on them."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Iterator

import pytest
import torch
from engine_helpers import distance, explicit, length, smooth_loss, targets_for
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from core_helpers import bounded
from saltflat.engine import clipped_sum, native, uses, winograd
from saltflat.engine.kernels import Geometry
from saltflat.engine.workspace import Workspace

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler on this machine")


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Rows in one piece, and dealt out."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def plain(padding: int) -> Geometry:
    return Geometry((3, 3), (1, 1), (padding, padding), (1, 1), 1)


def drawn(rows: int, inputs: int, outputs: int, space: tuple[int, int], padding: int) -> tuple[Tensor, ...]:
    """Input, kernel, bias and a gradient of the output."""
    x, weight = torch.randn(rows, inputs, *space), torch.randn(outputs, inputs, 3, 3)
    grad = torch.randn(rows, outputs, *plain(padding).positions(x.shape[2:]))
    return x, weight, torch.randn(outputs), grad


def assert_near(found: Tensor, exact: Tensor) -> None:
    assert found.shape == exact.shape
    assert torch.linalg.vector_norm(found - exact) <= 2e-6 * torch.linalg.vector_norm(exact)


@given(
    rows=st.integers(1, 5),
    panels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    space=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    padding=st.integers(0, 2),
)
@bounded(40)
def test_it_is_the_convolution_and_its_gradients(
    rows: int, panels: tuple[int, int], space: tuple[int, int], padding: int
) -> None:
    """Odd maps, borders, every padding. Fails when a tile at a border reads its neighbour (tried)."""
    torch.manual_seed(0)
    inputs, outputs = (panel * winograd.PANEL for panel in panels)
    x, weight, bias, grad = drawn(rows, inputs, outputs, space, padding)
    geometry, workspace = plain(padding), Workspace()
    assert geometry.by_winograd(x, outputs)
    exact = [t.double() for t in (x, weight, bias, grad)]

    out = winograd.convolve(x, winograd.kernel_points(weight, False), bias, outputs, padding, workspace)
    assert_near(out, geometry.forward(exact[0], exact[1], exact[2]))
    back = winograd.convolve(grad, winograd.kernel_points(weight, True), None, inputs, 2 - padding, workspace)
    assert_near(back, geometry.backward(exact[3], exact[0], exact[1], [True, False, False])[0])

    each, squared = winograd.gradients(x, grad, padding, workspace)
    one_by_one = [
        geometry.backward(exact[3][[row]], exact[0][[row]], exact[1], [False, True, False])[1]
        for row in range(rows)
    ]
    assert_near(each, torch.stack(one_by_one).movedim(2, -1))
    assert_near(squared, each.double().square().flatten(1).sum(1))
    factors = torch.rand(rows)
    total = winograd.weighted_sum(x, grad, factors, padding)
    assert_near(total, torch.einsum("r,r...->...", factors.double(), torch.stack(one_by_one)))


def test_many_tiles_are_added_up_over_blocks(threads: int) -> None:
    """More tiles than a block holds, of one row and of all. Fails when a block forgets the one before (tried)."""
    torch.manual_seed(0)
    x, weight, _, grad = drawn(5, 32, 48, (21, 18), 1)
    assert x.shape[2] * x.shape[3] // 4 > winograd.GRADIENT_TILES
    exact = x.double(), grad.double(), weight.double()
    each, _ = winograd.gradients(x, grad, 1, Workspace())
    expected = plain(1).backward(exact[1][[2]], exact[0][[2]], exact[2], [False, True, False])[1]
    assert_near(each[2].movedim(-1, 1), expected)
    factors = torch.rand(5)
    scaled = exact[1] * factors.double().view(-1, 1, 1, 1)
    expected = plain(1).backward(scaled, exact[0], exact[2], [False, True, False])[1]
    assert_near(winograd.weighted_sum(x, grad, factors, 1), expected)


def test_nothing_of_a_row_reaches_another(threads: int) -> None:
    """One row holds what is not a number; all others keep their bits, and have those that they have alone."""
    torch.manual_seed(0)
    x, weight, bias, grad = drawn(6, 32, 32, (9, 8), 1)
    points, workspace = winograd.kernel_points(weight, False), Workspace()
    bad = x.clone()
    bad[3] = torch.nan
    others = [0, 1, 2, 4, 5]
    clean = winograd.convolve(x, points, bias, 32, 1, workspace)
    assert torch.equal(winograd.convolve(bad, points, bias, 32, 1, workspace)[others], clean[others])
    assert torch.equal(winograd.convolve(x[4:5], points, bias, 32, 1, workspace)[0], clean[4])
    each, squared = winograd.gradients(bad, grad, 1, workspace)
    alone, length = winograd.gradients(x[4:5], grad[4:5], 1, workspace)
    assert torch.equal(each[4], alone[0])
    assert torch.equal(squared[4], length[0])
    assert bool(each[3].isnan().all())


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry((3, 3), (2, 2), (1, 1), (1, 1), 1),
        Geometry((3, 3), (1, 1), (1, 1), (2, 2), 1),
        Geometry((3, 3), (1, 1), (1, 1), (1, 1), 2),
        Geometry((3, 3), (1, 1), (1, 0), (1, 1), 1),
        Geometry((5, 5), (1, 1), (1, 1), (1, 1), 1),
        Geometry((3,), (1,), (1,), (1,), 1),
        Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1, transposed=True, output_padding=(0, 0)),
    ],
    ids=["stride", "dilation", "groups", "uneven padding", "kernel", "one dimension", "transposed"],
)
def test_other_convolutions_are_left_to_torch(geometry: Geometry) -> None:
    assert not geometry.by_winograd(torch.randn(2, 32, 8, 8), 32)


def test_what_it_does_not_take_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = plain(1)
    assert not geometry.by_winograd(torch.randn(2, 24, 8, 8), 32)
    assert not geometry.by_winograd(torch.randn(2, 32, 8, 8), 24)
    assert not geometry.by_winograd(torch.randn(2, 32, 8, 8).double(), 32)
    assert not geometry.by_winograd(torch.randn(0, 32, 8, 8), 32)
    monkeypatch.setattr(native, "_library", lambda: None)
    assert not geometry.by_winograd(torch.randn(2, 32, 8, 8), 32)


def network() -> nn.Module:
    """The same kernel twice, on large maps and on small ones, and one with another number of channels."""
    shared = nn.Conv2d(32, 32, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.SELU(), shared, nn.SELU(), nn.MaxPool2d(2), shared, nn.SELU(),
        nn.Conv2d(32, 64, 3), nn.SELU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.Flatten(),
        nn.Linear(256, 3),
    )  # fmt: skip


@pytest.mark.parametrize("formed", [True, False], ids=["gradients", "Gram matrices"])
@pytest.mark.parametrize("rows_per_unit", [1, 2])
def test_the_engine_on_wide_kernels(
    threads: int, formed: bool, rows_per_unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against explicit gradients, in lanes and out of them. Fails when the padding backwards is that forwards."""
    monkeypatch.setattr(uses, "INSTANTIATION_LIMIT", 10**12 if formed else 0)
    asked: list[str] = []
    for name in ("convolve", "gradients", "weighted_sum"):
        whole = getattr(winograd, name)
        monkeypatch.setattr(winograd, name, lambda *a, f=whole, n=name: (asked.append(n), f(*a))[1])
    torch.manual_seed(0)
    model, x, targets = network(), torch.randn(8, 1, 12, 12), targets_for(8, torch.float32)
    expected, norms = explicit(
        copy.deepcopy(model).double(), smooth_loss, x.double(), targets.double(), 0.7, rows_per_unit
    )
    for micro_batch in (None, 2):
        found = clipped_sum(
            model, smooth_loss, x, targets, 0.7, rows_per_unit=rows_per_unit, micro_batch=micro_batch
        )
        assert distance(found.grads, expected) <= 1e-5 * length(expected)
        torch.testing.assert_close(found.norms.double(), norms, rtol=1e-5, atol=0)
    assert {"convolve", "gradients" if formed else "weighted_sum"} <= set(asked)


def test_displaced_weights_are_transformed_anew() -> None:
    """Each view at weights of its own. Fails when the points of a kernel outlive the weights (tried)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 3))
    x, targets = torch.randn(6, 32, 4, 4), targets_for(6, torch.float32)
    moves = [{name: 0.1 * torch.randn_like(p) for name, p in model.named_parameters()} for _ in range(2)]
    found = clipped_sum(model, smooth_loss, x, targets, math.inf, rows_per_unit=2, displacements=moves)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for view, move in enumerate(moves):
        moved = {name: (p + move[name]).detach().requires_grad_() for name, p in model.named_parameters()}
        outputs = torch.func.functional_call(model, moved, (x[view::2],))
        grads = torch.autograd.grad(smooth_loss(outputs, targets[view::2]).sum(), list(moved.values()))
        for name, grad in zip(expected, grads):
            expected[name] += grad
    assert distance(found.grads, expected) <= 1e-5 * length(expected)
