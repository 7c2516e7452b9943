"""What lies beside a run: a geometry and an audit, which the certificate does not cover, and a report shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report_runs import Parsed, a_plan, audit, geometry, section, write

import saltflat as sf

pytestmark = pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")


def test_how_to_add_a_geometry_is_something_that_works(run: Path) -> None:
    """Fails when a command is named for a model of one's own, which no command can build (it once was so)."""
    assert "saltflat geometry " in section(sf.report(run).page, "geometry")
    (run / "model.json").unlink()
    page = section(sf.report(run).page, "geometry")
    assert "saltflat.geometry.measure" in page
    assert "saltflat geometry " not in page


def test_geometry_is_drawn(run: Path) -> None:
    write(run, "geometry.json", geometry())
    page = section(sf.report(run).page, "geometry")
    names = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert names == [
        "Loss around the trained weights of run", "Density of the Hessian&#x27;s eigenvalues",
        "Loss at a distance from the trained weights", "Largest eigenvalues of the Hessian",
    ]  # fmt: skip
    assert page.count('class="heat"') > 10
    assert page.count('class="contour"') > 3
    assert "360 test rows of digits (not covered)" in page
    assert "141 ± 4.2" in page


def test_lengths_of_gradients_are_drawn_as_steps(run: Path) -> None:
    found = {"clip_norm": 1.0, "median": 0.5, "edges": [0.0, 1.0, 2.0], "counts": [3, 1]}
    write(run, "geometry.json", geometry(gradient_norms=found))
    page = section(sf.report(run).page, "geometry")
    assert "Lengths of single examples&#x27; gradients" in page
    assert ">clip norm</text>" in page
    write(run, "geometry.json", geometry(gradient_norms=found | {"counts": [3]}))
    assert "geometry.json in run is left out" in sf.report(run).page


def test_geometry_of_training_rows_is_never_covered(run: Path) -> None:
    rows = {"name": "x", "split": "train", "rows": 40, "covered": "covered by ε"}
    write(run, "geometry.json", geometry(data=rows))
    assert "diagnostics on private data, not covered by ε" in section(sf.report(run).page, "geometry")


@pytest.mark.parametrize(
    "part", ["density", "landscape", "wideness", "gradient_norms", "accuracy", "trace", "eigenvalues"]
)
def test_parts_of_a_geometry_may_be_missing(run: Path, part: str) -> None:
    write(run, "geometry.json", geometry(**{part: None}))
    made = sf.report(run)
    assert made.passed
    assert not made.runs[0].problems
    Parsed(made.page)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2}, {"format": "1"}, {"format": True}, {"data": None}, {"eigenvalues": "many"}, {"loss": "low"},
        {"density": {"eigenvalue": [1.0], "density": []}}, {"landscape": {"alpha": [0.0], "beta": [0.0], "loss": [[]]}},
        {"landscape": {"alpha": [1.0, 0.0], "beta": [0.0, 1.0], "loss": [[1.0, 1.0], [1.0, 1.0]]}}, {"trace": 3.0},
        {"wideness": {"distance": [1.0], "loss": [None], "spread": [1.0, 2.0]}},
    ],
)  # fmt: skip
def test_another_geometry_is_left_out_and_named(run: Path, changes: dict[str, Any]) -> None:
    write(run, "geometry.json", geometry(**changes))
    made = sf.report(run)
    assert made.passed
    assert "geometry.json in run is left out" in made.page
    assert made.runs[0].geometry is None


def test_numbers_that_cannot_be_drawn_are_left_out(run: Path) -> None:
    curve = {"distance": [0.0, 0.5, 1.0], "loss": [0.25, "nan", "inf"], "spread": None}
    flat = {"alpha": [0.0, 1.0], "beta": [0.0, 1.0], "loss": [[1.0, "inf"], [1.0, 1.0]]}
    empty = {"eigenvalue": [1.0], "density": [0.0]}
    write(run, "geometry.json", geometry(wideness=curve, landscape=flat, density=empty))
    page = sf.report(run).page
    assert "nan" not in re.sub(r"<details>.*?</details>", "", section(page, "geometry"), flags=re.DOTALL)


def test_an_audit_stands_beside_epsilon(run: Path, tmp_path: Path) -> None:
    write(tmp_path, "audit.json", audit(a_plan()))
    page = section(sf.report(run, audit=tmp_path / "audit.json").page, "audit")
    assert "Nothing was caught" in page
    assert "another plan" not in page
    assert "two worlds" in page
    write(run, "audit.json", audit(a_plan(), epsilon=99.0))
    assert "This audit is of another plan" in section(sf.report(run).page, "audit")


def test_an_audit_that_caught_something_is_said_first(run: Path) -> None:
    fault = "noise law: the noise is half of what it should be."
    write(run, "audit.json", audit(a_plan(), passed=False, faults=[fault]))
    made = sf.report(run)
    assert (made.passed, made.verdict.title) == (False, "CAUGHT BY AN AUDIT")
    assert fault in made.verdict.sentences
    assert made.card()["private"] is False
    # one of another plan says nothing about this run
    write(run, "audit.json", audit(a_plan(), passed=False, faults=[fault], method="other"))
    assert sf.report(run).passed
