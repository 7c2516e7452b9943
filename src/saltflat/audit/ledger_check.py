"""The record: what the ledger and the certificate say is what the plan says and what was seen to happen."""

from __future__ import annotations

import math
from dataclasses import replace

from saltflat.accounting import SampledGaussian, epsilon
from saltflat.audit.bounds import gaussian_epsilon
from saltflat.audit.findings import Check
from saltflat.audit.worlds import Subject
from saltflat.plan import Plan, QuantileClipping

STEPS = 3


def ledger_check(subject: Subject) -> Check:
    """A few steps of every phase, recorded as a real run records them."""
    plan, faults = subject.plan, []
    several = plan.changed(
        phases=tuple(replace(p, steps=min(p.steps, STEPS), learning_rate=None) for p in plan.phases),
        optimizer=None,
        averaging=subject.of_phase(plan.phases[0], 1).averaging,
    )
    trace = subject.run(subject.units(12), several, rate=1e-6, close=True)
    faults += _entries(several, trace.ledger.of_kind("release"))
    if len(trace.releases) != several.steps:
        faults.append(f"{len(trace.releases)} releases reached the optimizer in {several.steps} steps")
    if trace.ledger.releases != len(trace.releases):
        faults.append(f"{len(trace.releases)} releases left, and {trace.ledger.releases} are in the ledger")
    if trace.recorded_late:
        faults.append("a release was used before it was in the ledger")
    if trace.moved_between:
        faults.append("the weights moved between two steps of the optimizer: a displacement was kept")
    if any(entry.get("randomness") != subject.randomness for entry in trace.ledger.entries):
        faults.append("the ledger names another tier of randomness")
    recorded = epsilon(tuple(trace.ledger.events()), plan.budget.delta)
    if not math.isclose(recorded, several.epsilon, rel_tol=1e-6):
        faults.append(f"the ledger is worth ε = {recorded:.4g}, and the plan ε = {several.epsilon:.4g}")
    claimed = None if trace.certificate is None else trace.certificate.epsilon
    if claimed is None or not math.isclose(claimed, several.epsilon, rel_tol=1e-9):
        faults.append(f"the certificate claims ε = {claimed}, and the plan is worth {several.epsilon:.4g}")
    faults += _accountant(plan)
    tried = f"{several.steps} steps as a run records them, against the plan and what reached the optimizer"
    catch = (
        "releases that are not recorded, or late; another σ, rate, clip norm or tier in the ledger than in the plan; "
        "weights that stay displaced; an accountant that is wrong for a plain Gaussian"
    )
    return Check("ledger", tried, catch, tuple(faults), {"steps": several.steps})


def _entries(plan: Plan, entries: list[dict[str, object]]) -> list[str]:
    faults = []
    fixed = not isinstance(plan.clipping, QuantileClipping)
    for entry, phase in zip(entries, plan.schedule()):
        if entry["noise_multipliers"] != list(plan.query_noises(phase)):
            faults.append(
                f"the ledger has noise {entry['noise_multipliers']}, the plan {plan.query_noises(phase)}"
            )
        if entry["rate"] != plan.sampling.rate or entry.get("cap") != getattr(plan.sampling, "cap", None):
            faults.append("the ledger has another sampling than the plan")
        if fixed and entry["clip_norm"] != phase.clip_norm:
            faults.append(f"the ledger has clip norm {entry['clip_norm']}, the plan {phase.clip_norm}")
    return list(dict.fromkeys(faults))


def _accountant(plan: Plan) -> list[str]:
    """At rate one, T releases with σ are one with σ/√T, whose ε has a formula."""
    faults = []
    for sigma, steps in ((plan.effective_noise(plan.phases[0]), 1), (4.0, 9)):
        formula = gaussian_epsilon(sigma / math.sqrt(steps), plan.budget.delta)
        counted = epsilon([SampledGaussian(sigma, 1.0, steps)], plan.budget.delta)
        if not formula - 1e-6 <= counted <= formula * 1.02 + 1e-2:
            faults.append(f"the accountant says ε = {counted:.4g} for a Gaussian of ε = {formula:.4g}")
    return faults
