"""Mutations of the mechanism, each caught by a named check of the audit; and the mechanism itself, which passes.

Checks draw fresh noise. Each raises a false alarm less than once in a million; each mutation here is far
beyond what its check can see, so that it is missed less than once in a million too.
"""

from __future__ import annotations

import warnings
from typing import Any

import audit_breaking_noise
import audit_breaking_records
import audit_breaking_sums
import pytest
import torch
from audit_mutations import LEDGER, MUTATIONS, NOISE, REPLAY, SAMPLER
from torch import nn

from saltflat import plans
from saltflat.audit.findings import Check
from saltflat.audit.ledger_check import ledger_check
from saltflat.audit.noise_law import noise_check
from saltflat.audit.replay import replay_check
from saltflat.audit.sampler_law import sampler_check
from saltflat.audit.worlds import Subject, subject_of
from saltflat.errors import PrivacyWarning
from saltflat.plan import Plan

assert audit_breaking_noise, audit_breaking_sums  # importing them fills the list
assert audit_breaking_records

CHECKS = {
    REPLAY: replay_check,
    NOISE: lambda subject: noise_check(subject, 8000),
    SAMPLER: lambda subject: sampler_check(subject, 60_000),
    LEDGER: ledger_check,
}


def subject(method: str = "dp-sgd", randomness: str = "fast", ascent: Any = None, **parts: Any) -> Subject:
    """A small model under a small plan: σ = 2, rate 0.2."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 4))
    data = (torch.randn(40, 8), torch.randint(0, 4, (40,)))
    settings = {"population": 600, "batch_size": 120, "steps": 9, "delta": 1e-5, "clip_norm": 0.5} | parts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        plan = plans.by_name(method, noise_multiplier=2.0, **settings)
    if ascent is not None:
        plan = _with_ascent(plan, ascent)
    return subject_of(model, data, plan, None, randomness)


def _with_ascent(plan: Plan, ascent: Any) -> Plan:
    from dataclasses import replace

    return plan.changed(phases=tuple(replace(phase, ascent=ascent) for phase in plan.phases))


def test_there_are_enough_of_them() -> None:
    assert len(MUTATIONS) >= 12
    assert {mutation.caught_by for mutation in MUTATIONS.values()} == set(CHECKS)


@pytest.mark.statistical
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    under_audit = subject(**mutation.plan)
    mutation.patch(monkeypatch)
    found: Check = CHECKS[mutation.caught_by](under_audit)
    assert found.faults, f"{mutation.caught_by} did not catch: {name}"


@pytest.mark.statistical
@pytest.mark.parametrize("check", CHECKS)
def test_the_mechanism_itself_passes(check: str) -> None:
    """Under every plan that some mutation of this check uses: what is caught above is the mutation."""
    kinds = {repr(m.plan): m.plan for m in MUTATIONS.values() if m.caught_by == check}
    for plan in kinds.values():
        assert CHECKS[check](subject(**plan)).faults == (), plan
