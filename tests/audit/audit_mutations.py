"""Ways to break the mechanism, each as a patch that is applied while an audit runs: the list of them.

A mutation changes what the mechanism does. None of them tells the audit anything: names, types and signatures
stay as they are. They lie in `audit_breaking_noise`, `audit_breaking_sums` and `audit_breaking_records`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """A patch, the check that must catch it, and what the plan needs for the patch to matter."""

    patch: Patch
    caught_by: str
    plan: dict[str, Any] = field(default_factory=dict)


MUTATIONS: dict[str, Mutation] = {}


def mutation(name: str, caught_by: str, **plan: Any) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS[name] = Mutation(patch, caught_by, plan)
        return patch

    return register


REPLAY, NOISE, SAMPLER, LEDGER = "replay sensitivity", "noise law", "sampler law", "ledger"
