"""Charts of rows: bars, points and intervals on one axis, and shares of a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from saltflat.record.markup import text
from saltflat.report.figures import (
    RIGHT,
    STYLES,
    WIDTH,
    Axis,
    apart,
    as_figure,
    legend,
    marker,
    share,
    share_tick,
    svg,
    tick,
    ticks,
    undrawn,
)


@dataclass(frozen=True)
class Bar:
    """One row of a chart of rows: a bar, single points, and an interval, all on one axis."""

    name: str
    length: float | None = None
    points: Sequence[float] = ()
    mean: float | None = None
    deviation: float | None = None
    ticks: Sequence[tuple[float, str]] = ()
    style: int = 0

    def values(self) -> Iterator[float]:
        """All that is to be seen."""
        yield from (value for value in (self.length, self.mean) if value is not None)
        yield from (*self.points, *(at for at, _ in self.ticks))
        if self.mean is not None and self.deviation is not None:
            yield from (self.mean - self.deviation, self.mean + self.deviation)


def row_chart(
    name: str,
    bars: Sequence[Bar],
    x_label: str,
    *,
    percent: bool = False,
    note: str = "",
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """Rows one above the other, each with its name over it: accuracies of methods, or bounds of attacks.

    Shares in ``percent`` are drawn around the values, everything else from zero.
    """
    values = [value for bar in bars for value in bar.values() if math.isfinite(value)]
    if not values:
        return undrawn(name)
    if percent:
        room = max(0.01, 0.1 * (max(values) - min(values)))
        low, high = max(0.0, min(values) - room), min(1.0, max(values) + room)
    else:
        low, high = 0.0, max(values) * 1.04
    across = Axis(*apart(low, high), 12, WIDTH - RIGHT)
    tall = 40
    bottom = 8 + tall * len(bars)
    shown = share_tick if percent else tick
    parts = []
    for value in ticks(across.low, across.high, 7):
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text(shown(value))}</text>')
    middle = (12 + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{bottom + 33}" text-anchor="middle">{text(x_label)}</text>'
    )
    for place, bar in enumerate(bars):
        parts += _row(bar, across, 8 + tall * place)
    return as_figure(name, svg(name, parts, height=bottom + 40), "", note, head, rows)


def _row(bar: Bar, across: Axis, top: float) -> Iterator[str]:
    style = f"s{bar.style % STYLES}"
    y = top + 25
    yield f'<text class="name" x="{across.start + 4}" y="{top + 13}">{text(clipped(bar.name, 54))}</text>'
    if bar.length is not None and math.isfinite(bar.length):
        wide = max(0.0, across(bar.length) - across.start)
        yield f'<rect class="bar {style}" x="{across.start}" y="{y - 6}" width="{wide:.1f}" height="12"/>'
    if bar.mean is not None and math.isfinite(bar.mean):
        x = across(bar.mean)
        if bar.deviation is not None:
            start, end = across(max(across.low, bar.mean - bar.deviation)), across(bar.mean + bar.deviation)
            yield f'<line class="line solid {style}" x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>'
        yield f'<line class="line solid {style}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{y + 8}"/>'
    for value in bar.points:
        if math.isfinite(value):
            yield marker(across(value), y, bar.style, 3.2)
    for value, kind in bar.ticks:
        if math.isfinite(value):
            x = across(value)
            yield f'<line class="tick {kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 9}" y2="{y + 9}"/>'


def stacked_bar(name: str, parts: Sequence[tuple[str, float]]) -> str:
    """Shares of a whole as one bar, with a legend."""
    total = math.fsum(value for _, value in parts)
    if not total or not math.isfinite(total):
        return ""
    drawn, x = [], 2.0
    for place, (_, value) in enumerate(parts):
        wide = (WIDTH - 4) * value / total
        drawn.append(
            f'<rect class="bar s{place % STYLES}" x="{x:.1f}" y="2" width="{wide:.1f}" height="22"/>'
        )
        if wide > 44:
            drawn.append(
                f'<text class="inside" x="{x + wide / 2:.1f}" y="18" text-anchor="middle">{share(value / total)}</text>'
            )
        x += wide
    names = [(f"{label} ({share(value / total)})", place) for place, (label, value) in enumerate(parts)]
    return as_figure(name, svg(name, drawn, height=26), legend(names, areas=True))


def clipped(words: str, most: int) -> str:
    """A name that fits; the whole of it stands in the table.

    >>> clipped("a long name", 8)
    'a long …'
    """
    return words if len(words) <= most else words[: most - 1] + "…"
