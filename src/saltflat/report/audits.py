"""An audit beside the certificate: ε from below beside ε from above."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saltflat.errors import InputError, is_number
from saltflat.record.canonical import parsed, read_bounded
from saltflat.record.markup import bullets, table, text
from saltflat.report.bars import Bar, row_chart
from saltflat.report.figures import number, scrolled

_KEYS = {
    "passed": bool, "method": str, "epsilon": float, "delta": float, "randomness": str, "faults": list, "bounds": dict,
    "checks": list,
}  # fmt: skip
_BOUND = ("epsilon_lower_bound", "epsilon_certified", "ceiling", "trials", "confidence")


@dataclass(frozen=True)
class Bound:
    """ε bounded from below by one attack, beside what is certified for the same releases."""

    attack: str
    lower: float
    certified: float
    ceiling: float
    trials: int
    confidence: float


@dataclass(frozen=True)
class Audit:
    """What ``saltflat audit --json`` printed."""

    method: str
    epsilon: float
    delta: float
    passed: bool
    faults: tuple[str, ...]
    bounds: tuple[Bound, ...]
    checks: tuple[tuple[str, bool, str, str], ...]

    @property
    def contradicts(self) -> bool:
        """Whether an attack showed more than is certified, or caught a fault."""
        return not self.passed or bool(self.faults) or any(b.lower > b.certified for b in self.bounds)

    def is_of(self, method: str, epsilon: float | None, delta: float | None) -> bool:
        """Whether it was an audit of a plan with this method, ε and δ."""
        return (
            self.method == method
            and delta == self.delta
            and epsilon is not None
            and math.isclose(self.epsilon, epsilon, rel_tol=1e-6)
        )


def read_audit(path: Path) -> Audit:
    """Read an audit; anything else is refused by name."""
    data = parsed(read_bounded(path), path.name)
    wrong = ["it"]
    if isinstance(data, dict):
        wrong = [key for key, kind in _KEYS.items() if not _is(data.get(key), kind)]
    if wrong:
        raise InputError(
            "audit", path.name, "what saltflat audit --json prints", problem=f"is no audit (see its {wrong[0]!r})",
            cure="Make one with: saltflat audit RUN --json > audit.json",
        )  # fmt: skip
    try:
        return Audit(
            data["method"], float(data["epsilon"]), float(data["delta"]), data["passed"],
            tuple(str(fault) for fault in data["faults"]),
            tuple(_bound(name, bound) for name, bound in data["bounds"].items()),
            tuple(
                (str(c["name"]), c["passed"] is True, str(c["tried"]), str(c["would_catch"])) for c in data["checks"]
            ),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "audit", path.name, "what saltflat audit --json prints", problem=f"was changed or cut ({error})"
        ) from error


def _is(value: object, kind: type) -> bool:
    return is_number(value) if kind is float else isinstance(value, kind)


def _bound(name: str, data: Mapping[str, Any]) -> Bound:
    values = [math.inf if data[key] == "inf" else data[key] for key in _BOUND]
    if not all(is_number(value) and value >= 0 for value in values):
        raise ValueError(f"the bound {name[:40]!r} has no numbers")
    lower, certified, ceiling, trials, confidence = values
    return Bound(name, float(lower), float(certified), float(ceiling), int(trials), float(confidence))


def audit_section(audit: Audit | None, of_this_run: bool, how: str) -> list[str]:
    """The section of a page about an audit, or how to make one."""
    if audit is None:
        return [
            "<p>No audit is here. An audit attacks the mechanism from outside and bounds ε from below: "
            f"<code>{text(how)}</code></p>"
        ]
    parts = []
    if not of_this_run:
        parts.append(
            f'<p class="failed">This audit is of another plan: {text(audit.method)}, ε = {number(audit.epsilon)}, '
            f"δ = {number(audit.delta)}. It says nothing about this run.</p>"
        )
    if audit.contradicts:
        parts.append(
            '<p class="failed">The audit caught something: the claim of this mechanism does not hold.</p>'
            + bullets(audit.faults)
        )
    else:
        parts.append(
            "<p>Nothing was caught. The certificate bounds ε from above, an attack from below: the truth lies between. "
            "An audit can find faults; it cannot prove that there are none.</p>"
        )
    if audit.bounds:
        rows = [
            (
                text(b.attack), number(b.lower, 3), number(b.certified), number(b.ceiling, 3), f"{b.trials:,}",
                f"{b.confidence:.0%}",
            )
            for b in audit.bounds
        ]  # fmt: skip
        head = ("attack", "ε at least", "certified", "trials could show", "trials", "confidence")
        bars = [
            Bar(b.attack, b.lower, ticks=((b.certified, "certified"), (b.ceiling, "most")), style=place)
            for place, b in enumerate(audit.bounds)
        ]
        parts.append(
            row_chart(
                "What attacks could show of ε, beside what is certified", bars, "ε", head=head, rows=rows,
                note="Bar: ε is at least this, by the attack. Solid line: certified for the same releases. "
                "Dashed line: the most that so many trials could have shown.",
            )
        )  # fmt: skip
        few = [b.attack for b in audit.bounds if b.ceiling <= b.certified]
        if few:
            parts.append(
                '<p class="note">Too few trials to contradict the certificate, whatever they found: '
                f"{text(', '.join(few))}.</p>"
            )
    tried = [
        (text(name), '<span class="passed">passed</span>' if passed else '<span class="failed">CAUGHT</span>',
         text(done), text(catches))
        for name, passed, done, catches in audit.checks
    ]  # fmt: skip
    titles = ("<strong>check</strong>", "", "<strong>what was tried</strong>", "<strong>would catch</strong>")
    parts.append(
        "<details><summary>What was tried, and what it would have caught</summary>"
        + scrolled(table((), [titles, *tried]), "Checks of the audit")
        + "</details>"
    )
    return parts
