"""What a verification found: one line a check, and a verdict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from saltflat.errors import PrivacyWarning, SaltflatError
from saltflat.record.canonical import plain_figure

Status = Literal["passed", "failed", "not tried", "accepted", "noted"]

_SHOWN = {"failed": "FAILED", "not tried": "-", "accepted": "accepted", "noted": "noted", "passed": "passed"}


@dataclass(frozen=True)
class Finding:
    """One check: its name, how it ended, what it would show, and what was found."""

    name: str
    status: Status
    means: str
    found: tuple[str, ...] = ()


class Outcome(Exception):
    """How a check ended that did not simply pass, and what it found, one sentence each."""

    def __init__(self, status: Status, *found: str) -> None:
        super().__init__(*found)
        self.status, self.found = status, found


def judged(name: str, means: str, look: Callable[[], str | None]) -> Finding:
    """Run one check. It returns a remark or nothing, or raises what it found.

    >>> judged("sum", "two and two are four", lambda: "counted").status
    'passed'
    """
    try:
        # a plan's own, said when it was made
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            remark = look()
    except Outcome as outcome:
        return Finding(name, outcome.status, means, outcome.found)
    except SaltflatError as error:
        return Finding(name, "failed", means, (str(error).replace("\n", " "),))
    except (
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError, OSError,
    ) as error:  # fmt: skip
        # hostile content that a check did not foresee: it must not pass, nor end in a traceback
        return Finding(
            name, "failed", means, (f"it cannot be judged ({type(error).__name__}: {str(error)[:160]}).",)
        )
    return Finding(name, "passed", means, (remark,) if remark else ())


@dataclass(frozen=True)
class Verification:
    """The outcome of verifying a run folder. ``passed`` is the verdict; printing it gives the words.

    ``epsilon`` is what the ledger's releases cost by privacy loss distributions, ``epsilon_second`` what our own
    composition by FFT says, ``epsilon_rdp`` the Rényi bound; None where it was not computed. ``claimed`` is the
    certificate's ε.
    """

    folder: str
    findings: tuple[Finding, ...]
    claimed: float | str | None = None
    delta: float | None = None
    epsilon: float | None = None
    epsilon_second: float | None = None
    epsilon_rdp: float | None = None
    recorded: int | None = None
    planned: int | None = None
    head: str | None = None
    certificate_hash: str | None = None
    certificate_bytes: bytes = b""

    @property
    def passed(self) -> bool:
        """Whether no check failed, and none had to be left out."""
        return all(finding.status not in ("failed", "not tried") for finding in self.findings)

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [finding.name for finding in self.findings if finding.status == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for ``--json``."""
        return {
            "passed": self.passed,
            "folder": self.folder,
            "epsilon_claimed": self.claimed,
            "delta": self.delta,
            "epsilon": plain_figure(self.epsilon),
            "epsilon_second": plain_figure(self.epsilon_second),
            "epsilon_rdp": plain_figure(self.epsilon_rdp),
            "recorded_releases": self.recorded,
            "planned_releases": self.planned,
            "ledger_head": self.head,
            "certificate_sha256": self.certificate_hash,
            "checks": [asdict(finding) | {"found": list(finding.found)} for finding in self.findings],
        }

    def __str__(self) -> str:
        lines = [f"Verifying {_printable(self.folder)}"]
        width = max(len(finding.name) for finding in self.findings)
        for finding in self.findings:
            lines.append(f"  {_SHOWN[finding.status]:<8}  {finding.name:<{width}}  {finding.means}")
            mark = "!" if finding.status == "failed" else " "
            lines += [f"  {'':8}  {'':{width}}  {mark} {_printable(text)}" for text in finding.found]
        return "\n".join([*lines, *self._verdict()])

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        return self._verdict()[0]

    def _verdict(self) -> list[str]:
        if not self.passed:
            count = len(self.failed)
            return [
                f"NOT VERIFIED: {count} check{'s' if count != 1 else ''} failed ({', '.join(self.failed)})."
            ]
        if self.claimed == "inf":
            return ["Verified as a run that is NOT PRIVATE: its files are whole, and it claims nothing."]
        return [
            f"Verified: ε = {self.claimed:.4g} at δ = {self.delta:g}. "
            "This holds if the process ran the plan as written: no file can show that.",
            f"To notice if all of it were ever written anew, keep the hash of certificate.json elsewhere:\n"
            f"  {self.certificate_hash}",
        ]


def _printable(text: str) -> str:
    """Text from a file of a stranger, without what could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
