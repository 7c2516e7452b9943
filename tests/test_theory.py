"""The papers' bounds, against direct simulation and against their own slips."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saltflat import theory
from saltflat.errors import InputError


def averaged_descent(
    *,
    curvatures: list[float],
    steps: int,
    every: int,
    rate: float,
    noise: float,
    start: float,
    runs: int = 400,
) -> np.ndarray:
    """Squared distances to the minimum, at zero, of the mean of every c-th iterate of noisy descent."""
    generator = np.random.default_rng(7)
    eigenvalues = np.array(curvatures)
    theta = np.full((runs, len(curvatures)), start / math.sqrt(len(curvatures)))
    mean, count = np.zeros_like(theta), 0
    for step in range(1, steps + 1):
        release = theta * eigenvalues + noise * generator.standard_normal(theta.shape)  # as in Algorithm 1
        theta = theta - rate * release
        if step % every == 0:
            count += 1
            mean += (theta - mean) / count
    return np.square(mean).sum(1)


def bound_settings(
    *, curvatures: list[float], steps: int, every: int, rate: float, noise: float, start: float
) -> dict[str, Any]:
    return {
        "steps": steps,
        "every": every,
        "learning_rate": rate,
        "smallest_curvature": min(curvatures),
        "largest_curvature": max(curvatures),
        "dimension": len(curvatures),
        "noise_deviation": noise,
        "initial_distance": start,
    }


def case(
    curvatures: list[float], *, steps: int, every: int, rate: float, noise: float, start: float
) -> dict[str, Any]:
    names = ("curvatures", "steps", "every", "rate", "noise", "start")
    return dict(zip(names, (curvatures, steps, every, rate, noise, start)))


CASES = {
    "every step": case([1.0] * 10, steps=400, every=1, rate=0.2, noise=0.3, start=1.0),
    "cycles": case([1.0] * 10, steps=400, every=8, rate=0.2, noise=0.3, start=1.0),
    "far start": case([0.1, 1.0], steps=60, every=3, rate=0.5, noise=0.01, start=9.0),
    "uneven": case([0.2, 1.0, 4.0], steps=300, every=2, rate=0.25, noise=0.5, start=2.0),
    "long step": case([0.1] * 5, steps=200, every=1, rate=5.0, noise=0.2, start=1.0),
}


@pytest.mark.statistical
@pytest.mark.parametrize("settings", list(CASES.values()), ids=list(CASES))
def test_simulated_distances_obey_the_swa_bounds(settings: dict[str, Any]) -> None:
    """Fails for a noise term with the paper's 1/α², and for α in place of α² in the sharper one (tried)."""
    distances = averaged_descent(**settings)
    error = distances.std() / math.sqrt(len(distances))
    bounds = bound_settings(**settings)
    sharp, simple = theory.dp_swa_sharp_bound(**bounds), theory.dp_swa_bound(**bounds)
    assert distances.mean() <= sharp + 4 * error
    assert sharp <= simple * (1 + 1e-12)


def test_swa_bound_counts_averaged_iterates() -> None:
    """K = T/c = 25 where the paper prints T = 100, and no 1/α² at the noise."""
    settings = bound_settings(curvatures=[0.5] * 3, steps=103, every=4, rate=0.1, noise=0.2, start=3.0)
    expected = 3.0**2 / (25 * 0.1 * 0.5) ** 2 + 4 / (25 * 0.5**2) * (3 * 0.2**2 + 0.7)
    assert theory.dp_swa_bound(**settings, gradient_variance=0.7) == pytest.approx(expected, rel=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("every", [1, 8, 40])
def test_sharp_bound_is_nearly_met(every: int) -> None:
    """With one curvature and many iterates, no better bound is possible. Fails for one that is looser."""
    settings = CASES["every step"] | {"steps": 4000, "every": every, "start": 0.0}
    bound = theory.dp_swa_sharp_bound(**bound_settings(**settings))
    assert averaged_descent(**settings).mean() == pytest.approx(bound, rel=0.1)


def test_noise_as_printed_is_refuted() -> None:
    """The printed noise term, c/(T α² μ²) · d σ², promises less than happens when α > 1."""
    settings = CASES["long step"] | {"start": 0.0}
    printed = 1 / (200 * 5.0**2 * 0.1**2) * 5 * 0.2**2
    assert averaged_descent(**settings).mean() > 5 * printed


@pytest.mark.parametrize("every", [1, 2, 5, 20])
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01, 1e-9])
def test_printed_steps_hold_by_the_sharper_sum(every: int, rate: float) -> None:
    """T may stand where the paper prints T, although its proof only reaches K = T/c."""
    settings = bound_settings(curvatures=[1.0] * 4, steps=40, every=every, rate=rate, noise=0.1, start=1.0)
    with_steps = 1 / (40 * rate) ** 2 + every / 40 * 4 * 0.1**2
    assert theory.dp_swa_sharp_bound(**settings) <= with_steps * (1 + 1e-9)


def test_gradient_variance_counts_like_noise() -> None:
    settings = bound_settings(curvatures=[1.0] * 4, steps=50, every=2, rate=0.1, noise=0.5, start=0.0)
    quiet = settings | {"noise_deviation": 0.0, "gradient_variance": 4 * 0.5**2}
    for bound in (theory.dp_swa_bound, theory.dp_swa_sharp_bound):
        assert bound(**quiet) == pytest.approx(bound(**settings))


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1.01},  # the printed condition α < ‖A‖/2 would let 2.0 pass for ‖A‖ = 5
        {"learning_rate": 0.0},
        {"smallest_curvature": 2.0},
        {"smallest_curvature": 0.0},
        {"every": 51},
        {"dimension": 0},
        {"noise_deviation": -1.0},
        {"initial_distance": math.inf},
        {"gradient_variance": math.nan},
    ],
)
def test_swa_bounds_refuse_what_the_theorem_excludes(change: dict[str, Any]) -> None:
    settings = bound_settings(curvatures=[1.0], steps=50, every=2, rate=0.1, noise=0.5, start=0.0) | change
    for bound in (theory.dp_swa_bound, theory.dp_swa_sharp_bound):
        with pytest.raises(InputError):
            bound(**settings)


def test_fedsam_bound_as_printed() -> None:
    bound = theory.dp_fedsam_change_bound(learning_rate=0.02, rho=0.3, local_steps=4, smoothness=2.0)
    eta, rho, count, smooth = 0.02, 0.3, 4, 2.0
    top = 6 * eta**2 * rho**2 * count * smooth**2 * (12 * count**2 * smooth**2 * eta**2 + 10)
    assert bound == pytest.approx(top / (1 - 2 * eta**2 * smooth**2 * count), rel=1e-12)
    with pytest.raises(InputError, match="learning_rate"):
        theory.dp_fedsam_change_bound(learning_rate=0.2, rho=0.3, local_steps=4, smoothness=2.0)


def test_fedsam_bound_is_no_sensitivity() -> None:
    """One local SAM step on ½(w − z)²: replacing z moves the update by more than the printed bound says."""

    def update(z: float, rho: float, rate: float, w: float = 0.0) -> float:
        gradient = w - z
        return -rate * (w + rho * math.copysign(1, gradient) - z)

    rate, rho = 0.1, 0.05
    change = (update(z=3.0, rho=rho, rate=rate) - update(z=-3.0, rho=rho, rate=rate)) ** 2
    assert change > 10 * theory.dp_fedsam_change_bound(
        learning_rate=rate, rho=rho, local_steps=1, smoothness=1.0
    )


def test_switch_bounds() -> None:
    lower, upper = theory.sai_switch_bounds(2, 0.01, 0.1)  # ν = d
    assert lower == pytest.approx(1 / (2 * 0.01 * math.log(100)))
    assert upper == pytest.approx(0.1 / (0.01 * 2) ** 3)
    assert theory.sai_switch_bounds(10**6, 0.01, 0.1)[1] == pytest.approx(0.1 / 0.01**2)  # ν³ = 1/e
    for arguments in ((0, 0.1, 0.1), (5, 0.0, 0.1), (5, 1.0, 0.1), (5, 0.1, 1.0)):
        with pytest.raises(InputError):
            theory.sai_switch_bounds(*arguments)


def test_error_reduction_rate() -> None:
    assert theory.error_reduction_rate(0.95, 0.9) == pytest.approx(0.5)
    assert theory.error_reduction_rate(0.8, 0.9) == pytest.approx(-1.0)
    for arguments in ((95.0, 0.9), (0.9, 1.0), (math.nan, 0.5)):
        with pytest.raises(InputError):
            theory.error_reduction_rate(*arguments)


def test_imports_nothing_but_errors() -> None:
    """Theory stands beside the code: no torch, no plan, no accounting."""
    tree = ast.parse(Path(theory.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "saltflat.errors"}
