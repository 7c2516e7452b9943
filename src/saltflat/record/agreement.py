"""Whether a ledger is that of a plan: the same plan, its steps in order, its noise, never more than planned."""

from __future__ import annotations

from saltflat.plan import Plan
from saltflat.record.ledger import Ledger, LedgerError


def check_agreement(ledger: Ledger, plan: Plan) -> None:
    """Refuse a ledger that records anything but a beginning of this plan, one release a step.

    Guarantees for a ledger that passes: no phase has more releases than planned, and each has the planned
    noise, sampling and number of queries, and the tier of the run; so its ε is at most the plan's.
    """
    if not ledger.entries or ledger.entries[0].get("kind") != "run":
        raise LedgerError("The ledger does not begin with the entry that opens a run.")
    if ledger.entries[0].get("plan_hash") != plan.hash:
        raise LedgerError("The ledger is that of another plan: the hash of the plan differs.")
    facts = sampling_facts(plan)
    step = 0
    for entry in ledger.entries[1:]:
        if entry["kind"] != "release":
            continue
        step += 1
        if step > plan.steps:
            raise LedgerError(f"The ledger records more releases than the plan's {plan.steps}.")
        number = plan.phase_number(step - 1)
        noises = list(plan.query_noises(plan.phases[number]))
        expected = {
            "step": step,
            "phase": number,
            "noise_multipliers": noises,
            "queries": len(noises),
            "randomness": ledger.entries[0].get("randomness"),
        } | facts
        for key, value in expected.items():
            if entry.get(key) != value:
                raise LedgerError(
                    f"Entry {entry['entry']} of the ledger has {key} = {entry.get(key)!r}; the plan says {value!r}."
                )


def sampling_facts(plan: Plan) -> dict[str, object]:
    """How a plan samples, as the ledger records it."""
    sampling = plan.sampling
    facts: dict[str, object] = {"sampler": sampling.kind, "rate": sampling.rate}
    if (cap := getattr(sampling, "cap", None)) is not None:
        facts |= {"population": sampling.population, "cap": cap}
    return facts
