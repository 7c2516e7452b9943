"""The shape of the minimum, from ``geometry.json``: what is there is drawn, what is not is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from saltflat.errors import InputError, is_number
from saltflat.record.canonical import DamagedError, parsed, read_bounded
from saltflat.record.markup import table, text
from saltflat.report.figures import Chart, Series, line_chart, number, numbers, scrolled, share
from saltflat.report.landscape import landscape, levels_of

FORMAT = 1
MOST = 401
"""How many places a curve or the side of a map may have: more cannot be seen, and are refused."""


@dataclass(frozen=True)
class Curve:
    """Values over places; ``spread`` is the deviation of each where it was measured."""

    places: tuple[float, ...]
    values: tuple[float, ...]
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Geometry:
    """What ``saltflat geometry`` wrote. Every part but the data may be missing."""

    data_name: str
    split: str
    rows: int | None
    covered: str
    loss: float | None
    accuracy: float | None
    eigenvalues: tuple[float, ...]
    lambda_max: float | None
    lambda_ratio: float | None
    trace: float | None
    trace_error: float | None
    density: Curve | None
    landscape: tuple[tuple[float, ...], tuple[float, ...], tuple[tuple[float, ...], ...]] | None
    wideness: Curve | None
    gradient_norms: tuple[tuple[str, str], ...]
    norms: Curve | None = None
    clip_norm: float | None = None

    @property
    def label(self) -> str:
        """On which rows it was measured, and whether any ε covers that."""
        rows = "" if self.rows is None else f"{self.rows:,} "
        where = f"{rows}{self.split} rows of {self.data_name}"
        # curvature of private training rows is never covered, whatever the file says
        if self.split == "train":
            return f"{where}: diagnostics on private data, not covered by ε"
        return f"{where} ({self.covered})" if self.covered else where


def read_geometry(path: Path) -> Geometry:
    """Read a ``geometry.json`` of the known format; any other is refused by name, damage in a sentence."""
    data = parsed(read_bounded(path), path.name)
    version = data.get("format") if isinstance(data, dict) else None
    if type(version) is not int or version != FORMAT:
        raise InputError(
            "format", version, f"geometry of format {FORMAT}", problem=f"is the format of {path.name}",
            cure="Update saltflat, or make it anew: saltflat geometry RUN.",
        )  # fmt: skip
    try:
        return _geometry(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamagedError(f"{path.name} is not what saltflat geometry writes ({error}).") from error


def _geometry(data: dict[str, Any]) -> Geometry:
    about = data["data"]
    trace, norms = data.get("trace") or {}, data.get("gradient_norms") or {}
    return Geometry(
        str(about["name"]),
        str(about["split"]),
        about["rows"] if type(about.get("rows")) is int else None,
        str(about.get("covered") or ""),
        _number(data.get("loss")),
        _number(data.get("accuracy")),
        _list(data.get("eigenvalues") or []),
        _number(data.get("lambda_max")),
        _number(data.get("lambda_ratio")),
        _number(trace.get("value")),
        _number(trace.get("error")),
        _curve(data.get("density"), "eigenvalue", "density"),
        _map(data.get("landscape")),
        _curve(data.get("wideness"), "distance", "loss", "spread"),
        tuple((str(key), _shown(value)) for key, value in norms.items()),
        _histogram(norms),
        _number(norms.get("clip_norm")),
    )


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):  # as JSON has no word for them
        return float(value)
    if not is_number(value):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    return float(value)


def _list(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) > 10_000:
        raise TypeError("a list of numbers was expected")
    return tuple(math.nan if (found := _number(value)) is None else found for value in values)


def _curve(data: Any, places: str, values: str, spread: str = "") -> Curve | None:
    if data is None:
        return None
    found = Curve(_list(data[places]), _list(data[values]), _list(data.get(spread) or []) if spread else ())
    if len(found.places) != len(found.values) or len(found.spread) not in (0, len(found.values)):
        raise ValueError(f"{places} and {values} differ in length")
    return found


def _histogram(data: dict[str, Any]) -> Curve | None:
    """Steps over the edges of bins, if there are any."""
    if data.get("edges") is None or data.get("counts") is None:
        return None
    edges, counts = _list(data["edges"]), _list(data["counts"])
    if len(edges) != len(counts) + 1:
        raise ValueError("edges of a histogram are one more than its counts")
    places = [edge for low, high in pairwise(edges) for edge in (low, high)]
    return Curve(tuple(places), tuple(count for count in counts for _ in (0, 1)))


def _map(data: Any) -> tuple[tuple[float, ...], tuple[float, ...], tuple[tuple[float, ...], ...]] | None:
    if data is None:
        return None
    alpha, beta = _list(data["alpha"]), _list(data["beta"])
    loss = tuple(_list(row) for row in data["loss"])
    whole = len(loss) == len(alpha) and all(len(row) == len(beta) for row in loss)
    if not whole or max(len(alpha), len(beta)) > MOST:
        raise ValueError("landscape is no table of loss over alpha and beta")
    if any(not a < b for line in (alpha, beta) for a, b in pairwise(line)):
        raise ValueError("alpha and beta of a landscape must grow")
    return alpha, beta, loss


def _shown(value: Any) -> str:
    if is_number(value):
        return number(float(value))
    if isinstance(value, list) and all(is_number(item) for item in value):
        return ", ".join(number(float(item), 3) for item in value[:40]) + (", …" if len(value) > 40 else "")
    return str(value)[:200]


HOW = "saltflat geometry"


def _how(path: str) -> str:
    """What adds the geometry of a run. A command can only measure a model that it can build."""
    if Path(path, "plan.json").exists() and not Path(path, "model.json").exists():
        return (
            "the model is not one that saltflat builds, so write what <code>saltflat.geometry.measure</code> "
            f"returns in Python, as JSON, to <code>{text(path)}/geometry.json</code>"
        )
    return f"<code>{HOW} {text(path)}</code>"


def geometry_section(runs: Sequence[tuple[str, str, Geometry | None]], shown: Sequence[str]) -> list[str]:
    """The section of a page: a table of all runs that have it, and pictures of those that are named in ``shown``.

    ``runs`` are names, paths and geometries.
    """
    known = [(name, found) for name, _, found in runs if found is not None]
    missing = [path for _, path, found in runs if found is None]
    if not known:
        return [
            "<p>The shape of the minimum was not measured. To add it: "
            f"{_how(missing[0] if missing else 'RUN')}, then make this report again.</p>"
        ]
    parts = [
        "<p>How sharp is the minimum that was found? λ is an eigenvalue of the Hessian of the loss: how fast the loss "
        "bends along a direction. A flat minimum, with small λ, bears the noise of private training better.</p>",
        scrolled(table(_HEAD, [_row(*each) for each in known], words=(6,)), "Geometry in numbers"),
    ]
    if missing:
        parts.append(
            f'<p class="note">Not measured for {len(missing)} of {len(runs)} runs. To add one: '
            f"{_how(missing[0])}</p>"
        )
    drawn = [(name, found) for name, found in known if name in shown]
    parts.append(f'<div class="figures">{"".join([*_landscapes(drawn), *_lines(drawn)])}</div>')
    for name, found in drawn:
        if found.gradient_norms:
            rows = [(text(key), text(value)) for key, value in found.gradient_norms]
            parts.append(numbers(("gradient norms", ""), rows, f"Gradient norms of {name}"))
    return parts


_HEAD = ("run", "λ max", "λ max / λ 5th", "trace", "loss", "accuracy", "measured on")


def _row(name: str, found: Geometry) -> tuple[str, ...]:
    def shown(value: float | None) -> str:
        return "–" if value is None else number(value)

    error = "" if found.trace_error is None else f" ± {number(found.trace_error, 2)}"
    return (
        text(name), shown(found.lambda_max), shown(found.lambda_ratio), shown(found.trace) + error, shown(found.loss),
        "–" if found.accuracy is None else share(found.accuracy), text(found.label),
    )  # fmt: skip


def _landscapes(drawn: Sequence[tuple[str, Geometry]]) -> list[str]:
    """A map of each run, all with the same shades for the same loss."""
    maps = [(name, found.landscape) for name, found in drawn if found.landscape is not None]
    values = [value for _, (_, _, loss) in maps for row in loss for value in row if math.isfinite(value)]
    if not values:
        return []
    levels = levels_of(values)
    note = "The cross is the trained model. Darker in light mode, brighter in dark mode: a higher loss."
    if len(maps) > 1:
        note += " All maps have the same shades."
    return [
        landscape(f"Loss around the trained weights of {name}", alpha, beta, loss, levels, note)
        for name, (alpha, beta, loss) in maps
    ]


def _lines(drawn: Sequence[tuple[str, Geometry]]) -> list[str]:
    """Curves of all runs in one chart each, so that they can be compared."""
    charts = []
    if densities := [(name, found.density) for name, found in drawn if found.density is not None]:
        charts.append(
            Chart(
                "Density of the Hessian's eigenvalues", "eigenvalue λ", "density (log scale)", _series(densities),
                log_y=True, note="Most directions lie near zero; those far to the right are the sharp ones.",
                head=("run", "eigenvalue", "density"), rows=_rows(densities),
            )
        )  # fmt: skip
    if widths := [(name, found.wideness) for name, found in drawn if found.wideness is not None]:
        banded = " Band: one deviation over directions." if any(curve.spread for _, curve in widths) else ""
        charts.append(
            Chart(
                "Loss at a distance from the trained weights", "distance in random directions", "loss",
                _series(widths), note=f"A wide minimum stays low for longer.{banded}",
                head=("run", "distance", "loss", "deviation"), rows=_rows(widths, spread=True),
            )
        )  # fmt: skip
    spectra = [
        (name, Curve(tuple(float(rank) for rank in range(1, len(found.eigenvalues) + 1)), found.eigenvalues))
        for name, found in drawn
        if found.eigenvalues
    ]
    if spectra:
        charts.append(
            Chart(
                "Largest eigenvalues of the Hessian", "rank", "eigenvalue λ", _series(spectra), whole_x=True,
                note="The first is λ max, the sharpest direction.", head=("run", "rank", "eigenvalue"),
                rows=_rows(spectra),
            )
        )  # fmt: skip
    if norms := [(name, found.norms) for name, found in drawn if found.norms is not None]:
        clips = sorted(
            {found.clip_norm for _, found in drawn if found.clip_norm is not None and found.clip_norm > 0}
        )
        rows = _rows(norms)
        label = "gradient norm"
        if all(place > 0 for _, curve in norms for place in curve.places):  # bins grow by a factor
            norms = [(name, Curve(tuple(map(math.log10, c.places)), c.values)) for name, c in norms]
            clips, label = [math.log10(clip) for clip in clips], "gradient norm, as a power of ten"
        charts.append(
            Chart(
                "Lengths of single examples' gradients", label, "examples", _series(norms),
                [(clip, "clip norm") for clip in clips[:2]],
                note="What lies right of the clip norm is shortened to it.",
                head=("run", "gradient norm", "examples"), rows=rows,
            )
        )  # fmt: skip
    return [line_chart(chart) for chart in charts]


def _series(curves: Sequence[tuple[str, Curve]]) -> list[Series]:
    return [
        Series(
            name, list(zip(curve.places, curve.values)),
            [(y - s, y + s) for y, s in zip(curve.values, curve.spread)], style,
        )
        for style, (name, curve) in enumerate(curves)
    ]  # fmt: skip


def _rows(curves: Sequence[tuple[str, Curve]], spread: bool = False) -> list[tuple[str, ...]]:
    return [
        (
            text(name), number(curve.places[k]), number(curve.values[k]),
            *((number(curve.spread[k]) if curve.spread else "–",) if spread else ()),
        )
        for name, curve in curves
        for k in range(len(curve.places))
    ]  # fmt: skip
