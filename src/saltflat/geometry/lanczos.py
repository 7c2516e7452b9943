"""Eigenvalues, trace and spectral density of a symmetric operator that is known only by its products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.errors import InputError, check_count, check_positive

Operator = Callable[[Tensor], Tensor]
Progress = Callable[[str, int, int], None]
"""Told what is being computed, how much of it is done, and how much it is at most."""
DENSITY_POINTS = 201


def quiet(what: str, done: int, total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Eigenpairs:
    """The largest eigenvalues in falling order, their vectors as rows, and an estimate of each value's error.

    ``tolerance`` is what was asked for, relative to the operator's norm; ``converged`` says whether
    every error is below it. ``products`` counts how often the operator was applied.
    """

    values: Tensor
    vectors: Tensor
    errors: Tensor
    tolerance: float
    converged: bool
    products: int


@dataclass(frozen=True)
class Estimate:
    """A mean over random probes, with the standard error of that mean."""

    value: float
    error: float


def top_eigenpairs(
    operator: Operator,
    start: Tensor,
    k: int = 1,
    *,
    tolerance: float = 1e-3,
    most_products: int = 300,
    progress: Progress = quiet,
) -> Eigenpairs:
    """The ``k`` algebraically largest eigenvalues of a symmetric operator: Lanczos with thick restarts.

    ``start`` is a vector, or several as rows when something is known already. The basis is extended by the
    residual of the first pair that is not yet known well enough; from one start vector that is Lanczos's own
    next vector, kept orthogonal in full. When the basis is full it is exchanged for its best part.

    Guarantee: an eigenvalue lies within its residual r of each value. The error that is compared with
    ``tolerance`` times the operator's norm is the sharper estimate min(r, r²/gap), with the gap to the nearest
    other value found. If ``most_products`` did not suffice, ``converged`` is false. As in every method of this
    kind, one vector sees an eigenvalue that occurs several times only once.

    Reference: Wu and Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, 2000.

    >>> spectrum = torch.tensor([5.0, 3.0, 1.0, 0.5, -2.0], dtype=torch.float64)
    >>> top_eigenpairs(lambda v: spectrum * v, torch.ones(5, dtype=torch.float64), 2).values
    tensor([5.0000, 3.0000], dtype=torch.float64)
    """
    check_count("k", k)
    check_positive("tolerance", tolerance)
    start = torch.atleast_2d(start)
    size = start.shape[1]
    k = min(k, size)
    room = min(size, max(2 * k + 10, len(start) + k + 8))
    basis, images = start.new_empty(room, size), start.new_empty(room, size)
    filled = products = 0
    waiting = list(start[:room])
    while True:
        for candidate in waiting:
            direction = _orthonormal(candidate, basis[:filled])
            if direction is None or filled == room:
                continue
            basis[filled], images[filled] = direction, operator(direction)
            filled, products = filled + 1, products + 1
            progress("eigenvalues", products, most_products)
        if filled == 0:
            raise InputError("start", "zeros", "at least one vector that is not zero")
        small = (basis[:filled] @ images[:filled].T).double()
        ritz, mixes = torch.linalg.eigh((small + small.T) / 2)
        ritz, mixes = ritz.flip(0), mixes.flip(1).to(start.dtype)
        wanted = min(k, filled)
        residuals = (mixes[:, :wanted].T @ images[:filled]) - ritz[:wanted, None].to(start.dtype) * (
            mixes[:, :wanted].T @ basis[:filled]
        )
        norms = residuals.norm(dim=1).double()
        errors = torch.minimum(norms, norms.square() / _gaps(ritz, wanted))
        scale = max(float(ritz.abs().max()), 1e-30)
        late = torch.nonzero(errors > tolerance * scale).flatten().tolist()
        complete = filled == size
        if (wanted == k and not late) or complete or products >= most_products:
            vectors = mixes[:, :wanted].T @ basis[:filled]
            good = wanted == k and (not late or complete)
            return Eigenpairs(ritz[:wanted], vectors, errors, tolerance, good, products)
        if filled == room:
            kept = min(k + (room - k) // 2, room - 1)
            basis[:kept] = mixes[:, :kept].T @ basis[:filled]
            images[:kept] = mixes[:, :kept].T @ images[:filled]
            filled = kept
        waiting = [residuals[late[0] if late else 0]]
        if _orthonormal(waiting[0], basis[:filled]) is None:  # an invariant space: look elsewhere
            waiting = [torch.randn(size, generator=_generator(products)).to(start)]


def trace(
    operator: Operator, like: Tensor, probes: int = 20, *, seed: int = 0, progress: Progress = quiet
) -> Estimate:
    """The trace by Hutchinson's estimator with random signs: the mean of vᵀHv, and its standard error.

    Reference: Hutchinson 1990. The error is that of the mean over the probes.

    >>> diagonal = torch.arange(50.0)
    >>> trace(lambda v: diagonal * v, diagonal).value == float(diagonal.sum())  # exact for a diagonal
    True
    """
    check_count("probes", probes, 2)
    values = []
    for number in range(probes):
        probe = signs(like, seed, number)
        values.append(float(torch.dot(probe, operator(probe)).double()))
        progress("trace", number + 1, probes)
    found = torch.tensor(values, dtype=torch.float64)
    return Estimate(float(found.mean()), float(found.std(correction=1)) / math.sqrt(probes))


def tridiagonal(operator: Operator, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the quadrature that Lanczos makes of ``startᵀ f(H) start``, for a start of length one.

    Every new vector is made orthogonal to all earlier ones, twice: without it copies of large eigenvalues appear.
    """
    size = start.numel()
    steps = min(steps, size)
    basis = start.new_empty(steps, size)
    diagonal, beside = [], []
    direction: Tensor | None = start / start.norm()
    for step in range(steps):
        assert direction is not None
        basis[step] = direction
        image = operator(direction)
        diagonal.append(float(torch.dot(image, direction).double()))
        direction = _orthonormal(image, basis[: step + 1])
        if direction is None or step + 1 == steps:
            break
        beside.append(float(torch.dot(direction, image).double()))
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for i, value in enumerate(beside):
        matrix[i, i + 1] = matrix[i + 1, i] = value
    nodes, vectors = torch.linalg.eigh(matrix)
    return nodes, vectors[0].square()


@dataclass(frozen=True)
class Density:
    """A spectral density: its integral over ``eigenvalue`` is one. ``nodes`` and ``weights`` are what was smoothed."""

    eigenvalue: Tensor
    density: Tensor
    nodes: Tensor
    weights: Tensor


def density(
    operator: Operator,
    like: Tensor,
    probes: int = 3,
    steps: int = 30,
    *,
    seed: int = 0,
    progress: Progress = quiet,
) -> Density:
    """The spectral density by stochastic Lanczos quadrature, smoothed by a Gaussian of a hundredth of the range.

    The mean of f over the spectrum is the expectation of vᵀf(H)v over random unit vectors v, and ``steps`` of
    Lanczos integrate polynomials up to degree 2·steps − 1 exactly.

    Reference: Ubaru, Chen and Saad 2017; for networks Ghorbani, Krishnan and Xiao 2019.

    >>> found = density(lambda v: v * torch.arange(8.0), torch.ones(8), steps=8)
    >>> round(float(torch.trapezoid(found.density, found.eigenvalue)), 2)
    1.0
    """
    check_count("probes", probes)
    check_count("steps", steps, 2)
    done = 0

    def counted(vector: Tensor) -> Tensor:
        nonlocal done
        image = operator(vector)
        done += 1
        progress("density", done, probes * min(steps, like.numel()))
        return image

    found = [tridiagonal(counted, signs(like, seed, number), steps) for number in range(probes)]
    nodes = torch.cat([n for n, _ in found])
    weights = torch.cat([w for _, w in found]) / probes
    low, high = float(nodes.min()), float(nodes.max())
    width = max(high - low, 1e-12 * max(abs(high), abs(low), 1.0))
    grid = torch.linspace(low - 0.05 * width, high + 0.05 * width, DENSITY_POINTS, dtype=torch.float64)
    deviation = width / 100
    bells = torch.exp(-0.5 * ((grid[:, None] - nodes) / deviation).square())
    return Density(grid, bells @ weights / (deviation * math.sqrt(2 * math.pi)), nodes, weights)


def signs(like: Tensor, seed: int, number: int) -> Tensor:
    """The probe of this number: plus or minus one, at random."""
    drawn = torch.randint(0, 2, (like.numel(),), generator=_generator(seed * 1_000_003 + number))
    return (2 * drawn - 1).to(like)


def random_start(like: Tensor, seed: int) -> Tensor:
    """A vector in no particular direction."""
    return torch.randn(like.numel(), generator=_generator(seed)).to(like)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _orthonormal(vector: Tensor, basis: Tensor) -> Tensor | None:
    """What of a vector is not in the basis, at length one; None if that is nothing but rounding."""
    length = float(vector.norm())
    if not length > 0 or not math.isfinite(length):
        return None
    rest = vector / length
    for _ in range(2):  # once leaves the rounding of the first time
        rest = rest - basis.T @ (basis @ rest)
    left = float(rest.norm())
    return None if left < 100 * torch.finfo(rest.dtype).eps else rest / left


def _gaps(ritz: Tensor, wanted: int) -> Tensor:
    """From each wanted value to the nearest other one."""
    if len(ritz) == 1:
        return torch.full((1,), 1e-300, dtype=ritz.dtype)
    apart = (ritz[:wanted, None] - ritz[None, :]).abs()
    apart[torch.arange(wanted), torch.arange(wanted)] = math.inf
    return apart.min(1).values.clamp_min(1e-300)
