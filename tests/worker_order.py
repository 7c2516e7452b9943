"""The order of tests for several workers: no worker is left with a long one when the others are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Test = TypeVar("Test")


def dealt(files: Sequence[tuple[int, Sequence[Test]]], workers: int) -> list[Test]:
    """Tests by files, each with the number of its slow ones, as one list that begins with slow files for every worker.

    pytest-xdist gives each worker an equal part of the list, from the front, and lets one that is done take from the
    end of another's part. So the files with slow tests are shared out over the fronts of the parts. The tests of a
    file stay together, for the sake of what they share.

    >>> dealt([(0, "abc"), (1, "XY"), (0, "def"), (1, "Z")], workers=2)
    ['X', 'Y', 'a', 'b', 'Z', 'c', 'd', 'e', 'f']
    >>> dealt([(0, "ab"), (1, "X")], workers=1)
    ['X', 'a', 'b']
    """
    fronts: list[list[Test]] = [[] for _ in range(workers)]
    weights = [0] * workers
    for slow, tests in sorted((file for file in files if file[0]), key=lambda file: -file[0]):
        lightest = weights.index(min(weights))
        weights[lightest] += slow
        fronts[lightest].extend(tests)
    rest = [test for slow, tests in files if not slow for test in tests]
    left = sum(len(tests) for _, tests in files)
    order: list[Test] = []
    for place, front in enumerate(fronts):
        size = left // (workers - place)
        left -= size
        fill = max(0, size - len(front))
        order += [*front, *rest[:fill]]
        del rest[:fill]
    return order + rest
