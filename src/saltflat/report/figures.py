"""Figures as inline SVG: curves, bars and dots that read in light, in dark, in print and by ear.

Colours are CSS variables of the page, so one picture serves light and dark. Every figure has an accessible name
that says what it shows, and its numbers as a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from saltflat.record.markup import table, text

WIDTH, HEIGHT = 440, 272
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 26, 40
STYLES = 8
FINEST = 1e-9
"""Two values that differ by less than this share of them are drawn as one."""
DEEPEST = 1e-7
"""How far below the highest value a logarithmic axis reaches: what is less is drawn at its foot."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line: its name, its points, and the lowest and highest value beside each point where there are several."""

    name: str
    points: Sequence[Point]
    band: Sequence[Point] = ()
    style: int = 0


@dataclass(frozen=True)
class Chart:
    """Lines over two axes. ``marks`` are vertical lines with a word; ``name`` is what a listener is told."""

    name: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[tuple[float, str]] = ()
    percent: bool = False
    log_y: bool = False
    whole_x: bool = False
    note: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Axis:
    """From values to places on the page."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most so many.

    >>> ticks(0.0, 1.0, 6)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not math.isfinite(high - low) or not high - low > FINEST * max(abs(low), abs(high)):
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next(
        factor for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (step * factor) <= most - 0.999
    )
    first = math.ceil(low / step - 1e-9)
    found: list[float] = []
    while (value := first * step) <= high + step * 1e-9 and len(found) <= most + 1:
        found.append(float(f"{value:.12g}") + 0.0)  # never −0
        first += 1
    return found


MOST_TICKS = 6


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range, or round numbers where there are none."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / MOST_TICKS))
    found = [10.0**power for power in range(first, last + 1, every)]
    return found if len(found) > 1 else [value for value in ticks(low, high, MOST_TICKS) if value > 0]


def number(value: float, digits: int = 4) -> str:
    """A number as short as it can be read.

    >>> number(0.00012345), number(1234567.0), number(float("inf"))
    ('0.0001234', '1.235e+06', 'infinite')
    """
    if value != value:
        return "–"
    shown = f"{value:.{digits}g}".replace("inf", "infinite")
    return shown.replace("-", "−")


def claimed(value: float) -> str:
    """An ε or δ that is stated as spent: rounded up, so that it is never less than what was computed.

    >>> claimed(1.00004), claimed(2.9999), claimed(0.5), claimed(float("inf"))
    ('1.001', '3', '0.5', 'infinite')
    """
    if not 0 < value < math.inf:
        return number(value)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)  # the fourth digit, as `number` shows it
    return number(math.ceil(value / unit * (1 - 1e-9)) * unit)


def share(value: float, digits: int = 1) -> str:
    """A share in percent, with a space that does not break."""
    return "–" if value != value else f"{100 * value:.{digits}f} %"


def _finite(series: Series) -> Series:
    """The points that can be drawn, each with its band."""
    bands = series.band or [(math.nan, math.nan)] * len(series.points)
    pairs = [(p, b) for p, b in zip(series.points, bands) if all(map(math.isfinite, p))]
    whole = all(math.isfinite(end) for _, band in pairs for end in band)
    return Series(series.name, [p for p, _ in pairs], [b for _, b in pairs] if whole else [], series.style)


def line_chart(chart: Chart) -> str:
    """The chart as a figure; a sentence where there is nothing to draw."""
    drawn = [_finite(s) for s in chart.series]
    drawn = [s for s in drawn if s.points and (not chart.log_y or any(y > 0 for _, y in s.points))]
    if not drawn:
        return undrawn(chart.name)
    if chart.log_y:
        drawn = [Series(s.name, [p for p in s.points if p[1] > 0], (), s.style) for s in drawn]
    xs, ys = _extents(chart, drawn)
    across = Axis(*xs, LEFT, WIDTH - RIGHT)
    up = Axis(*ys, HEIGHT - BOTTOM, TOP, chart.log_y)
    shown = share_tick if chart.percent else tick
    parts = [*_frame(across, up, chart, shown)]
    for x, word in chart.marks:
        if xs[0] <= x <= xs[1]:
            parts.append(_mark(across(x), word))
    for series in drawn:
        parts += _line(series, across, up)
    names = legend([(s.name, s.style) for s in drawn])
    return as_figure(chart.name, svg(chart.name, parts), names, chart.note, chart.head, chart.rows)


def undrawn(name: str) -> str:
    """What stands in the place of a figure without numbers."""
    return f'<p class="note">{text(name)}: there is no number that could be drawn.</p>'


def _extents(chart: Chart, drawn: Sequence[Series]) -> tuple[tuple[float, float], tuple[float, float]]:
    xs = [x for s in drawn for x, _ in s.points]
    ys = [y for s in drawn for _, y in s.points] + [y for s in drawn for pair in s.band for y in pair]
    low, high = min(ys), max(ys)
    if chart.log_y:
        low = max(low, high * DEEPEST)
        return apart(min(xs), max(xs)), (low / 1.3, high * 1.3) if low < high else (low / 10, high * 10)
    if chart.percent:
        # whole steps of ten percent around the data, so that curves are neither flattened nor blown up
        low, high = math.floor(10 * low) / 10, min(1.0, math.ceil(10 * high) / 10)
    elif 0 <= low < 0.5 * high:
        low = 0.0
    else:
        low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    if chart.whole_x:
        return apart(min(xs), max(xs)), apart(low, high)
    start = 0.0 if 0 <= min(xs) < 0.5 * max(xs) else min(xs)
    return _to_tick(*apart(start, max(xs))), apart(low, high)


def _to_tick(low: float, high: float) -> tuple[float, float]:
    """A range that ends at a round number, if one is just beyond its end."""
    beyond = [value for value in ticks(low, high + 0.04 * (high - low), 7) if value > high]
    return low, beyond[0] if beyond else high


def apart(low: float, high: float) -> tuple[float, float]:
    """A range that an axis can show: one that is no wider than rounding is widened."""
    if high - low > FINEST * max(abs(low), abs(high)):
        return low, high
    return low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)


def tick(value: float) -> str:
    """A number beside an axis."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, _, power = f"{value:.1e}".partition("e")
        mantissa = mantissa.removesuffix(".0").replace("-", "−")
        return f"{mantissa}e{int(power)}".replace("e-", "e−")
    return f"{value:.10g}".replace("-", "−")


def share_tick(value: float) -> str:
    """A share beside an axis."""
    return f"{100 * value:.10g}"


def _frame(across: Axis, up: Axis, chart: Chart, shown: Callable[[float], str]) -> Iterator[str]:
    for value in log_ticks(up.low, up.high) if up.log else ticks(up.low, up.high):
        y = up(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(shown(value))}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>'
    for value in ticks(across.low, across.high, 7):
        if chart.whole_x and value != round(value):
            continue
        x = across(value)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{text(tick(value))}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{text(chart.x_label)}</text>'
    yield f'<text class="label" x="2" y="13">{text(chart.y_label)}</text>'


def _mark(x: float, word: str) -> str:
    """A vertical line, with its word on the side where there is room."""
    right = x < (LEFT + WIDTH) / 2
    at, anchor = (x + 4, "start") if right else (x - 4, "end")
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="small" x="{at:.1f}" y="{HEIGHT - BOTTOM - 6}" text-anchor="{anchor}">{text(word)}</text>'
    )


def _line(series: Series, across: Axis, up: Axis) -> Iterator[str]:
    style = f"s{series.style % STYLES}"
    if series.band:
        xs = [across(x) for x, _ in series.points]
        lower = [f"{x:.1f},{up(low):.1f}" for x, (low, _) in zip(xs, series.band)]
        upper = [f"{x:.1f},{up(high):.1f}" for x, (_, high) in zip(xs, series.band)]
        yield f'<polygon class="band {style}" points="{" ".join(lower + upper[::-1])}"/>'
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in series.points)
    if len(series.points) > 1:
        yield f'<polyline class="line {style}" points="{path}"/>'
    if len(series.points) <= 40:
        for x, y in series.points:
            yield marker(across(x), up(y), series.style)


def marker(x: float, y: float, style: int, size: float = 2.6) -> str:
    """A point. Its form differs with the series as well as its colour."""
    name = f"s{style % STYLES}"
    form = style % 4
    if form == 0:
        return f'<circle class="dot {name}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    if form == 1:
        corner, side = f'x="{x - size:.1f}" y="{y - size:.1f}"', 2 * size
        return f'<rect class="dot {name}" {corner} width="{side}" height="{side}"/>'
    reach = size * 1.35
    corners = {2: ((0, -1), (1, 0), (0, 1), (-1, 0)), 3: ((0, -1), (0.95, 0.75), (-0.95, 0.75))}[form]
    points = " ".join(f"{x + a * reach:.1f},{y + b * reach:.1f}" for a, b in corners)
    return f'<polygon class="dot {name}" points="{points}"/>'


def legend(entries: Sequence[tuple[str, int]], *, areas: bool = False) -> str:
    """Names with the line and point, or the area, that stand for them; nothing where there is but one."""
    if len(entries) < 2:
        return ""
    items = []
    for name, style in entries:
        line = f'<line class="line s{style % STYLES}" x1="1" x2="25" y1="5" y2="5"/>{marker(13, 5, style)}'
        area = f'<rect class="bar s{style % STYLES}" x="8" y="0" width="14" height="10"/>'
        shown = area if areas else line
        key = f'<svg class="key" viewBox="0 0 26 10" aria-hidden="true">{shown}</svg>'
        items.append(f"<li>{key}{text(name)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def svg(name: str, parts: Sequence[str], *, height: float = HEIGHT, width: float = WIDTH) -> str:
    """An inline picture with its accessible name."""
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{text(name)}">'
        f"<title>{text(name)}</title>{''.join(parts)}</svg>"
    )


def as_figure(
    name: str,
    picture: str,
    key: str = "",
    note: str = "",
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """A picture with its title, its legend, a remark, and its numbers as a table."""
    words = f'<p class="note">{text(note)}</p>' if note else ""
    return f"<figure><figcaption>{text(name)}</figcaption>{picture}{key}{words}{numbers(head, rows)}</figure>"


def numbers(head: Sequence[str], rows: Sequence[Sequence[str]], what: str = "The numbers as a table") -> str:
    """The numbers of a picture, folded away."""
    if not rows:
        return ""
    return f"<details><summary>{text(what)}</summary>{scrolled(table(head, rows), what)}</details>"


def scrolled(content: str, name: str) -> str:
    """Something wide that scrolls by itself, so that the page never does."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{text(name)}">{content}</div>'
