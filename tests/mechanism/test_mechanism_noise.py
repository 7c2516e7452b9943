"""Noise: on the sum, in every coordinate, in float64, from the generator that was handed in."""

from __future__ import annotations

import pytest
import torch

from saltflat.mechanism.noise import noised
from saltflat.mechanism.randomness import Randomness


def totals(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(6, dtype=dtype).view(2, 3), "bias": torch.full((2,), 5.0, dtype=dtype)}


def test_the_sum_is_noised_and_then_divided() -> None:
    """Fails when the mean is noised instead (tried)."""
    released = noised(totals(), 2.0, 8.0, torch.Generator().manual_seed(1))
    again = torch.Generator().manual_seed(1)
    for name, total in totals().items():
        noise = torch.empty(total.shape, dtype=torch.float64).normal_(0.0, 2.0, generator=again)
        assert torch.equal(released[name], ((total + noise) / 8.0).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_float64_whatever_the_weights(dtype: torch.dtype) -> None:
    """Float32 normals end at 5.77 standard deviations. Fails when they are drawn in the weights' type (tried)."""
    zeros = {"w": torch.zeros(1000, dtype=dtype)}
    released = noised(zeros, 1.0, 1.0, torch.Generator().manual_seed(1))
    drawn = torch.empty(1000, dtype=torch.float64).normal_(
        0.0, 1.0, generator=torch.Generator().manual_seed(1)
    )
    assert released["w"].dtype == dtype
    assert torch.equal(released["w"], drawn.to(dtype))


def test_no_noise_is_a_division() -> None:
    generator = torch.Generator()
    before = generator.get_state()
    assert torch.equal(noised(totals(), 0.0, 4.0, generator)["bias"], torch.full((2,), 1.25))
    assert torch.equal(generator.get_state(), before)


def test_every_run_has_randomness_of_its_own() -> None:
    one, two = Randomness.fresh(), Randomness.fresh()
    seeds = {g.initial_seed() for r in (one, two) for g in (r.sampling, r.noise)}
    assert len(seeds) == 4
    assert not one.seeded
    assert one.tier == "fast"


def test_a_seed_repeats_and_is_known_as_one() -> None:
    one, two, other = (Randomness.from_seed(seed) for seed in (5, 5, 6))
    assert one.seeded
    assert torch.equal(torch.rand(9, generator=one.noise), torch.rand(9, generator=two.noise))
    assert one.noise.initial_seed() != one.sampling.initial_seed()
    assert {one.noise.initial_seed(), one.sampling.initial_seed()}.isdisjoint(
        {other.noise.initial_seed(), other.sampling.initial_seed()}
    )


def test_the_global_generator_is_not_touched() -> None:
    """Noise that depends on ``torch.manual_seed`` would be predictable (tried)."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    noised(totals(), 1.0, 1.0, Randomness.fresh().noise)
    assert torch.equal(torch.get_rng_state(), before)
