"""What the papers prove, as small functions: what a bound says, under which assumptions, and what it omits.

Nothing here decides about privacy. These are guides for choosing settings and for reading the papers; where
a printed formula has a slip, the docstring says what was changed and why.
"""

from __future__ import annotations

import math

from saltflat.errors import InputError, check_count, check_not_negative, check_positive, check_share


def sai_switch_bounds(dimension: int, target_error: float, failure_probability: float) -> tuple[float, float]:
    """Between which T₁/T₂, steps before over steps after the switch, SAI should lie.

    1/(d·e·log(1/e)) ≤ T₁/T₂ ≤ δ′/(e³ν³) with ν = min(d, e^(−1/3)), where e is the accuracy to which a flat
    minimum is wanted, d the number of parameters and δ′ the probability of failing (not the δ of privacy).

    Reference: Wang et al., USENIX Security 2025, Theorem 1.

    Caveat: iteration counts known up to constants are divided by one another with all constants set to one,
    for small e, near the minima and without clipping. For networks the lower end is close to zero and the
    upper end is often above one: it says that a switch should come, hardly when.

    >>> lower, upper = sai_switch_bounds(dimension=214_570, target_error=0.1, failure_probability=0.05)
    >>> f"{lower:.1e} to {upper:.1f}"
    '2.0e-05 to 5.0'
    """
    check_count("dimension", dimension)
    check_share("target_error", target_error)
    check_share("failure_probability", failure_probability)
    nu = min(float(dimension), target_error ** (-1 / 3))
    lower = 1 / (dimension * target_error * math.log(1 / target_error))
    return lower, failure_probability / (target_error * nu) ** 3


def dp_swa_bound(
    *,
    steps: int,
    every: int,
    learning_rate: float,
    smallest_curvature: float,
    largest_curvature: float,
    dimension: int,
    noise_deviation: float,
    initial_distance: float,
    gradient_variance: float = 0.0,
) -> float:
    """How far the mean of noisy iterates can be from the minimum of a quadratic: E‖θ̄ − θ*‖² is at most

        ‖θ₀ − θ*‖² / (K α μ)²  +  c/(K μ²) · (d s² + ς²),    K = ⌊T/c⌋.

    The mean is over θ_c, θ_2c, … θ_Kc with c = ``every``; α is the learning rate, d the dimension, and μ the
    smallest eigenvalue of the Hessian A. ``noise_deviation`` s is that of the noise in each coordinate of a
    release: σC/B for a plan. ``initial_distance`` is ‖θ₀ − θ*‖, and ``gradient_variance`` ς² bounds the
    variance of the sampled gradients, wherever they are taken. With a warm-up, θ₀ is the iterate at its end,
    and its distance the root mean square.

    Reference: Indri, Drucks and Gärtner 2023, Theorem 1. Corrected here:

    - T in the printed bound stands for the number of averaged iterates, K = T/c;
    - the condition 0 < α < ‖A‖/2 should read 0 < α < 1/‖A‖, so that I − αA has no negative eigenvalue and
      a partial sum of its powers is below the whole sum;
    - the proof adds the noise outside the learning rate, Algorithm 1 inside, as all training does: the factor
      1/α² of the noise then cancels;
    - the printed σ² = 2 log(1.25/δ)/ε² is for sensitivity 1 and for the ε of *each step*. The deviation is an
      argument here, so that it can come from a plan that is accounted as a whole.

    Caveat: quadratic objectives, no clipping, no momentum. `dp_swa_sharp_bound` is never larger.

    >>> round(dp_swa_bound(steps=1000, every=1, learning_rate=0.5, smallest_curvature=1, largest_curvature=1,
    ...                    dimension=10, noise_deviation=0.1, initial_distance=1), 6)
    0.000104
    """
    count, pull = _averaged(steps, every, learning_rate, smallest_curvature, largest_curvature)
    noise = _noise_energy(dimension, noise_deviation, gradient_variance)
    check_not_negative("initial_distance", initial_distance)
    return (initial_distance / (count * pull)) ** 2 + every * noise / (count * smallest_curvature**2)


def dp_swa_sharp_bound(
    *,
    steps: int,
    every: int,
    learning_rate: float,
    smallest_curvature: float,
    largest_curvature: float,
    dimension: int,
    noise_deviation: float,
    initial_distance: float,
    gradient_variance: float = 0.0,
) -> float:
    """The same as `dp_swa_bound`, with the geometric sums of its proof left as they are.

        (‖θ₀ − θ*‖/K · r^c (1 − r^(cK)) / (1 − r^c))²  +  α²(d s² + ς²)/K · (1 + r^c) / ((1 − r²)(1 − r^c))

    with r = 1 − αμ. The proof fills in the powers of I − αA between those that occur: nothing is lost for
    c = 1, up to a factor c² otherwise. In this form the bound also holds with T where the paper prints T,
    once α and the noise are corrected, because c r^c ≤ r (1 + r + … + r^(c−1)) and r^c ≤ r.

    >>> settings = dict(steps=1000, learning_rate=0.1, smallest_curvature=1, largest_curvature=1,
    ...                 dimension=10, noise_deviation=0.1, initial_distance=0)
    >>> [round(f(every=20, **settings) * 1e3, 2) for f in (dp_swa_bound, dp_swa_sharp_bound)]
    [40.0, 0.13]
    """
    count, pull = _averaged(steps, every, learning_rate, smallest_curvature, largest_curvature)
    noise = _noise_energy(dimension, noise_deviation, gradient_variance)
    check_not_negative("initial_distance", initial_distance)
    left, gone = (1 - pull) ** every, _gone(pull, every)
    start = (initial_distance / count * left * _gone(pull, every * count) / gone) ** 2
    return start + learning_rate**2 * noise / count * (1 + left) / (_gone(pull, 2) * gone)


def dp_fedsam_change_bound(*, learning_rate: float, rho: float, local_steps: int, smoothness: float) -> float:
    """The paper's bound on the expected squared change of a client's update when one of its samples changes.

    6η²ρ²KL²(12K²L²η² + 10) / (1 − 2η²L²K), for K local steps of SAM with η ≤ 1/(4KL).

    Reference: Shi et al. 2023 (DP-FedSAM), Theorem 1 and Lemma 2.

    **Not a sensitivity in the sense of differential privacy.** It is an expectation and not a maximum, for
    one sample and not for the client that is protected, before the clip. What bounds a client's influence is
    the clip norm, and nothing else. As printed it does not even bound the expected change: the proof compares
    gradients of two different samples as if they were of one, so that at ρ = 0 it promises no change at all,
    and it takes the square of a sum for the sum of the squares.

    >>> round(dp_fedsam_change_bound(learning_rate=0.01, rho=0.5, local_steps=5, smoothness=1.0), 6)
    0.00753
    """
    check_positive("learning_rate", learning_rate)
    check_count("local_steps", local_steps)
    check_positive("smoothness", smoothness)
    check_not_negative("rho", rho)
    largest = 1 / (4 * local_steps * smoothness)
    if learning_rate > largest:
        raise InputError(
            "learning_rate", learning_rate, f"at most 1/(4 · local_steps · smoothness) = {largest:g}",
            problem="is larger than the theorem allows",
        )  # fmt: skip
    squared = (learning_rate * smoothness) ** 2
    ascent = 12 * local_steps**2 * squared + 10
    return 6 * squared * rho**2 * local_steps * ascent / (1 - 2 * squared * local_steps)


def error_reduction_rate(new: float, old: float) -> float:
    """By which share of its errors a model was improved: (new − old)/(1 − old), with accuracies from 0 to 1.

    Reference: Wang et al., USENIX Security 2025. Negative where the new model is worse. Caveat: near old = 1
    a few examples make a large rate.

    >>> round(error_reduction_rate(new=0.5179, old=0.4524), 3)
    0.12
    """
    for argument, value in (("new", new), ("old", old)):
        check_share(argument, value, zero=True, one=True, cure="Accuracies are shares, not percent.")
    if old == 1:
        raise InputError("old", old, "old < 1", problem="leaves no error to reduce")
    return (new - old) / (1 - old)


def _averaged(
    steps: int, every: int, learning_rate: float, smallest: float, largest: float
) -> tuple[int, float]:
    """K, the number of iterates in the mean, and αμ, the slowest pull towards the minimum; checked."""
    check_count("steps", steps)
    check_count("every", every)
    if every > steps:
        raise InputError("every", every, f"every <= steps={steps}", problem="leaves nothing to average")
    check_positive("learning_rate", learning_rate)
    check_positive("smallest_curvature", smallest)
    check_positive("largest_curvature", largest)
    if smallest > largest:
        raise InputError(
            "smallest_curvature", smallest, f"smallest_curvature <= largest_curvature={largest:g}"
        )
    if learning_rate * largest > 1:
        raise InputError(
            "learning_rate", learning_rate, f"learning_rate <= 1/largest_curvature = {1 / largest:g}",
            problem="makes the iterates jump across the minimum",
        )  # fmt: skip
    return steps // every, learning_rate * smallest


def _gone(pull: float, steps: int) -> float:
    """1 − (1 − pull)^steps, without loss of digits where the pull is weak."""
    return 1.0 if pull == 1 else -math.expm1(steps * math.log1p(-pull))


def _noise_energy(dimension: int, noise_deviation: float, gradient_variance: float) -> float:
    """d s² + ς²: the expected squared length of everything in a release that is not the gradient."""
    check_count("dimension", dimension)
    check_not_negative("noise_deviation", noise_deviation)
    check_not_negative("gradient_variance", gradient_variance)
    return dimension * noise_deviation**2 + gradient_variance
