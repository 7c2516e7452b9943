"""The verdict in words, and what ε and δ mean for a person in the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from saltflat.record.certificate import NOT_COVERED, TIER_NOT_COVERED
from saltflat.report.facts import RunFacts
from saltflat.report.figures import claimed, share
from saltflat.report.groups import final, released
from saltflat.report.spent import Spent

Kind = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class Verdict:
    """A title, sentences, and how good the news is. Plain text: a page escapes it."""

    kind: Kind
    title: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {sentence}" for sentence in self.sentences)])


def belief(prior: float, epsilon: float) -> float:
    """How sure someone can become, at most, who was ``prior`` sure that a unit is in the data (but for δ).

    By Bayes' rule, with likelihoods that differ by a factor of at most e^ε.

    >>> round(belief(0.5, 1.0), 2)
    0.73
    """
    if epsilon > 500:
        return 1.0
    odds = prior / (1 - prior) * math.exp(epsilon)
    return odds / (1 + odds)


def at_most(value: float) -> str:
    """A bound on a belief in percent, rounded up, with as many digits as it takes not to look certain.

    >>> at_most(0.731), at_most(0.99998), at_most(1.0)
    ('73.1 %', '99.998 %', '100 %')
    """
    for digits in (1, 2, 3, 4):
        rounded = math.ceil(100 * value * 10**digits - 1e-6) / 10**digits
        if rounded < 100:
            return f"{rounded:.{digits}f}".rstrip("0").rstrip(".") + " %"
    return "100 %"


def strength(epsilon: float) -> str:
    """The usual words for an ε (the three tiers of Ponomareva et al. 2023, "How to DP-fy ML")."""
    if epsilon <= 1:
        return "a strong formal guarantee"
    if epsilon <= 10:
        return "by custom a reasonable guarantee in practice (ε up to 10), and not a strong one"
    return "a weak guarantee, with little formal meaning"


def cost_words(cost: Spent) -> str:
    """ε and δ, and what they are made of."""
    if cost.epsilon is None or cost.delta is None:
        return "an ε that is not known"
    words = f"ε = {claimed(cost.epsilon)} at δ = {claimed(cost.delta)}"
    if cost.evaluations and cost.training is not None:
        several = "s" if cost.evaluations > 1 else ""
        words += f" (training {claimed(cost.training)}, with {cost.evaluations} private evaluation{several})"
    return words


def result_words(run: RunFacts) -> str:
    """What the model reached, and whether that number is itself private."""
    found, noisy = final(run), released(run)
    if found is None and noisy is not None:
        return f"The accuracy on private rows is {share(noisy)} (released with noise, and covered by ε)"
    if found is None:
        return "No accuracy was recorded"
    if math.isnan(found.value):
        return f"The {found.measure} is no number: training diverged"
    exact = f"an exact number about test rows, {found.label} by ε"
    label = exact if found.label else "measured on public rows"
    return f"The {found.measure} is {found.shown()} ({found.weights}; {label})"


def run_verdict(run: RunFacts, cost: Spent) -> Verdict:
    """What is to be said of one run before anything else."""
    data, model = run.told("data"), run.told("model")
    trained = (
        f"trained by {run.method}" + (f" on {data}" if data else "") + (f", model {model}" if model else "")
    )
    result = f"{result_words(run)}, {trained}."
    audit = run.audit
    if run.state == "damaged":
        return Verdict("bad", "NOT VERIFIED: do not rely on this run", (*_damage(run, cost), result))
    if audit is not None and audit.contradicts and cost.is_audited(run):
        caught = "An audit attacked this mechanism and caught it: the claim below does not hold."
        return Verdict(
            "bad", "CAUGHT BY AN AUDIT", (caught, *audit.faults, f"Claimed: {cost_words(cost)}.", result)
        )
    if run.makes_no_claim:
        seeded = "the noise was drawn from a fixed seed and is predictable"
        reasons = run.stated.get("why_not_private") or [seeded if run.is_seeded else "a release has no noise"]
        ended = "" if run.is_finished else f" It is also unfinished: {_progress(run)}."
        said = f"This run makes no claim, because {'; '.join(str(reason) for reason in reasons)}.{ended}"
        return Verdict("bad", "NOT PRIVATE", (said, result))
    if run.state == "unfinished":
        return Verdict("warn", f"UNFINISHED: {_progress(run)}", (*_unfinished(run, cost), result))
    second = " with two accountants that share no code" if run.verification.epsilon_second is not None else ""
    checked = (
        f"Every check of the run folder passed, and ε was computed again from the ledger{second}. "
        "That the process was honest, no file can show."
    )
    return Verdict("good", f"Verified: {cost_words(cost)}", (result, checked))


def _damage(run: RunFacts, cost: Spent) -> list[str]:
    found = run.verification
    failed = [finding for finding in found.findings if finding.status == "failed"]
    count = len(failed)
    words = [
        f"{count} check{'s' if count != 1 else ''} of the run folder failed ({', '.join(f.name for f in failed)}). "
        "It was changed, cut or damaged, and no ε can be claimed for it."
    ]
    words += [f"{finding.name}: {said}" for finding in failed for said in finding.found][:12]
    if cost.epsilon is not None:
        words.append(f"What can still be read of it has spent at least {cost_words(cost)}.")
    return words


def _progress(run: RunFacts) -> str:
    recorded = "some" if run.ledger is None else f"{run.ledger.releases:,}"
    planned = "the planned" if run.plan is None else f"{run.plan.steps:,}"
    return f"{recorded} of {planned} releases"


def _unfinished(run: RunFacts, cost: Spent) -> list[str]:
    words = [
        "The run was cut off, or is still under way."
        + ("" if run.certificate_is_there else " There is no certificate yet.")
        + f" The whole plan counts as spent: {cost_words(cost)}."
    ]
    if cost.by_ledger is not None and cost.training is not None and cost.by_ledger < cost.training:
        words.append(
            f"The releases so far alone come to ε = {claimed(cost.by_ledger)}. That is no claim: why it stopped may "
            "depend on the data."
        )
    return [*words, "The numbers below may still change."]


def runs_verdict(
    runs: Sequence[RunFacts], costs: Sequence[Spent], verdicts: Sequence[Verdict], won: str | None
) -> Verdict:
    """What is to be said of several runs: how many passed, which did not, who won, and what all of them cost."""
    bad, warn = (
        [f"{run.name}: {v.title}." for run, v in zip(runs, verdicts) if v.kind == kind]
        for kind in ("bad", "warn")
    )
    kind: Kind = "bad" if bad else "warn" if warn else "good"
    words = [*bad, *warn]
    passed = len(runs) - len(words)
    title = f"{passed} of {len(runs)} runs are verified" if words else f"{len(runs)} runs, all verified"
    if won is not None:
        words.append(won)
    labels = sorted({found.label for run in runs if (found := final(run)) is not None and found.label})
    if labels:
        words.append(f"Accuracies are exact numbers about test rows: {', '.join(labels)} by ε.")
    words.append(_together(runs, costs))
    return Verdict(kind, title, tuple(words))


def _together(runs: Sequence[RunFacts], costs: Sequence[Spent]) -> str:
    single = sorted({claimed(cost.epsilon) for cost in costs if cost.epsilon is not None})
    each = f"The runs cost ε = {', '.join(single)} alone"
    if len(single) == 1:
        each = f"Each run alone costs ε = {single[0]}"
    if any(cost.epsilon is None or cost.delta is None for cost in costs):
        return f"{each}; that of a damaged one is not known, so nothing can be said of all together."
    total = math.fsum(cost.epsilon or 0.0 for cost in costs)
    delta = math.fsum(cost.delta or 0.0 for cost in costs)
    if math.isinf(total):
        return f"{each}. All together are not private, because one of them is not."
    return (
        f"{each}. Whoever sees all {len(runs)} of them, trained on the same data, sees ε = {claimed(total)} at "
        f"δ = {claimed(delta)} at most (added up)."
    )


PRIORS = (0.01, 0.1, 0.5)


def meaning(run: RunFacts, cost: Spent) -> list[str]:
    """What the figures mean for someone in the data, in plain sentences."""
    unit, relation, population = _terms(run)
    words_for = _UNITS.get(unit, _UNITS[None])
    if run.state == "damaged" or run.makes_no_claim or cost.epsilon is None or math.isinf(cost.epsilon):
        return [f"For a {words_for.who} in the data this run promises nothing."]
    words = [
        f"Suppose {words_for.about}, and someone wonders whether you are in the data. They give it an even chance. "
        "After seeing the model, and everything else that this run has published, they can be at most "
        f"{at_most(belief(0.5, cost.epsilon))} sure. That holds whoever they are, whatever else they know, and "
        f"whatever they do with the model later. It is {strength(cost.epsilon)}."
    ]
    if cost.delta is not None:
        words.append(
            f"δ = {claimed(cost.delta)} is the share of bad luck that this bound leaves open: about one in "
            f"{1 / cost.delta:,.0f}."
        )
        if isinstance(population, int) and cost.delta * population >= 1:
            words.append("That is too large: it is not below one over the number of units in the data.")
    words.append(words_for.promise)
    words.append(
        "In or out means: the unit is there or not, and how many there are is secret."
        if relation == "add-remove"
        else "In or out means: the unit is there or blanked. How many there are, and the classes, are public."
    )
    replaced = run.stated.get("epsilon_replace_one")
    if isinstance(replaced, float) and not cost.evaluations:
        words.append(
            f"If you were exchanged for another instead, the same run is worth ε = {claimed(replaced)}."
        )
    words.append(
        "It does not promise that the model tells nothing about you: what holds for people like you can be learned "
        "without you."
    )
    return [sentence for sentence in words if sentence]


def seen_together(costs: Sequence[Spent]) -> str | None:
    """What changes for someone who sees all runs, if that can be said."""
    known = [cost.epsilon for cost in costs if cost.epsilon is not None]
    if len(known) < max(2, len(costs)) or math.isinf(total := math.fsum(known)):
        return None
    return (
        f"Someone who sees all {len(costs)} runs, and not this one alone, can become "
        f"{at_most(belief(0.5, total))} sure at most (ε = {claimed(total)}): publish one of them, or count them all."
    )


def belief_rows(epsilon: float) -> list[tuple[str, str]]:
    """How sure someone was before, and can be at most after."""
    return [(share(prior, 0), at_most(belief(prior, epsilon))) for prior in PRIORS]


class _Unit(NamedTuple):
    """How a reader is spoken to about what is protected."""

    who: str
    about: str
    promise: str


_UNITS = {
    "example": _Unit("row", "one row of the data is about you",
                     "The promise is for one row. If several rows are about you, it is weaker for you."),
    "person": _Unit("person", "there are rows about you", "The promise is for all rows of one person together."),
    "client": _Unit("client", "you are one of the clients",
                    "The promise is for everything that one client holds."),
    None: _Unit("unit", "one unit of the data is about you", ""),
}  # fmt: skip


def _terms(run: RunFacts) -> tuple[Any, Any, Any]:
    """Unit, relation and population, by the plan or else by the certificate."""
    if run.plan is not None:
        return run.plan.budget.unit, run.plan.budget.relation, run.plan.sampling.population
    return run.stated.get("unit"), run.stated.get("relation"), run.stated.get("population")


def not_covered(run: RunFacts) -> list[str]:
    """What no ε of this run is about: by its certificate, or what holds for every run."""
    stated = run.stated.get("not_covered")
    if isinstance(stated, list) and stated:
        return [str(item) for item in stated]
    return [*NOT_COVERED, *TIER_NOT_COVERED.get(str(run.opened.get("randomness")), ())]
