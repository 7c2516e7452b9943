"""The pictures of docs/scale.md as SVG, drawn from the results of simulate.py. They need no package."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK, GREY, GRID = "#1f2933", "#6b7785", "#e4e7eb"
COLOURS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#8db600", "#c99700")
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve: its points, colour and name; ``mark`` is a point of it to be shown."""

    name: str
    colour: str
    points: Points
    mark: tuple[float, float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Logarithmic axes in a picture, with where they lie and what they say."""

    left: float
    width: float
    title: str
    across: str
    up: str
    x: tuple[float, float]
    y: tuple[float, float]
    top: float = 44
    height: float = 300

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point lies on the page."""
        share = [
            (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
            for value, (low, high) in zip(point, (self.x, self.y), strict=True)
        ]
        return self.left + share[0] * self.width, self.top + (1 - share[1]) * self.height

    def drawn(self, lines: list[Line], legend: tuple[float, float] | None) -> str:
        """Axes, curves, names."""
        parts = [_text(self.left, self.top - 16, self.title, size=14, weight="600")]
        for exponent in _decades(self.x):
            across, _ = self.at((10.0**exponent, self.y[0]))
            parts.append(_rule(across, self.top, across, self.top + self.height))
            parts.append(_text(across, self.top + self.height + 18, _power(exponent), anchor="middle"))
        for exponent in _decades(self.y):
            _, up = self.at((self.x[0], 10.0**exponent))
            parts.append(_rule(self.left, up, self.left + self.width, up))
            parts.append(_text(self.left - 6, up + 4, _power(exponent), anchor="end"))
        middle = self.left + self.width / 2
        parts.append(_text(middle, self.top + self.height + 40, self.across, anchor="middle"))
        if self.up:
            high = self.top + self.height / 2
            turned = f'transform="rotate(-90 {self.left - 46} {high})"'
            parts.append(_text(self.left - 46, high, self.up, anchor="middle", more=turned))
        for number, line in enumerate(lines):
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in map(self.at, line.points))
            dash = ' stroke-dasharray="5 4"' if line.dashed else ""
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>'
            )
            if line.mark is not None:
                a, b = self.at(line.mark)
                parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4.5" fill="{line.colour}"/>')
            if legend is not None:
                a, b = legend[0], legend[1] + 18 * number
                parts.append(
                    f'<path d="M{a} {b - 4}h22" stroke="{line.colour}" stroke-width="2.5" fill="none"{dash}/>'
                )
                parts.append(_text(a + 28, b, line.name))
        return "\n".join(parts)


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """All pictures; returns their paths."""
    return [
        _saved(folder / "scale-noise.svg", 1060, _noise(found)),
        _saved(folder / "scale-ranks.svg", 1060, _ranks(found)),
    ]


def _noise(found: dict[str, Any]) -> str:
    """Noise over the batch size for each population; ε of a fixed training over the population."""
    left = Panel(
        74, 330, f"Noise left in a release at ε = {found['budget']:g}, {found['steps']:,} steps", "batch size B",
        "σ / B, in clip norms", (1e2, 1e10), (1e-8, 1e0),
    )  # fmt: skip
    lines = []
    for colour, knee in zip(COLOURS, found["knees"], strict=False):
        mine = [row for row in found["noise_by_batch"] if row["population"] == knee["population"]]
        at = next(row for row in mine if row["batch"] == knee["batch"])
        points = [(row["batch"], row["noise"]) for row in mine]
        name = f"population {_power(round(math.log10(knee['population'])))}"
        lines.append(Line(name, colour, points, (at["batch"], at["noise"])))
    right = Panel(
        640,
        300,
        f"ε of one fixed training of {found['steps']:,} steps",
        "population",
        "ε",
        (1e3, 1e10),
        (1e-3, 1e3),
    )
    kinds = sorted({(row["batch"], row["sigma"]) for row in found["epsilon_by_population"]})
    fixed = [
        Line(
            f"B {batch:,}, σ {sigma:g}",
            colour,
            [
                (row["population"], row["epsilon"])
                for row in found["epsilon_by_population"]
                if (row["batch"], row["sigma"]) == (batch, sigma)
            ],
            dashed=sigma < 1,
        )
        for colour, (batch, sigma) in zip(("#365c8d", "#1fa187", "#1fa187", "#c99700"), kinds, strict=False)
    ]
    return left.drawn(lines, (412, 120)) + right.drawn(fixed, (808, 66))


def _ranks(found: dict[str, Any]) -> str:
    """How many times as fast as one rank, by the model, over the number of ranks."""
    parts = []
    models = list(dict.fromkeys(row["model"] for row in found["speeds"]))
    sizes = sorted({row["batch"] for row in found["speeds"]})
    for number, batch in enumerate(sizes):
        panel = Panel(
            74 + 320 * number, 260, f"batch size {batch:,}", "ranks",
            "" if number else "times as fast as one rank", (1, 4096), (0.8, 4096),
        )  # fmt: skip
        lines = []
        for colour, model in zip(("#c99700", "#440154", "#277f8e", "#4ac16d"), models, strict=False):
            mine = [row for row in found["speeds"] if (row["model"], row["batch"]) == (model, batch)]
            total = [row["rows"] + row["messages"] + row["rank 0"] for row in mine]
            points = [
                (row["ranks"], max(0.8, total[0] / each)) for row, each in zip(mine, total, strict=True)
            ]
            lines.append(Line(model, colour, points))
        lines.append(Line("ideal", GREY, [(1, 1), (4096, 4096)], dashed=True))
        parts.append(panel.drawn(lines, (84, 62) if number == 0 else None))
    return "\n".join(parts)


def _decades(limits: tuple[float, float]) -> range:
    low, high = (math.log10(limit) for limit in limits)
    step = 1 if high - low <= 5 else 2
    return range(math.ceil(low), math.floor(high) + 1, step)


def _power(exponent: int) -> str:
    if -1 <= exponent <= 3:
        return f"{10.0**exponent:g}" if exponent < 3 else "1,000"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "400",
    more: str = "",
) -> str:
    fill = INK if weight != "400" else "#3e4c59"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}" {more}>{text}</text>'
    )


def _rule(a: float, b: float, c: float, d: float) -> str:
    return f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" stroke="{GRID}" stroke-width="1"/>'


def _saved(path: Path, width: int, content: str) -> Path:
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 400" width="{width}" height="400" '
    style = 'font-family="system-ui, DejaVu Sans, sans-serif">'
    back = f'<rect width="{width}" height="400" fill="white"/>'
    path.write_text(f"{frame}{style}{back}\n{content}\n</svg>\n", encoding="utf-8")
    return path
