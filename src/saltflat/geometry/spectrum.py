"""The spectrum of the Hessian of a loss: largest eigenvalues, trace, density."""

from __future__ import annotations

from torch import Tensor

from saltflat.geometry.lanczos import (
    Density,
    Eigenpairs,
    Estimate,
    Progress,
    density,
    quiet,
    random_start,
    top_eigenpairs,
    trace,
)
from saltflat.geometry.loss import Loss

TOLERANCE = 1e-3
LEVELS = (16, 4)  # first a sixteenth of the rows, then a quarter, then all
FEWEST = 64  # below so many rows a level tells too little


def eigenvalues(
    loss: Loss,
    k: int = 1,
    *,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    start: Tensor | None = None,
    most_products: int = 300,
    progress: Progress = quiet,
) -> Eigenpairs:
    """The ``k`` largest eigenvalues of the Hessian of a loss; the first is λ_max, the sharpness.

    The top of the spectrum is much alike on some of the rows and on all of them. So the search begins on a
    sixteenth of the rows and goes on from there, on a quarter and at last on all rows: only a few products are
    with the whole Hessian, and these alone decide about ``tolerance``. ``start`` are vectors to begin with
    instead.

    Guarantee: that of `top_eigenpairs`, for the Hessian on all rows.

    >>> import saltflat as sf
    >>> loss = Loss(sf.models.build("logistic", in_features=64), sf.data.load("digits").test, rows=100)
    >>> found = eigenvalues(loss, 2)
    >>> found.converged, bool(found.values[0] > found.values[1] > 0)
    (True, True)
    """

    def pairs(loss: Loss, start: Tensor, tolerance: float) -> Eigenpairs:
        def told(what: str, done: int, total: int) -> None:
            progress(f"{what} on {len(loss):,} rows", done, total)

        return top_eigenpairs(
            loss.hessian_times, start, k, tolerance=tolerance, most_products=most_products, progress=told
        )

    if start is None:
        start = random_start(loss.weights, seed)
        for rows in (len(loss) // share for share in LEVELS):
            if rows >= FEWEST:
                # As exact as a sample of the rows deserves: the next level corrects what is left.
                start = pairs(loss.subset(rows), start, max(tolerance, 0.05)).vectors
    return pairs(loss, start, tolerance)


def hessian_trace(loss: Loss, probes: int = 20, *, seed: int = 0, progress: Progress = quiet) -> Estimate:
    """The trace of the Hessian, with the standard error of its estimate (Hutchinson)."""
    return trace(loss.hessian_times, loss.weights, probes, seed=seed, progress=progress)


def hessian_density(
    loss: Loss, probes: int = 3, steps: int = 30, *, seed: int = 0, progress: Progress = quiet
) -> Density:
    """The density of the Hessian's eigenvalues (stochastic Lanczos quadrature)."""
    return density(loss.hessian_times, loss.weights, probes, steps, seed=seed, progress=progress)


def ratio(values: Tensor) -> float | None:
    """λ_max/λ_5, if there are five and the fifth is not zero; small where curvature is spread evenly.

    >>> import torch
    >>> ratio(torch.tensor([8.0, 5.0, 4.0, 3.0, 2.0])), ratio(torch.tensor([8.0]))
    (4.0, None)
    """
    return float(values[0] / values[4]) if len(values) >= 5 and float(values[4]) != 0 else None
