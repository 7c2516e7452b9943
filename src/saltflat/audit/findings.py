"""What an audit says: each check with what was tried, what it found, and what it would have caught."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """One check. ``faults`` is empty if nothing was caught.

    ``tried`` says what was done, ``would_catch`` what would have been noticed, ``numbers`` what was measured.

    >>> Check("noise law", "a look", "no noise at all").passed
    True
    """

    name: str
    tried: str
    would_catch: str
    faults: tuple[str, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing was caught."""
        return not self.faults


@dataclass(frozen=True)
class LowerBound:
    """ε bounded from below by an attack, beside what is certified for the same releases.

    ``ceiling`` is the largest ε that so many trials could have shown, had every guess been right.
    """

    epsilon: float
    certified: float
    ceiling: float
    trials: int
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        values = {"epsilon_lower_bound": self.epsilon, "epsilon_certified": self.certified}
        values |= {"ceiling": self.ceiling, "trials": self.trials, "confidence": self.confidence}
        return {key: "inf" if value == math.inf else value for key, value in values.items()}


@dataclass(frozen=True)
class AuditReport:
    """The outcome of `saltflat.audit.run`. Printing it gives the words; ``to_dict`` is for JSON."""

    method: str
    epsilon: float
    delta: float
    randomness: str
    checks: tuple[Check, ...]
    bounds: dict[str, LowerBound]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing was caught."""
        return all(check.passed for check in self.checks)

    @property
    def faults(self) -> list[str]:
        """Everything that was caught, each with the check that caught it."""
        return [f"{check.name}: {fault}" for check in self.checks for fault in check.faults]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "passed": self.passed,
            "method": self.method,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "randomness": self.randomness,
            "faults": self.faults,
            "bounds": {name: bound.to_dict() for name, bound in self.bounds.items()},
            "checks": [
                asdict(check) | {"passed": check.passed, "faults": list(check.faults)}
                for check in self.checks
            ],
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        lines = [
            f"Audit of {self.method}: certified ε = {self.epsilon:.4g} at δ = {self.delta:g}, tier {self.randomness}"
        ]
        for check in self.checks:
            lines.append(f"  {'passed' if check.passed else 'CAUGHT'}  {check.name}: {check.tried}")
            lines += [f"          ! {fault}" for fault in check.faults]
            lines.append(f"          would catch: {check.would_catch}")
        for name, bound in self.bounds.items():
            lines.append(
                f"  {name}: ε is at least {bound.epsilon:.3g} ({bound.confidence:.0%} confidence); "
                f"certified {bound.certified:.4g} for these releases; "
                f"{bound.trials} trials could show {bound.ceiling:.3g} at most"
                + ("" if bound.ceiling > bound.certified else ": too few to contradict the certificate")
            )
        if self.passed:
            lines.append("Nothing was caught. An audit can find faults; it cannot prove that there are none.")
        else:
            count = len(self.faults)
            lines.append(
                f"{count} fault{'s' if count > 1 else ''} caught: the claim of this mechanism does not hold."
            )
        return "\n".join(lines)
