"""Whether a ledger is that of a plan: the same plan, its steps in order, its noise, never more than planned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from saltflat.errors import is_number
from saltflat.plan import Plan, QuantileClipping
from saltflat.record.canonical import same
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
    _check_survey(ledger, plan)
    expected = _expected(plan, ledger.entries[0].get("randomness"))
    for step, entry in enumerate(ledger.of_kind("release"), start=1):
        facts = next(expected, None)
        if facts is None:
            raise LedgerError(f"The ledger records more releases than the plan's {plan.steps}.")
        _check_facts(entry, {"step": step} | facts)


def _check_facts(entry: dict[str, Any], planned: dict[str, Any], by: str = "the plan says") -> None:
    for key, value in planned.items():
        if not same(entry.get(key), value):
            raise LedgerError(
                f"Entry {entry['entry']} of the ledger has {key} = {entry.get(key)!r}; {by} {value!r}."
            )


def _check_survey(ledger: Ledger, plan: Plan) -> None:
    """The plan's survey, once and with its noise, before the first release; none where none is planned."""
    kinds = [entry["kind"] for entry in ledger.entries]
    found = ledger.of_kind("survey")
    if plan.survey is None:
        if found:
            raise LedgerError("The ledger records a survey, and the plan has none.")
        return
    first = kinds.index("release") if "release" in kinds else len(kinds)
    if len(found) > 1 or (first < len(kinds) and "survey" not in kinds[:first]):
        raise LedgerError("The ledger does not record the plan's one survey before the first release.")
    for entry in found:
        planned = {
            "columns": plan.survey.columns, "noise_multiplier": plan.survey.noise_multiplier, "rate": 1.0,
            "plan_hash": plan.hash, "randomness": ledger.entries[0].get("randomness"),
        }  # fmt: skip
        _check_facts(entry, planned)


def _expected(plan: Plan, tier: object) -> Iterator[dict[str, object]]:
    """What the ledger should say of each step, in order."""
    for number, phase in enumerate(plan.phases):
        noises = list(plan.query_noises(phase))
        facts = {
            "phase": number, "noise_multipliers": noises, "queries": len(noises), "randomness": tier,
        } | sampling_facts(plan)  # fmt: skip
        yield from itertools.repeat(facts, phase.steps)


def sampling_facts(plan: Plan) -> dict[str, object]:
    """How a plan samples, as the ledger records it."""
    if plan.shared_noise is not None:  # everyone may know who is in a cohort: sampling does not count
        return {"sampler": "public-cohorts", "rate": 1.0}
    sampling = plan.sampling
    facts: dict[str, object] = {"sampler": sampling.kind, "rate": sampling.rate}
    if (cap := getattr(sampling, "cap", None)) is not None:
        facts |= {"population": sampling.population, "cap": cap}
    return facts


_LINKS = {"entry", "kind", "previous", "hash"}
_KEYS = {
    "run": _LINKS | {"format", "plan_hash", "randomness", "seeded", "planned_releases"},
    "release": _LINKS | {
        "plan_hash", "step", "phase", "queries", "noise_multipliers", "clip_norm", "sampler", "rate", "randomness",
    },
    "survey": _LINKS | {"plan_hash", "columns", "noise_multiplier", "rate", "randomness"},
    "resume": _LINKS | {"step", "replayed", "lost", "randomness"},
    "aborted": _LINKS | {"step", "answers", "needed", "randomness"},
    "account": _LINKS | {"account", "account_id", "reservation"},
}  # fmt: skip


def check_entries(ledger: Ledger, plan: Plan) -> None:
    """Refuse a ledger with anything in it that a run of this plan would not have written.

    Stricter than `check_agreement`, which must hold as well: no entry of another kind, no key too many or too
    few, one tier, the planned clip norms, and resumes that go on where the releases before them ended.
    """
    check_agreement(ledger, plan)
    opened = ledger.entries[0]
    seeded = opened.get("seeded") is True
    recorded = 0
    for entry in ledger.entries:
        kind, number = entry["kind"], entry["entry"]
        keys = _KEYS.get(kind, set())
        if kind == "release" and "cap" in sampling_facts(plan):
            keys = keys | {"cap", "population"}
        out_of_place = (kind == "run") != (number == 0) or (kind == "account" and number != 1)
        if out_of_place or entry.keys() != keys:
            raise LedgerError(f"Entry {number} of the ledger is not one that a run writes there.")
        if kind == "account":
            _check_account(entry)
            continue
        if kind == "survey":
            continue  # looked at above
        wanted: dict[str, Any] = {"randomness": opened["randomness"]}
        if kind == "run":
            wanted |= {"planned_releases": plan.steps, "seeded": seeded}
        elif kind == "release":
            recorded += 1
            wanted |= {"plan_hash": plan.hash}
            _check_clip_norm(entry, plan)
        elif kind == "aborted":
            _check_aborted(entry, plan, recorded)
        else:
            _check_resume(entry, recorded, seeded=seeded)
        _check_facts(entry, wanted, "expected")


def _check_clip_norm(entry: dict[str, Any], plan: Plan) -> None:
    stated, planned = entry["clip_norm"], plan.phases[entry["phase"]].clip_norm
    value = float("inf") if stated == "inf" else stated
    adapts = isinstance(plan.clipping, QuantileClipping)
    if not is_number(value) or not (0 < value < float("inf") if adapts else value == planned):
        raise LedgerError(
            f"Entry {entry['entry']} of the ledger has clip_norm = {stated!r}; the plan says {planned!r}."
        )


def _check_aborted(entry: dict[str, Any], plan: Plan, recorded: int) -> None:
    """Of a round with too few answers: the last one that was recorded, in a plan whose clients share the noise."""
    shared, answers = plan.shared_noise, entry["answers"]
    sound = shared is not None and same(entry["step"], recorded) and same(entry["needed"], shared.survivors)
    if not sound or type(answers) is not int or not 0 <= answers < entry["needed"]:
        raise LedgerError(
            f"Entry {entry['entry']} of the ledger does not record an aborted round of this plan."
        )


def _check_account(entry: dict[str, Any]) -> None:
    if not all(isinstance(entry[key], str) for key in ("account", "account_id", "reservation")):
        raise LedgerError(f"Entry {entry['entry']} of the ledger does not name an account and a reservation.")


def _check_resume(entry: dict[str, Any], recorded: int, *, seeded: bool) -> None:
    """A run goes on after the last recorded step; a seeded one may draw a lost release again."""
    step, replayed, lost = entry["step"], entry["replayed"], entry["lost"]
    counts = [step, replayed, *lost] if isinstance(lost, list) else [None]
    sound = all(type(count) is int and count >= 0 for count in counts)
    if sound:
        sound = (step <= recorded if seeded else step == recorded) and replayed <= step
        sound = sound and lost == list(range(step - len(lost) + 1, step + 1)) and len(lost) <= step
    if not sound:
        raise LedgerError(
            f"Entry {entry['entry']} of the ledger does not go on where the releases before it end."
        )
