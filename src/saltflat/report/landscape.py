"""The loss around the trained weights as a map: shades for the loss, and lines of equal loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from saltflat.record.markup import text
from saltflat.report.figures import Axis, as_figure, number, svg, tick, ticks, undrawn

SIDE = 300
LEFT, TOP, KEY = 56, 28, 52
LEVELS = 10

Grid = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Scale:
    """The bounds between shades, and whether they grow by a factor: losses far out are often much larger."""

    low: float
    high: float
    levels: tuple[float, ...]
    grown: bool


def levels_of(values: Sequence[float], count: int = LEVELS) -> Scale:
    """The shades for these losses.

    >>> levels_of([0.0, 4.0], 4).levels, levels_of([1.0, 16.0], 4).levels
    ((1.0, 2.0, 3.0), (2.0, 4.0, 8.0))
    """
    low, high = min(values), max(values)
    if low > 0 and high > 10 * low:
        factor = (high / low) ** (1 / count)
        return Scale(low, high, tuple(low * factor**place for place in range(1, count)), True)
    return Scale(low, high, tuple(low + (high - low) * place / count for place in range(1, count)), False)


def landscape(
    name: str, alpha: Sequence[float], beta: Sequence[float], loss: Grid, scale: Scale, note: str
) -> str:
    """A figure of ``loss[i][j]`` at ``alpha[i]``, ``beta[j]``; values that are no numbers are left blank."""
    found = [value for row in loss for value in row if math.isfinite(value)]
    if not found or len(alpha) < 2 or len(beta) < 2:
        return undrawn(name)
    across = Axis(min(alpha), max(alpha), LEFT, LEFT + SIDE)
    up = Axis(min(beta), max(beta), TOP + SIDE, TOP)
    parts = [*_cells(alpha, beta, loss, scale.levels, across, up)]
    for level in scale.levels if scale.high > scale.low else ():
        path = "".join(
            f"M{across(a[0]):.1f} {up(a[1]):.1f}L{across(b[0]):.1f} {up(b[1]):.1f}"
            for a, b in contour(alpha, beta, loss, level)
        )
        if path:
            parts.append(f'<path class="contour" d="{path}"/>')
    parts += [*_frame(across, up), *_key(scale)]
    picture = svg(name, parts, width=LEFT + SIDE + KEY + 62, height=TOP + SIDE + 42)
    words = f"{note} Each shade is the same {'factor' if scale.grown else 'step'} of loss.".strip()
    return as_figure(name, picture, "", words, *_numbers(alpha, beta, loss))


def _numbers(
    alpha: Sequence[float], beta: Sequence[float], loss: Grid
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """The map as a table; a large one in a few numbers, the two lines through the middle."""
    if len(alpha) <= 13 and len(beta) <= 31:
        rows: list[Sequence[str]] = [
            (tick(b), *(number(row[place], 3) for row in loss)) for place, b in reversed([*enumerate(beta)])
        ]
        return ("β \\ α", *(tick(round(a, 6)) for a in alpha)), rows
    i, j = len(alpha) // 2, len(beta) // 2
    places = [(k, j) for k in range(len(alpha))] + [(i, k) for k in range(len(beta))]
    return ("where", "loss"), [
        (f"α = {tick(round(alpha[k], 6))}, β = {tick(round(beta[m], 6))}", number(loss[k][m]))
        for k, m in places
    ]


def _edges(places: Sequence[float]) -> list[float]:
    """The borders of the cells around the places; the outer ones end at the map's border."""
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    return [places[0], *middles, places[-1]]


def _cells(
    alpha: Sequence[float], beta: Sequence[float], loss: Grid, levels: Sequence[float], across: Axis, up: Axis
) -> Iterator[str]:
    """One rectangle for each stretch of equal shade in a row of the map."""
    xs, ys = _edges(alpha), _edges(beta)
    for j in range(len(beta)):
        shades = [sum(row[j] > level for level in levels) if math.isfinite(row[j]) else None for row in loss]
        start = 0
        for i in range(1, len(alpha) + 1):
            if i < len(alpha) and shades[i] == shades[start]:
                continue
            shade = shades[start]
            if shade is not None:
                x, wide = across(xs[start]), across(xs[i]) - across(xs[start])
                y, tall = sorted((up(ys[j]), up(ys[j + 1])))
                yield (
                    f'<rect class="heat" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall - y:.1f}" '
                    f'fill-opacity="{_ink(shade):.2f}"/>'
                )
            start = i


def _ink(shade: int) -> float:
    return 0.04 + 0.9 * shade / (LEVELS - 1)


def contour(
    alpha: Sequence[float], beta: Sequence[float], loss: Grid, level: float
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """The pieces of the line where the loss is ``level``, cell by cell, by marching squares.

    >>> list(contour([0.0, 1.0], [0.0, 1.0], [[0.0, 0.0], [2.0, 2.0]], 1.0))
    [((0.5, 0.0), (0.5, 1.0))]
    """
    for i in range(len(alpha) - 1):
        for j in range(len(beta) - 1):
            corners = [
                (alpha[i], beta[j], loss[i][j]), (alpha[i + 1], beta[j], loss[i + 1][j]),
                (alpha[i + 1], beta[j + 1], loss[i + 1][j + 1]), (alpha[i], beta[j + 1], loss[i][j + 1]),
            ]  # fmt: skip
            if not all(math.isfinite(value) for *_, value in corners):
                continue
            crossed = []
            for (xa, ya, a), (xb, yb, b) in zip(corners, corners[1:] + corners[:1]):
                if (a > level) != (b > level):
                    part = (level - a) / (b - a)
                    crossed.append((xa + part * (xb - xa), ya + part * (yb - ya)))
            yield from zip(crossed[::2], crossed[1::2])


def _frame(across: Axis, up: Axis) -> Iterator[str]:
    yield f'<rect class="box" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>'
    for value in ticks(across.low, across.high, 6):
        yield f'<text x="{across(value):.1f}" y="{TOP + SIDE + 17}" text-anchor="middle">{text(tick(value))}</text>'
    for value in ticks(up.low, up.high, 6):
        yield f'<text x="{LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{text(tick(value))}</text>'
    middle = f'x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 36}" text-anchor="middle"'
    yield f'<text class="label" {middle}>first direction, α</text>'
    yield '<text class="label" x="2" y="13">second direction, β</text>'
    if across.low <= 0 <= across.high and up.low <= 0 <= up.high:
        x, y = across(0), up(0)
        yield f'<path class="here" d="M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10"/>'


def _key(scale: Scale) -> Iterator[str]:
    x, tall = LEFT + SIDE + 22, SIDE / LEVELS
    for shade in range(LEVELS):
        y = TOP + SIDE - tall * (shade + 1)
        box = f'x="{x}" y="{y:.1f}" width="16" height="{tall:.1f}"'
        yield f'<rect class="heat" {box} fill-opacity="{_ink(shade):.2f}"/>'
    yield f'<rect class="box" x="{x}" y="{TOP}" width="16" height="{SIDE}"/>'
    bounds = [scale.low, *scale.levels, scale.high]
    for place in (0, 2, 4, 6, 8, 10):
        y = TOP + SIDE - tall * place
        yield f'<text class="small" x="{x + 21}" y="{y + 4:.1f}">{text(number(bounds[place], 2))}</text>'
    yield f'<text class="label" x="{x}" y="13">loss</text>'
