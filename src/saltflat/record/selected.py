"""A run that was chosen among many: what its certificate says of the choice, and whether the records agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from saltflat.accounting.selection import Repetitions, repeated_epsilon
from saltflat.plan import Plan
from saltflat.plan.tuning import plain_events, repeated_from_dict
from saltflat.record.canonical import DamagedError, fingerprint, parsed, same
from saltflat.record.ledger import Ledger

TUNING = "tuning.jsonl"
MOST_CANDIDATES = 1000


def tuned_on(facts: Any) -> str | None:
    """The public data that settings were chosen on, if the caller's facts say so: the caller's word."""
    named = facts.get("tuned_on") if isinstance(facts, dict) else None
    return named if isinstance(named, str) else None


def selection_of(declared: Mapping[str, Any], settings: Mapping[str, Any], score: float) -> dict[str, Any]:
    """What a certificate says of a choice: what was declared, what it costs by that alone, and what was chosen."""
    repeated, delta = repeated_from_dict(declared)
    noise = repeated.score_noise
    return dict(declared) | {
        "tuning_hash": fingerprint(declared),
        "epsilon": repeated_epsilon(repeated, delta),
        "epsilon_alone": repeated_epsilon(replace(repeated, repetitions=Repetitions(1.0)), delta),
        "scored_by": "right answers on public rows"
        if noise is None
        else f"a count of right answers on held-out private rows with noise {noise:g}",
        "chosen": dict(settings),
        "score": score,
    }


def recorded_selection(folder: Path, plan: Plan, ledger: Ledger) -> dict[str, Any] | None:
    """The choice by the folder's own record of it, computed again; None if the run was not chosen among many.

    Refuses a record that is not that of this plan and this ledger, or that declares another δ.
    """
    path = folder / TUNING
    if not path.exists():
        return None
    entries = Ledger.read(path).entries
    if [entry["kind"] for entry in entries] != ["tuning", "selected"]:
        raise DamagedError(f"{TUNING} does not hold a declaration and a choice.")
    opened, chosen = entries
    declared = parsed(json.dumps(opened["tuning"]).encode(), TUNING)
    candidates = declared["candidates"]
    if len(candidates) > MOST_CANDIDATES:
        raise DamagedError(f"{TUNING} declares {len(candidates):,} candidates.")
    wanted = {"settings": chosen["settings"], "plan_hash": plan.hash, "events": plain_events(plan)}
    if not any(same(candidate, wanted) for candidate in candidates):
        raise DamagedError(f"{TUNING} declares no candidate with this plan and these settings.")
    facts = {
        "plan_hash": (chosen["plan_hash"], plan.hash),
        "ledger_head": (chosen["ledger_head"], ledger.head),
        "delta": (declared["delta"], plan.budget.delta),
        "seeded": (opened["seeded"], ledger.entries[0].get("seeded")),
        "randomness": (opened["randomness"], ledger.entries[0].get("randomness")),
    }
    for key, (stated, expected) in facts.items():
        if not same(stated, expected):
            raise DamagedError(f"{TUNING} has {key} = {stated!r}; the run has {expected!r}.")
    return selection_of(declared, chosen["settings"], chosen["score"])
