"""Run folders to report on, and what may lie beside them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import saltflat as sf
from core_helpers import small_data, small_net
from record.record_runs import COMMON, a_plan, copied, trained
from saltflat import plans
from saltflat.plan import Plan
from saltflat.training.evaluate_privately import PrivateAccuracy

__all__ = ["COMMON", "a_plan", "copied", "cut_off", "trained"]


def sgd(**changes: Any) -> Plan:
    """One phase without an average."""
    return plans.dp_sgd(**(COMMON | changes))


def cut_off(folder: Path, after: int = 3) -> Path:
    """A run that its own process left after so many steps: a certificate that says so, and a ledger that may grow."""
    loop = sf.steps(small_net(), small_data(), a_plan(), out=folder)
    for _, _ in zip(range(after), loop):
        pass
    loop.close()  # type: ignore[attr-defined]  # a generator
    return folder


def evaluated(folder: Path) -> PrivateAccuracy:
    """A private evaluation of a run that `trained` made, recorded in its folder."""
    run = sf.Run.load(folder, sf.models.build("logistic", in_features=4, classes=3).double())
    return sf.evaluate_privately(run, small_data(9, 1), epsilon=0.5, delta=1e-4, size=9)


def geometry(**changes: Any) -> dict[str, Any]:
    """All parts of a ``geometry.json``, in the smallest form that shows something."""
    places = [-1.0, -0.5, 0.0, 0.5, 1.0]
    return {
        "format": 1, "run": "a run", "loss": 0.25, "accuracy": 0.92,
        "data": {"name": "digits", "split": "test", "rows": 360, "covered": "not covered"},
        "eigenvalues": [20.3, 12.1, 9.8], "tolerance": 1e-3, "lambda_max": 20.3, "lambda_ratio": 2.07,
        "trace": {"value": 141.0, "error": 4.2},
        "density": {"eigenvalue": [0.0, 1.0, 2.0], "density": [1.0, 0.1, 0.0]},
        "landscape": {
            "alpha": places, "beta": places, "loss": [[0.2 + a * a + 2 * b * b for b in places] for a in places],
        },
        "wideness": {"distance": [0.0, 0.5, 1.0], "loss": [0.25, 0.4, 0.9], "spread": [0.0, 0.1, 0.2]},
        "gradient_norms": {"median": 0.7},
    } | changes  # fmt: skip


def audit(plan: Plan, **changes: Any) -> dict[str, Any]:
    """What ``saltflat audit --json`` prints of this plan."""
    bound = {
        "epsilon_lower_bound": 0.2,
        "epsilon_certified": 1.3,
        "ceiling": "inf",
        "trials": 500,
        "confidence": 0.95,
    }
    check = {"name": "noise law", "passed": True, "tried": "a look", "would_catch": "no noise", "faults": []}
    return {
        "passed": True, "method": plan.method, "epsilon": plan.epsilon, "delta": plan.budget.delta,
        "randomness": "fast", "faults": [], "bounds": {"two worlds": bound}, "checks": [check], "seconds": 1.0,
    } | changes  # fmt: skip


def write(folder: Path, name: str, data: Any) -> None:
    (folder / name).write_text(json.dumps(data), encoding="utf-8")


VOID = {"meta", "br", "line", "rect", "circle", "polygon", "polyline", "path"}


class Parsed(HTMLParser):
    """A page taken apart: its tags, whether they close in order, and the words between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"these tags are not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"{tag} closes nothing"
        assert self.open.pop() == tag, f"{tag} is closed out of order"

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All words, white space made even."""
        return " ".join(" ".join(self.words).split())


def section(page: str, name: str) -> str:
    """One section of a page, as HTML."""
    found = re.search(rf'<section id="{name}".*?</section>', page, flags=re.DOTALL)
    assert found is not None, f"no section {name}"
    return found.group()


TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "nav", "h1", "h2", "h3", "h4", "p",
    "ul", "li", "a", "div", "dl", "dt", "dd", "small", "span", "strong", "em", "sup", "br", "table", "tr", "th", "td",
    "code", "pre", "details", "summary", "figure", "figcaption", "svg", "g", "line", "rect", "circle", "polygon",
    "polyline", "path", "text",
}  # fmt: skip


def check_page(page: str) -> Parsed:
    """Only our own tags, in order, none of them doing anything."""
    found = Parsed(page)
    assert {tag for tag, _ in found.tags} <= TAGS
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], tag
        if tag == "a":
            assert str(attributes["href"]).startswith("#")
    assert sum(tag == "h1" for tag, _ in found.tags) == 1
    return found
