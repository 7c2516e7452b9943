"""Eigenvalues, trace and density of operators whose spectrum is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saltflat.errors import InputError
from saltflat.geometry.lanczos import Operator, density, top_eigenpairs, trace, tridiagonal


def rotated(spectrum: Tensor, seed: int = 0) -> tuple[Operator, Tensor]:
    """A symmetric matrix with this spectrum in no particular basis, and a vector to start from."""
    generator = torch.Generator().manual_seed(seed)
    size = len(spectrum)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    matrix = basis @ torch.diag(spectrum) @ basis.T
    return (lambda v: matrix.to(v) @ v), torch.randn(size, generator=generator, dtype=torch.float64)


OUTLIERS = torch.cat([torch.tensor([50.0, 20.0, 19.5, 8.0, 7.0]), torch.linspace(1, -3, 395)]).double()


@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_quadratic_with_a_known_spectrum(k: int) -> None:
    operator, start = rotated(OUTLIERS)
    found = top_eigenpairs(operator, start, k, tolerance=1e-6)
    assert found.converged
    assert float((found.values - OUTLIERS[:k]).abs().max()) < 1e-6 * 50
    assert found.products < 60, "a dense spectrum of 400 needs no more"
    inner = found.vectors @ found.vectors.T
    torch.testing.assert_close(inner, torch.eye(k, dtype=torch.float64), atol=1e-9, rtol=0)


def test_restarts_reach_the_inside_of_a_spectrum_without_gaps() -> None:
    """Eigenvalues a three-hundredth of the range apart, with room for eighteen vectors."""
    spectrum = torch.linspace(10, 0, 300, dtype=torch.float64)
    operator, start = rotated(spectrum)
    found = top_eigenpairs(operator, start, 4, tolerance=1e-5, most_products=600)
    assert found.converged
    assert found.products > 18, "the basis has room for 18"
    assert float((found.values - spectrum[:4]).abs().max()) < 1e-4


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=12, unique=True), st.integers(1, 14))
def test_small_matrices_are_solved_whole(values: list[int], k: int) -> None:
    """Zeros, one dimension, and more eigenvalues asked for than there are."""
    spectrum = torch.tensor(sorted(values, reverse=True), dtype=torch.float64) / 10
    operator, start = rotated(spectrum)
    found = top_eigenpairs(operator, start, k, tolerance=1e-8)
    many = min(k, len(values))
    assert found.values.shape == (many,)
    torch.testing.assert_close(found.values, spectrum[:many], atol=1e-6, rtol=1e-6)


def test_an_invariant_space_is_left_for_another() -> None:
    """All vectors are eigenvectors: the first residual is zero, and three pairs are asked for."""
    found = top_eigenpairs(lambda v: 2 * v, torch.ones(5, dtype=torch.float64), 3)
    assert found.values.tolist() == pytest.approx([2.0, 2.0, 2.0])
    assert found.converged


def test_a_good_start_saves_products() -> None:
    operator, start = rotated(OUTLIERS)
    cold = top_eigenpairs(operator, start, 3)
    near = cold.vectors + 0.01 * torch.randn(3, 400, dtype=torch.float64)
    warm = top_eigenpairs(operator, near, 3)
    assert warm.products < cold.products
    assert float((warm.values - OUTLIERS[:3]).abs().max()) < 1e-3 * 50


def test_errors_are_told_when_products_do_not_suffice() -> None:
    operator, start = rotated(torch.linspace(10, 0, 300, dtype=torch.float64))
    found = top_eigenpairs(operator, start, 2, tolerance=1e-12, most_products=10)
    assert not found.converged
    assert found.products == 10
    assert float(found.errors.max()) > 1e-12 * 10
    with pytest.raises(InputError, match="tolerance"):
        top_eigenpairs(operator, start, 2, tolerance=0.0)
    with pytest.raises(InputError, match="not zero"):
        top_eigenpairs(operator, torch.zeros(300), 1)


@pytest.mark.statistical
def test_the_error_bar_of_the_trace_is_one() -> None:
    """Over 60 estimates the deviation in units of the bar has a size near one; a bar √n too large gives 0.3."""
    operator, _ = rotated(OUTLIERS)
    true = float(OUTLIERS.sum())
    found = [trace(operator, OUTLIERS, 20, seed=seed) for seed in range(60)]
    units = torch.tensor([(one.value - true) / one.error for one in found])
    assert 0.75 < float(units.square().mean().sqrt()) < 1.35
    assert float(units.abs().max()) < 5


def test_the_density_has_the_mass_where_eigenvalues_are() -> None:
    operator, _ = rotated(OUTLIERS)
    curve = density(operator, OUTLIERS, probes=20, steps=40)
    step = float(curve.eigenvalue[1] - curve.eigenvalue[0])
    mass = curve.density * step
    assert abs(float(mass.sum()) - 1) < 1e-2
    bulk = float(mass[(curve.eigenvalue > -5) & (curve.eigenvalue < 3)].sum())
    assert abs(bulk - 395 / 400) < 0.02
    apart = float(mass[(curve.eigenvalue > 25) & (curve.eigenvalue < 45)].sum())
    assert apart < 1e-4
    assert abs(float(mass[curve.eigenvalue > 45].sum()) - 1 / 400) < 2e-3


def test_the_quadrature_is_exact_for_polynomials() -> None:
    operator, start = rotated(torch.linspace(-1, 2, 40, dtype=torch.float64))
    start = start / start.norm()
    nodes, weights = tridiagonal(operator, start, 6)
    image, power = start, []
    for _ in range(11):
        image = operator(image)
        power.append(float(start @ image))
    for degree, exact in enumerate(power, start=1):
        assert abs(float((nodes**degree) @ weights) - exact) < 1e-10
    assert abs(float((nodes**14) @ weights) - float(start @ operator(operator(operator(image))))) > 1e-10


def test_the_quadrature_stops_at_an_invariant_space() -> None:
    nodes, weights = tridiagonal(lambda v: 2 * v, torch.ones(5, dtype=torch.float64), 4)
    assert nodes.tolist() == pytest.approx([2.0])
    assert weights.tolist() == pytest.approx([1.0])
