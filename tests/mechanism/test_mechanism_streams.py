"""The cryptographic stream: laws of its numbers, and no number twice. Seeds are fixed, so nothing fails by chance."""

from __future__ import annotations

import math
import os

import pytest
import torch
from scipy import stats
from torch import Tensor

from saltflat.errors import InputError
from saltflat.mechanism.noise import noised
from saltflat.mechanism.randomness import TIERS, Randomness
from saltflat.mechanism.sampling import draw
from saltflat.mechanism.streams import WORDS_AT_ONCE, CryptographicStream
from saltflat.plan import Poisson, TruncatedPoisson


def stream(seed: int = 0) -> CryptographicStream:
    return CryptographicStream.from_seed(seed, "tests")


def test_a_stream_never_repeats_itself() -> None:
    """Neither within a draw, nor between draws, seeds or purposes. Fails when the key is kept (tried)."""
    one = stream()
    parts = [one.words(WORDS_AT_ONCE + 5), one.words(1000), stream(1).words(1000)]
    parts.append(CryptographicStream.from_seed(0, "other").words(1000))
    parts.append(CryptographicStream.fresh().words(1000))
    words = torch.cat(parts)
    assert len(words.unique()) == len(words)  # 64 bits: a collision has a chance of 2e-9


def test_the_first_words_do_not_depend_on_how_many_are_asked_for() -> None:
    """One row more must leave the draws of the others, and all later draws, as they were."""
    one, two = stream(), stream()
    assert torch.equal(one.words(50), two.words(51)[:50])
    assert torch.equal(one.words(9), two.words(9))


def test_the_state_can_be_put_back() -> None:
    one = stream()
    state = one.get_state()
    drawn = one.normals(7)
    one.set_state(state)
    assert torch.equal(one.normals(7), drawn)


@pytest.mark.statistical
def test_every_bit_is_fair_and_on_its_own() -> None:
    """64 bits over 200,000 words: each is set half of the time, and no two agree more often, within 6 errors.

    Power: a bit that is set with 0.51 is 9 errors off.
    """
    words = stream().words(200_000)
    bits = torch.stack([(words >> place) & 1 for place in range(64)]).double() * 2 - 1
    together = bits @ bits.mT / len(words)
    assert float((together - torch.eye(64, dtype=torch.float64)).abs().max()) < 6 / math.sqrt(len(words))
    assert float(bits.mean(1).abs().max()) < 6 / math.sqrt(len(words))


@pytest.mark.statistical
def test_decisions_have_the_probability() -> None:
    """Within 6 errors of 400,000; never above it. Fails when signed words are compared as they are (tried)."""
    for probability in (1e-3, 0.034133333333333335, 0.5, 0.9):
        share = float(stream().chosen(400_000, probability).double().mean())
        assert abs(share - probability) < 6 * math.sqrt(probability * (1 - probability) / 400_000)
    assert bool(stream().chosen(1000, 1.0).all())
    assert not bool(stream().chosen(1000, 2.0**-70).any())


@pytest.mark.statistical
def test_normals_are_normal() -> None:
    """400,000 of them: mean, variance, shape and neighbours.

    Power: the variance is known to 0.22 %, and 2 % of σ is 18 errors off; Kolmogorov and Smirnov's distance
    at level 1e-6 is 0.0042: normals cut off at 2.5 σ are 0.006 off. Fails when the
    cosine is used twice, and when the logarithm is halved (tried).
    """
    drawn = stream().normals(400_000)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(drawn))
    assert low < float(drawn.square().sum()) < high
    assert abs(float(drawn.mean())) < 6 / math.sqrt(len(drawn))
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-6
    assert abs(float((drawn**4).mean()) - 3) < 6 * math.sqrt(96 / len(drawn))
    half = len(drawn) // 2
    for a, b in (
        (drawn[:-1], drawn[1:]),
        (drawn[:half], drawn[half:]),
        (drawn[:half] ** 2, drawn[half:] ** 2),
    ):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 6 / math.sqrt(len(a))
    assert len(stream().normals(7)) == 7


def test_noise_from_a_stream_is_added_to_the_sum() -> None:
    """Fails when the mean is noised instead (tried)."""
    total = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.float64)}
    release, again = noised(total, 2.0, 8.0, stream()), stream()
    for name, value in total.items():
        noise = again.normals(value.numel()).view(value.shape) * 2.0
        assert torch.equal(release[name], ((value + noise) / 8.0).to(value.dtype))


@pytest.mark.statistical
def test_batches_from_a_stream_are_binomial_and_capped_fairly() -> None:
    """Variance by χ² at 1e-6 over 1500 batches. Fails when the surplus is cut from the end (tried)."""
    source, sizes = stream(), []
    for _ in range(1500):
        batch = draw(Poisson(1000, 100), 1000, source)
        assert torch.equal(batch, batch.unique())
        sizes.append(len(batch))
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(sizes))
    assert low < sum((size - 100) ** 2 for size in sizes) / 90 < high
    seen = torch.zeros(200)
    for _ in range(1500):
        batch = draw(TruncatedPoisson(200, 50, 50), 200, source)
        assert len(batch) <= 50
        seen[batch] += 1
    first, last = float(seen[:100].sum()), float(seen[100:].sum())
    assert abs(first - last) / math.sqrt(first + last) < 6


# --- no randomness twice ------------------------------------------------------------------------------


def some_of(randomness: Randomness) -> list[Tensor]:
    """The first noise, and the first batch."""
    zeros = {"w": torch.zeros(500, dtype=torch.float64)}
    noise = noised(zeros, 1.0, 1.0, randomness.noise)["w"]
    return [noise, draw(Poisson(64, 32), 64, randomness.sampling).double()]


@pytest.mark.parametrize("tier", TIERS)
def test_every_run_draws_anew(tier: str) -> None:
    """Also after the global generator was seeded. Fails when the key or seed is a constant (tried)."""
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(some_of(Randomness.fresh(tier=tier)))
    for i, (noise, batch) in enumerate(found):
        for other, other_batch in found[:i]:
            assert abs(float(torch.corrcoef(torch.stack([noise, other]))[0, 1])) < 7 / math.sqrt(500)
            assert not torch.equal(batch, other_batch)
    assert [Randomness.fresh(tier=tier).tier, Randomness.from_seed(1, tier=tier).tier] == [tier, tier]


@pytest.mark.parametrize("tier", TIERS)
def test_a_seed_repeats(tier: str) -> None:
    one, two = Randomness.from_seed(5, tier=tier), Randomness.from_seed(5, tier=tier)
    assert all(torch.equal(a, b) for a, b in zip(some_of(one), some_of(two)))
    other = Randomness.from_seed(6, tier=tier)
    assert not torch.equal(some_of(one)[0], some_of(other)[0])
    assert one.seeded


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("tier", TIERS)
def test_a_forked_process_draws_other_noise(tier: str) -> None:
    """Parent and child, from the same source. Fails without the renewal after a fork (tried)."""
    randomness = Randomness.fresh(tier=tier)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, some_of(randomness)[0].numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = torch.frombuffer(bytearray(os.read(read, 500 * 8)), dtype=torch.float64)
    os.close(read), os.close(write)
    ours = some_of(randomness)[0]
    assert len(theirs) == 500
    assert abs(float(torch.corrcoef(torch.stack([ours, theirs]))[0, 1])) < 7 / math.sqrt(500)


def test_an_unknown_tier_is_refused() -> None:
    for make in (Randomness.fresh, lambda tier: Randomness.from_seed(1, tier=tier)):
        with pytest.raises(InputError, match="randomness='secur' is not a tier") as error:
            make(tier="secur")
        assert "Did you mean 'secure'?" in str(error.value)
