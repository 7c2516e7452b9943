"""What a run folder says, read without trusting it: a report is also made of runs that are damaged or unfinished.

Nothing is executed and no torch is loaded. What cannot be read is left out; the verification says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from saltflat.errors import InputError, PrivacyWarning, SaltflatError, is_number
from saltflat.plan import Plan
from saltflat.record.agreement import check_agreement
from saltflat.record.canonical import LARGEST_LEDGER, parsed, read_bounded
from saltflat.record.certificate import Certificate
from saltflat.record.evaluations import FILE as EVALUATIONS
from saltflat.record.findings import Verification
from saltflat.record.ledger import Ledger
from saltflat.record.page import body_of
from saltflat.record.verify import MOST_KINDS, MOST_STEPS, Accept, verify
from saltflat.report.audits import Audit, read_audit
from saltflat.report.geometries import Geometry, read_geometry

State = Literal["verified", "unfinished", "not private", "damaged"]
T = TypeVar("T")

A_RUN = ("plan.json", "ledger.jsonl", "certificate.json")
"""One of these makes a folder that of a run, as for `verify`."""


@dataclass(frozen=True)
class RunFacts:
    """One run, as far as its folder can be read."""

    path: Path
    verification: Verification
    certificate: dict[str, Any] | None = None
    certificate_is_there: bool = False
    plan: Plan | None = None
    ledger: Ledger | None = None
    ledger_is_that_of_the_plan: bool = False
    metrics: tuple[dict[str, Any], ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    evaluations: Ledger | None = None
    geometry: Geometry | None = None
    audit: Audit | None = None
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name or str(self.path)

    @property
    def stated(self) -> dict[str, Any]:
        """What the certificate states: nothing, where there is none that can be read."""
        return self.certificate or {}

    @property
    def opened(self) -> dict[str, Any]:
        """The first entry of the ledger, if it has one."""
        return self.ledger.entries[0] if self.ledger is not None and self.ledger.entries else {}

    @property
    def is_seeded(self) -> bool:
        """Whether the noise can be predicted, by the ledger or the certificate."""
        return self.opened.get("seeded") is True or self.stated.get("seeded") is True

    @property
    def is_finished(self) -> bool:
        """Whether there is a certificate, and it says that the plan came to its end."""
        return self.stated.get("finished") is True

    @property
    def state(self) -> State:
        """What can be said of the run before anything else.

        ``damaged`` is whatever failed for another reason than a seed, no noise, or an early end.
        """
        found = self.verification
        if found.passed and self.is_finished and not self.makes_no_claim:
            return "verified"
        failed = set(found.failed)
        if not self.certificate_is_there:
            # killed, or under way: no certificate yet; the last line of its ledger may be cut short
            sound = self.ledger_is_that_of_the_plan and failed <= {"certificate", "private", "ledger"}
            return "unfinished" if sound else "damaged"
        if not failed <= {"private", "finished"} or any(f.status == "not tried" for f in found.findings):
            return "damaged"
        return "unfinished" if not self.is_finished else "not private"

    @property
    def makes_no_claim(self) -> bool:
        """Whether the run is a test run, or has a release without noise."""
        if self.is_seeded or (self.plan is not None and not self.plan.is_private):
            return True
        return self.certificate is not None and self.certificate.get("private") is not True

    @property
    def method(self) -> str:
        """By the plan, or else by the certificate."""
        return str(self.stated.get("method", "unknown")) if self.plan is None else self.plan.method

    def told(self, word: str) -> str | None:
        """A text that whoever started the run stored beside it, such as the name of the data."""
        facts = self.about.get("facts")
        value = facts.get(word) if isinstance(facts, dict) else None
        return value if isinstance(value, str) and value else None

    @property
    def seconds(self) -> float | None:
        """How long the run took, by its own word."""
        value: Any = self.about.get("seconds")
        return float(value) if is_number(value) and 0 < value < math.inf else None


def read_run(folder: Path, *, audit: Audit | None = None, accept: Sequence[Accept] = ()) -> RunFacts:
    """Verify a run folder, and read what can be read of it."""
    found = verify(folder, accept=accept)
    certificate = _attempt(lambda: _certificate(folder))
    plan = _attempt(lambda: _plan(folder))
    ledger = _attempt(lambda: _ledger(folder, "ledger.jsonl"))
    about = _attempt(lambda: parsed(read_bounded(folder / "run.json"), "run.json"))
    problems: list[str] = []
    geometry = _beside(folder, "geometry.json", read_geometry, problems)
    if audit is None:
        audit = _beside(folder, "audit.json", read_audit, problems)
    return RunFacts(
        folder,
        found,
        certificate,
        (folder / "certificate.json").exists(),
        plan,
        ledger,
        plan is not None and ledger is not None and _attempt(lambda: _agree(ledger, plan)) is True,
        tuple(_attempt(lambda: _metrics(folder)) or ()),
        about if isinstance(about, dict) else {},
        _attempt(lambda: _ledger(folder, EVALUATIONS)),
        geometry,
        audit,
        tuple(problems),
    )


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run folders that are meant: these themselves, or those inside a folder of runs, in order of their names."""
    found: list[Path] = []
    for path in paths:
        around = path.iterdir() if path.is_dir() else ()
        inside = [path] if _is_run(path) else sorted(p for p in around if _is_run(p))
        if not inside:
            raise InputError(
                "run", str(path), "a run folder, or a folder of runs", problem="holds no run",
                cure="Make one with: saltflat train --out runs/mine",
            )  # fmt: skip
        found += [p for p in inside if p.resolve() not in {other.resolve() for other in found}]
    return found


def _is_run(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in A_RUN)


def _attempt(read: Callable[[], T]) -> T | None:
    """What was read, or None: the verification has already said what is wrong with the file."""
    try:
        # a plan's own, said when it was made
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            return read()
    except (
        SaltflatError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError,
    ):  # fmt: skip
        return None


def _beside(folder: Path, name: str, read: Callable[[Path], T], problems: list[str]) -> T | None:
    """A file that the certificate does not cover; what is wrong with it is said, and the report goes on."""
    if not (folder / name).exists():
        return None
    try:
        return read(folder / name)
    except (SaltflatError, OSError) as error:
        problems.append(f"{name} in {folder.name} is left out: {' '.join(str(error).split())}")
        return None


def _certificate(folder: Path) -> dict[str, Any]:
    data = Certificate.from_dict(parsed(read_bounded(folder / "certificate.json"), "certificate.json")).data
    body_of(data)  # all that a page of it needs is there
    return data


def _plan(folder: Path) -> Plan:
    plan = Plan.from_dict(parsed(read_bounded(folder / "plan.json"), "plan.json"))
    if not plan.is_solved or plan.steps > MOST_STEPS or len(plan.phases) > MOST_KINDS:
        raise ValueError("no run has such a plan")
    return plan


def _ledger(folder: Path, name: str) -> Ledger:
    path = folder / name
    if path.stat().st_size > LARGEST_LEDGER:
        raise ValueError("too large")
    return Ledger.read(path, cut_short=True)


def _agree(ledger: Ledger, plan: Plan) -> bool:
    check_agreement(ledger, plan)
    return True


def _metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows that can be drawn: a whole number of steps, growing, and an epoch."""
    content = read_bounded(folder / "metrics.jsonl")
    rows: list[dict[str, Any]] = []
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        row = parsed(line, "metrics.jsonl")
        step = row.get("step") if isinstance(row, dict) else None
        if type(step) is int and step > (rows[-1]["step"] if rows else 0) and is_number(row.get("epoch")):
            rows.append(row)
    return rows
