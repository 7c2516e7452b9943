"""How many trials there are, and which candidate each takes: drawn from a cryptographic stream, and kept secret."""

from __future__ import annotations

from saltflat.accounting.selection import Repetitions
from saltflat.mechanism.streams import CryptographicStream

# Beyond this the law's remaining mass is below what 64 bits can tell.
NEGLIGIBLE = 2.0**-70


def draw_repetitions(repetitions: Repetitions, stream: CryptographicStream) -> int:
    """A number of trials by the declared law, from 64 random bits: each probability is met to 2⁻⁵³.

    Guarantees: independent of the data. The number must not leave: the cost of a selection is computed for
    someone who does not know it.

    >>> draw_repetitions(Repetitions(1.0), CryptographicStream.fresh())
    1
    """
    drawn, count, below = stream.word() / 2**64, 0, repetitions.probability(0)
    while drawn >= below:
        count += 1
        more = repetitions.probability(count)
        below += more
        if count > repetitions.mean and more < NEGLIGIBLE:
            break
    return count


def draw_candidate(candidates: int, stream: CryptographicStream) -> int:
    """One of the candidates, all equally likely: words beyond the last whole multiple are thrown back.

    >>> draw_candidate(1, CryptographicStream.fresh())
    0
    """
    whole = 2**64 - 2**64 % candidates
    while (word := stream.word()) >= whole:
        pass
    return word % candidates
