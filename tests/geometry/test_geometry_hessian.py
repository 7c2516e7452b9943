"""Products with the Hessian, and what follows from them, against the Hessian written out in full."""

from __future__ import annotations

import copy

import pytest
import torch
from geometry_helpers import NETWORKS, explicit_hessian, network
from torch import nn

from saltflat.errors import InputError
from saltflat.geometry import Loss, eigenvalues, hessian_density, hessian_trace
from saltflat.geometry.lanczos import signs
from saltflat.models import build


@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_the_explicit_hessian(name: str) -> None:
    """Fails when the normalisation's backward forgets that its deviation moves."""
    loss = Loss(*network(name), micro_batch=5)
    hessian = explicit_hessian(loss)
    for seed in range(3):
        vector = torch.randn(
            loss.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        torch.testing.assert_close(loss.hessian_times(vector), hessian @ vector, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["mlp", "convolutional", "layer norm", "recurrent"])
def test_both_ways_agree(name: str) -> None:
    loss = Loss(*network(name))
    vector = torch.randn(loss.dimension, dtype=torch.float64)
    carried = loss.hessian_times(vector)
    assert loss._forward_over_reverse, "forward mode was given up"
    loss._forward_over_reverse = False
    torch.testing.assert_close(loss.hessian_times(vector), carried, rtol=1e-9, atol=1e-11)


def test_an_operation_without_forward_mode_takes_the_other_way() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(Cube.apply(self.inner(x)))

    _, rows = network("mlp")
    loss = Loss(Odd().double(), rows)
    vector = torch.randn(loss.dimension, dtype=torch.float64)
    torch.testing.assert_close(loss.hessian_times(vector), explicit_hessian(loss) @ vector)
    assert not loss._forward_over_reverse


@pytest.mark.parametrize("name", ["mlp", "convolutional", "attention"])
def test_eigenvalues_are_those_of_the_explicit_hessian(name: str) -> None:
    loss = Loss(*network(name))
    exact = torch.linalg.eigvalsh(explicit_hessian(loss)).flip(0)
    found = eigenvalues(loss, 5, tolerance=1e-5)
    assert found.converged
    assert float((found.values - exact[:5]).abs().max()) < 1e-4 * float(exact[0])
    plain = eigenvalues(loss, 5)  # the default tolerance keeps its word as well
    assert float((plain.values - exact[:5]).abs().max()) < 1e-3 * float(exact[0])
    again = found.vectors @ explicit_hessian(loss)
    torch.testing.assert_close(
        again, found.values[:, None] * found.vectors, rtol=0, atol=5e-2 * float(exact[0])
    )


def test_the_search_over_growing_samples_ends_at_all_rows() -> None:
    """Fails when the result of a sample is returned."""
    model, rows = network("mlp", rows=1100)
    loss = Loss(model, rows)
    told: list[str] = []
    found = eigenvalues(loss, 2, tolerance=1e-6, progress=lambda what, done, total: told.append(what))
    exact = torch.linalg.eigvalsh(explicit_hessian(loss)).flip(0)
    assert float((found.values - exact[:2]).abs().max()) < 1e-6 * float(exact[0])
    assert list(dict.fromkeys(told)) == [f"eigenvalues on {n} rows" for n in ("68", "275", "1,100")]


def test_trace_and_density_of_a_network() -> None:
    loss = Loss(*network("mlp"))
    hessian = explicit_hessian(loss)
    estimate = hessian_trace(loss, probes=200)
    assert abs(estimate.value - float(hessian.trace())) < 4 * estimate.error
    # With the same probes, the quadrature's first moments are means of vᵀHv and ‖Hv‖² over them.
    curve = hessian_density(loss, probes=7, steps=4)
    probes = torch.stack([signs(loss.weights, 0, number) for number in range(7)])
    first = float(hessian_trace(loss, probes=7).value) / loss.dimension
    second = float((probes @ hessian).square().mean())
    assert float(curve.nodes @ curve.weights) == pytest.approx(first)
    assert float(curve.nodes.square() @ curve.weights) == pytest.approx(second)


def test_micro_batches_and_threads_change_nothing() -> None:
    model, rows = network("convolutional", rows=23)
    vector = torch.randn(Loss(model, rows).dimension, dtype=torch.float64)
    before = torch.get_num_threads()
    results = []
    try:
        for threads, size in ((1, 64), (1, 3), (2, 4)):
            torch.set_num_threads(threads)
            loss = Loss(model, rows, micro_batch=size)
            measured = loss.measure()
            results.append((loss.hessian_times(vector), loss.gradient(), torch.tensor([measured.loss])))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_the_model_of_the_caller_stays_as_it_is() -> None:
    model, rows = network("convolutional")
    model.train()
    before = copy.deepcopy(model.state_dict())
    loss = Loss(model, rows)
    eigenvalues(loss)
    loss.measure(loss.weights + 1)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_network_of_the_papers() -> None:
    """The fast path on a real architecture: the same product as by the gradient of a gradient, and symmetric."""
    torch.manual_seed(0)
    model = build("dpnas-fmnist")
    rows = (torch.rand(3, 1, 28, 28), torch.randint(0, 10, (3,)))
    loss = Loss(model, rows, dtype=torch.float64)
    assert loss.weights.dtype == torch.float64
    u, v = (torch.randn(loss.dimension, dtype=torch.float64) / loss.dimension**0.5 for _ in range(2))
    once = loss.hessian_times(v)
    assert loss._forward_over_reverse
    assert abs(float(u @ once - v @ loss.hessian_times(u))) < 1e-9
    loss._forward_over_reverse = False
    torch.testing.assert_close(loss.hessian_times(v), once, rtol=1e-8, atol=1e-10)
    single = Loss(model, rows).hessian_times(v.float())
    assert float((single - once).norm()) < 1e-3 * float(once.norm())


def test_weights_of_an_average_and_what_is_refused() -> None:
    model, rows = network("mlp")
    other = {name: p.detach() + 1 for name, p in model.named_parameters()}
    assert torch.equal(Loss(model, rows, weights=other).weights, Loss(model, rows).weights + 1)
    with pytest.raises(InputError, match="nothing"):
        Loss(model, rows, weights={"nothing": torch.zeros(1)})
    with pytest.raises(InputError, match="one number a weight"):
        Loss(model, rows).hessian_times(torch.zeros(3))
    with pytest.raises(InputError, match="rows"):
        Loss(model, rows, rows=0)
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(InputError, match="requires_grad"):
        Loss(model, rows)
