"""How many trials there are, and which candidate each takes: the declared laws, from a stream nobody can predict."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from scipy.stats import chi2

from saltflat.accounting.selection import Law, Repetitions
from saltflat.mechanism.repetitions import draw_candidate, draw_repetitions
from saltflat.mechanism.streams import CryptographicStream

DRAWS = 20_000
LIKELY = 20  # cells with fewer expected draws are taken together


def misfit(found: Counter[int], expected: dict[int, float]) -> tuple[float, int]:
    """Pearson's χ² with the rare cells as one, and its degrees of freedom."""
    cells = [(found[k], DRAWS * p) for k, p in expected.items() if DRAWS * p >= LIKELY]
    rest = DRAWS - sum(seen for seen, _ in cells), DRAWS - sum(likely for _, likely in cells)
    cells += [rest] if rest[1] >= LIKELY else []
    return math.fsum((seen - likely) ** 2 / likely for seen, likely in cells), len(cells) - 1


@pytest.mark.statistical
@pytest.mark.parametrize("law", ["geometric", "logarithmic", "poisson"])
def test_the_number_of_trials_follows_its_law(law: Law) -> None:
    """χ² at 1e-6. A mean that is 10 % off is found with a chance above 0.999: its non-centrality, DRAWS times the
    distance of the laws, is above 90 for each of them (checked below).
    """
    repetitions, stream = Repetitions(6.0, law), CryptographicStream.fresh()
    expected = {count: repetitions.probability(count) for count in range(200)}
    found = Counter(draw_repetitions(repetitions, stream) for _ in range(DRAWS))
    distance, freedom = misfit(found, expected)
    assert distance < chi2.isf(1e-6, freedom)
    other = {count: Repetitions(6.6, law).probability(count) for count in range(200)}
    shifted = Counter({count: round(DRAWS * chance) for count, chance in other.items()})
    assert misfit(shifted, expected)[0] > 90


@pytest.mark.statistical
@pytest.mark.parametrize("candidates", [1, 2, 7])
def test_candidates_are_equally_likely(candidates: int) -> None:
    """χ² at 1e-6. One candidate of seven that comes a tenth too often has a non-centrality above 30."""
    stream = CryptographicStream.fresh()
    found = Counter(draw_candidate(candidates, stream) for _ in range(DRAWS))
    assert set(found) <= set(range(candidates))
    distance, freedom = misfit(found, dict.fromkeys(range(candidates), 1 / candidates))
    assert freedom == 0 or distance < chi2.isf(1e-6, freedom)


def test_two_streams_differ_and_a_seed_repeats() -> None:
    many = Repetitions(1000.0, "geometric")
    assert len({draw_repetitions(many, CryptographicStream.fresh()) for _ in range(20)}) > 5
    twice = [draw_repetitions(many, CryptographicStream.from_seed(1, "tuning")) for _ in range(2)]
    assert twice[0] == twice[1]


def test_once_means_once() -> None:
    stream = CryptographicStream.fresh()
    assert {draw_repetitions(Repetitions(1.0, "geometric"), stream) for _ in range(50)} == {1}
    assert {draw_repetitions(Repetitions(1.0, "logarithmic"), stream) for _ in range(50)} == {1}
