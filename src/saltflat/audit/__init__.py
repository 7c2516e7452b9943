"""Attacks on one's own mechanism: what it does, judged from outside."""

from saltflat.audit.findings import AuditReport, Check, LowerBound
from saltflat.audit.suite import run

__all__ = ["AuditReport", "Check", "LowerBound", "run"]
