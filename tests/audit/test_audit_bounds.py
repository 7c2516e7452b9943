"""Lower bounds on ε hold: they never exceed what is true, and reach what the trials allow."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from saltflat.audit.bounds import (
    chance_of_guesses,
    gaussian_epsilon,
    one_run_bound,
    share_at_least,
    share_at_most,
    two_worlds_bound,
)
from saltflat.audit.noise_law import noise_faults
from saltflat.audit.sampler_law import sampler_faults
from saltflat.audit.two_worlds import strongest_bound
from saltflat.plan import Poisson, TruncatedPoisson


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_clopper_and_pearson_cover() -> None:
    """Over all outcomes, the bound is wrong with at most the level."""
    trials, level = 60, 0.05
    for share in (0.01, 0.3, 0.9):
        chances = stats.binom.pmf(range(trials + 1), trials, share)
        wrong = sum(c for k, c in enumerate(chances) if share_at_least(k, trials, level) > share)
        assert wrong <= level
        wrong = sum(c for k, c in enumerate(chances) if share_at_most(k, trials, level) < share)
        assert wrong <= level


def test_the_formula_of_the_gaussian() -> None:
    """Against a sum over a fine grid."""
    for sigma in (0.7, 2.0):
        found = gaussian_epsilon(sigma, 1e-5)
        x = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
        step = float(x[1] - x[0])
        one = torch.exp(-((x - 1) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        two = torch.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        assert float((one - math.exp(found) * two).clamp(min=0).sum()) * step == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_two_worlds_never_show_more_than_there_is(sigma: float) -> None:
    """200 audits of a true Gaussian at 95 %: at most 5 % may exceed, and with shared levels hardly any do."""
    true, draws = gaussian_epsilon(sigma, 1e-5), generator()
    above = 0
    for _ in range(200):
        without = sigma * torch.randn(500, generator=draws)
        with_it = 1 + sigma * torch.randn(500, generator=draws)
        above += strongest_bound(without, with_it, sigma, 1e-5, 0.05) > true
    assert above <= 4
    no_noise = strongest_bound(torch.zeros(500), torch.ones(500), sigma, 1e-5, 0.05)
    assert no_noise == strongest_bound(torch.full((500,), -1e9), torch.full((500,), 1e9), sigma, 1e-5, 0.05)
    assert no_noise > 3.5


def test_two_worlds_bound_by_hand() -> None:
    assert two_worlds_bound(0, 0, 100, 1e-5, 0.05) == 0.0
    likely, unlikely = share_at_least(90, 100, 0.025), share_at_most(10, 100, 0.025)
    assert two_worlds_bound(90, 10, 100, 1e-5, 0.05) == pytest.approx(math.log((likely - 1e-5) / unlikely))


def test_one_run_never_shows_more_than_there_is() -> None:
    """Randomised response of known ε, 300 runs of 200 canaries."""
    torch.manual_seed(1)
    for epsilon in (0.5, 2.0):
        share = 1 / (1 + math.exp(-epsilon))
        rights = torch.distributions.Binomial(200, torch.tensor(share)).sample((300,))
        counts = {int(right): int((rights == right).sum()) for right in rights.unique()}
        above = sum(n for right, n in counts.items() if one_run_bound(200, 200, right, 0.0, 0.05) > epsilon)
        assert above <= 0.05 * 300 + 6 * math.sqrt(300 * 0.05)


def test_one_run_by_the_numbers_of_its_paper() -> None:
    """All right of m: ε grows as log m; δ takes from it; the chance falls in the number of right guesses."""
    exact = [one_run_bound(m, m, m, 0.0, 0.05) for m in (10, 100, 1000)]
    for m, found in zip((10, 100, 1000), exact):
        share = 0.05 ** (1 / m)
        assert found == pytest.approx(math.log(share / (1 - share)), rel=1e-6)
    assert one_run_bound(1000, 1000, 1000, 1e-3, 0.05) < exact[2] - 1
    assert one_run_bound(100, 100, 50, 1e-5, 0.05) == one_run_bound(100, 100, 0, 1e-5, 0.05) == 0.0
    chances = [chance_of_guesses(50, 50, right, 1.0, 1e-5) for right in range(20, 51, 5)]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.statistical
def test_sound_noise_and_sampling_are_not_accused() -> None:
    """100 times each, of fixed seeds: small tensors, few steps, one coordinate; caps that bind."""
    draws = generator(2)
    for steps, sizes in ((24, {"a": 40, "b": 3}), (4, {"a": 1}), (24, {"a": 1}), (8, {"a": 3000, "b": 1000})):
        for _ in range(25):
            noise = torch.randn(steps, sum(sizes.values()), dtype=torch.float64, generator=draws)
            assert noise_faults(noise, sizes) == []
    for sampling in (Poisson(500, 5), Poisson(500, 50), Poisson(500, 400), Poisson(500, 500)):
        for _ in range(10):
            joined = torch.rand(200, 500, generator=draws) < sampling.rate
            assert sampler_faults(joined, sampling) == []
    from saltflat.mechanism.sampling import draw

    for sampling in (TruncatedPoisson(500, 50), TruncatedPoisson(500, 50, 50)):
        joined = torch.zeros(200, 500, dtype=torch.bool)
        for step in joined:
            step[draw(sampling, 500, draws)] = True
        assert sampler_faults(joined, sampling) == []
