"""Figures: axes that hold their data, names that can be heard, and nothing drawn that is no number."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import Parsed

from core_helpers import bounded
from saltflat.report.bars import Bar, row_chart, stacked_bar
from saltflat.report.figures import HEIGHT, WIDTH, Chart, Series, line_chart, ticks
from saltflat.report.landscape import contour, landscape, levels_of
from saltflat.report.words import at_most, belief

anything = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-300, -1e-300])


def coordinates(svg: str) -> list[float]:
    """All places of points, lines and words in a picture."""
    found = [float(n) for n in re.findall(r'\b(?:x|x1|x2|cx|y|y1|y2|cy)="([^"]*)"', svg)]
    for points in re.findall(r'points="([^"]*)"', svg):
        found += [float(n) for pair in points.split() for n in pair.split(",")]
    return found


@bounded(150)
@given(st.lists(st.tuples(anything, anything), min_size=0, max_size=12), st.booleans())
def test_whatever_the_numbers_the_picture_stays_in_its_frame(
    points: list[tuple[float, float]], log: bool
) -> None:
    """Fails when infinite values are drawn, or a logarithm is taken of zero (tried)."""
    page = line_chart(
        Chart("A chart", "x", "y", [Series("one", points), Series("two", points[::-1])], log_y=log)
    )
    Parsed(page)
    places = coordinates(re.sub(r'<svg class="key".*?</svg>', "", page))
    assert all(math.isfinite(place) and -40 <= place <= max(WIDTH, HEIGHT) + 40 for place in places)


@bounded(150)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_and_within(low: float, span: float) -> None:
    high = low + span
    found = ticks(low, high)
    assert len(found) <= 8
    assert all(low - 1e-6 * span <= value <= high + 1e-6 * span for value in found) or found == [low]


def test_a_figure_has_a_name_and_its_numbers() -> None:
    series = [Series("a", [(0.0, 0.1), (1.0, 0.9)], [(0.0, 0.2), (0.8, 1.0)])]
    chart = Chart("Accuracy <now>", "epoch", "%", series, percent=True, head=("a", "b"), rows=[("1", "2")])
    found = Parsed(line_chart(chart))
    svg = next(attributes for tag, attributes in found.tags if tag == "svg")
    assert (svg["role"], svg["aria-label"]) == ("img", "Accuracy <now>")
    assert {"title", "details", "summary", "table", "figcaption"} <= {tag for tag, _ in found.tags}


def test_points_lie_where_their_values_say() -> None:
    page = line_chart(
        Chart("c", "x", "y", [Series("a", [(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)])], percent=True)
    )
    (line,) = re.findall(r'<polyline class="line s0" points="([^"]*)"', page)
    (x0, y0), (x1, y1), (x2, y2) = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y0 > y2


def test_bars_and_shares() -> None:
    page = row_chart("Bounds", [Bar("one", length=1.0, ticks=((2.0, "certified"), (math.inf, "most")))], "ε")
    assert page.count('class="tick') == 1  # an infinite ceiling is in the table only
    assert "no number" in row_chart("Bounds", [Bar("one", length=math.nan)], "ε")
    shares = stacked_bar("Shares", [("a", 3.0), ("b", 1.0)])
    assert "75.0 %" in shares
    assert stacked_bar("Shares", [("a", 0.0)]) == ""


def test_lines_of_equal_loss_lie_at_that_loss() -> None:
    """On a plane the line through a level is exact. Fails when rows and columns are exchanged (tried)."""
    alpha, beta = [0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]
    loss = [[3 * a + b for b in beta] for a in alpha]
    pieces = [point for piece in contour(alpha, beta, loss, 4.5) for point in piece]
    assert pieces
    assert all(3 * a + b == pytest.approx(4.5) for a, b in pieces)
    page = landscape("Map", alpha, beta, loss, levels_of([value for row in loss for value in row]), "")
    # the lowest corner is at the lower left: the lightest shade, at the foot of the picture
    rects = re.findall(
        r'class="heat" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="[\d.]+" fill-opacity="([\d.]+)"', page
    )
    x, y, _ = min(rects[:-10], key=lambda rect: float(rect[2]))
    assert float(x) == min(float(rect[0]) for rect in rects[:-10])
    assert float(y) == max(float(rect[1]) for rect in rects[:-10])


def test_a_belief_is_bounded_as_bayes_says() -> None:
    for prior in (0.01, 0.5, 0.9):
        for epsilon in (0.0, 1.0, 30.0):
            odds = prior / (1 - prior) * math.exp(epsilon)
            assert belief(prior, epsilon) == pytest.approx(odds / (1 + odds))
    assert belief(0.5, 0.0) == 0.5
    assert belief(0.5, 1e9) == 1.0
    assert at_most(0.5) == "50 %"
    assert at_most(belief(0.5, 12.0)) == "99.9994 %"  # rounded up, and not to certainty
