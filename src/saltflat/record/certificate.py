"""The certificate: what the ledger shows, under which assumptions, in JSON and in words."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import saltflat
from saltflat.accounting import shares, used_grid
from saltflat.errors import InputError, newer_format
from saltflat.plan import Plan
from saltflat.record.agreement import sampling_facts
from saltflat.record.canonical import fingerprint, plain_figure
from saltflat.record.ledger import Ledger
from saltflat.record.page import page_of
from saltflat.record.public import NOT_COVERED as PUBLIC_NOT_COVERED
from saltflat.record.public import public_words

FORMAT = 2
"""2: hashes of all files, of the page and of the certificate itself; shares of phases; caps. 1 is still read."""

FILES = (
    "plan.json", "ledger.jsonl", "weights.safetensors", "average.safetensors", "metrics.jsonl", "model.json",
    "run.json", "tuning.jsonl",
)  # fmt: skip
"""What a certificate vouches for, byte by byte. The page and the certificate have hashes of their own."""

SEALS = ("page_sha256", "certificate_sha256")

NOT_COVERED = (
    "tuning: choosing settings by looking at results on the same private data",
    "evaluation data: accuracies are exact numbers about the data they were measured on",
    "diagnostics on private data: losses, gradient norms or curvature of private rows",
    "checks before the start: a run that was refused because of a label outside the classes says so",
    "public statistics: numbers declared in the plan, such as the population and the classes",
    "seeded noise: a run with a fixed seed is a test run, and claims nothing",
    "other runs: what else was trained on the same data; several runs cost more than one",
    "time and memory: how long a step takes depends on the size of its batch",
)

# What each tier of randomness does not protect from.
TIER_NOT_COVERED = {
    "fast": (
        "floating-point attacks: noise has the precision of float64",
        "prediction of the generator: it is torch's own, seeded by the operating system, not cryptographic",
    ),
    "secure": ("floating-point attacks: noise has the precision of float64",),
    "exact": (),
}

TRUST = "The process ran this plan as written; the ledger shows what it recorded, not that it was honest."


@dataclass(frozen=True)
class Certificate:
    """The claim of a run. ``data`` is its JSON; printing it gives the words."""

    data: dict[str, Any]

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Certificate:
        """Read what a run folder holds; a newer format is refused by name."""
        version = data.get("saltflat_certificate") if isinstance(data, dict) else None
        if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= FORMAT:
            raise newer_format("certificate", version, FORMAT)
        read = Certificate(data)
        try:  # all that it is asked for later
            sound = (read.epsilon >= 0, str(read), read.is_private, read.is_finished)[0]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(
                "certificate", type(error).__name__, "a certificate that saltflat wrote",
                problem=f"came up when it was read ({error}): it was changed or damaged",
            ) from error  # fmt: skip
        if not sound or (read.is_private and math.isinf(read.epsilon)):
            raise InputError("certificate", data["epsilon"], "epsilon >= 0, finite where the run is private")
        return read

    @property
    def epsilon(self) -> float:
        """The certified ε; infinite if the run is not private."""
        return math.inf if self.data["epsilon"] == "inf" else float(self.data["epsilon"])

    @property
    def is_private(self) -> bool:
        """Whether the run makes any claim at all."""
        return bool(self.data["private"])

    @property
    def is_finished(self) -> bool:
        """Whether the run came to the end of its plan."""
        return bool(
            self.data.get("finished", self.data["recorded_releases"] == self.data["planned_releases"])
        )

    def page(self) -> str:
        """The certificate for people, as one HTML page that needs nothing else."""
        return page_of({key: value for key, value in self.data.items() if key not in SEALS})

    def __str__(self) -> str:
        return "\n".join(_words(self.data))


def certify(
    plan: Plan,
    ledger: Ledger,
    *,
    randomness: str,
    seeded: bool,
    files: Mapping[str, str] | None = None,
    finished: bool = True,
    tuned_on: str | None = None,
    selection: dict[str, Any] | None = None,
    public: Sequence[dict[str, Any]] = (),
) -> Certificate:
    """The certificate of a run. It claims the whole plan's ε, also when the run stopped early.

    ``files`` are the hashes of the run's files. Everything else follows from plan and ledger, so that whoever
    has those two can make the certificate again and compare: that is what `saltflat.record.verify` does.
    ``tuned_on`` names public data on which settings were chosen. ``selection`` says of a run that it was the best
    of many, and what all of them cost together: then that is the claim. ``public`` lists the public data that was
    used, and on whose word it is public.
    """
    reasons = []
    if not plan.is_private:
        reasons.append("a release has no noise, or clipping is off")
    if seeded:
        reasons.append("the noise was drawn from a fixed seed and is predictable: a test run")
    if not reasons and math.isinf(plan.epsilon):
        reasons.append("the noise is too little for any finite ε")
    claimed = math.inf if reasons else plan.epsilon
    replaced = None if reasons else plan.epsilon_replace_one
    second = None if reasons else plan.epsilon_rdp
    accountant = "dp-accounting PLD"
    if selection is not None and not reasons:
        claimed, replaced, second = selection["epsilon"], None, None
        accountant = "dp-accounting RDP, repeat-and-select"
    first = [] if plan.survey is None else [plan.survey.event()]
    parts = shares([*first, *(plan.event(phase, phase.steps) for phase in plan.phases)])
    return sealed(
        {
            "saltflat_certificate": FORMAT,
            "private": not reasons,
            "why_not_private": reasons,
            "method": plan.method,
            "epsilon": plain_figure(claimed),
            "delta": plan.budget.delta,
            "unit": plan.budget.unit,
            "relation": plan.budget.relation,
            "epsilon_replace_one": replaced,
            "epsilon_rdp": second,
            "phases": [
                {
                    "name": phase.name,
                    "steps": phase.steps,
                    "noise_multipliers": list(plan.query_noises(phase)),
                    "clip_norm": "inf" if math.isinf(phase.clip_norm) else phase.clip_norm,
                    "epsilon_alone": plain_figure(plan.phase_epsilon(phase)),
                    "share": share,
                }
                for phase, share in zip(plan.phases, parts[len(first) :])
            ],
            **_surveyed(plan, parts),
            "clipping": str(plan.clipping),
            "sampler": {"kind": sampling_facts(plan)["sampler"]}
            | {key: value for key, value in sampling_facts(plan).items() if key in ("rate", "cap")},
            "population": plan.sampling.population,
            "divisor": plan.sampling.batch_size,
            "accountant": {
                "name": accountant,
                "version": importlib.metadata.version("dp-accounting"),
                "grid": plain_figure(used_grid(plan.events())),
            },
            "randomness": randomness,
            "seeded": seeded,
            "not_covered": [
                *_tuning_words(tuned_on, selection),
                *([PUBLIC_NOT_COVERED] if public else []),
                *TIER_NOT_COVERED.get(randomness, ()),
            ],
            "tuned_on": tuned_on,
            "selection": selection,
            **({"public": [dict(entry) for entry in public]} if public else {}),
            "trust": TRUST,
            **_federated(plan),
            "account": _account(ledger),
            "plan_hash": plan.hash,
            "planned_releases": plan.steps,
            "recorded_releases": ledger.releases,
            "finished": finished,
            "resumed": ledger.resumes,
            "ledger_entries": len(ledger.entries),
            "ledger_head": ledger.head,
            "files": dict(files or {}),
            "saltflat": saltflat.__version__,
        }
    )


def sealed(data: Mapping[str, Any]) -> Certificate:
    """The certificate with this content, the hash of its page and, last, its own hash added.

    The hash finds damage. Who changes a certificate on purpose can make it anew; a signature cannot be.
    """
    content = {key: value for key, value in data.items() if key not in SEALS}
    content["page_sha256"] = hashlib.sha256(page_of(content).encode()).hexdigest()
    return Certificate(content | {"certificate_sha256": fingerprint(content)})


def _federated(plan: Plan) -> dict[str, Any]:
    """Of a plan over clients: against whom the claim holds. Other certificates do not have the key."""
    if plan.federation is None:
        return {}
    shared = plan.shared_noise
    if shared is None:
        against = (
            "everyone who sees the models, and knows neither who took part in which round nor single updates; "
            "not the server, which sees every update and is trusted to clip, to add the noise and to keep quiet"
        )
    else:
        against = (
            "everyone who sees the models, and the server, which sees sums of at least "
            f"{shared.survivors} answers: as long as secure aggregation hides single answers, and at least "
            f"{shared.survivors} clients of every cohort add their noise and keep it to themselves"
        )
    return {"federation": {"noise": plan.federation.placement.kind, "released": str(plan.federation.mask),
                           "against": against}}  # fmt: skip


def _surveyed(plan: Plan, parts: Sequence[float]) -> dict[str, Any]:
    """Of a plan with a survey: what was released before the first step. Other certificates do not have the key."""
    if plan.survey is None:
        return {}
    return {
        "survey": {
            "columns": plan.survey.columns,
            "noise_multiplier": plan.survey.noise_multiplier,
            "epsilon_alone": plain_figure(plan.survey_epsilon),
            "share": parts[0],
        }
    }


def _account(ledger: Ledger) -> dict[str, Any] | None:
    """The account that covers the run, and its reservation there, if the ledger names one."""
    named = ledger.account
    return None if named is None else {key: named[key] for key in ("account", "account_id", "reservation")}


def _tuning_words(tuned_on: str | None, selection: dict[str, Any] | None) -> list[str]:
    first, *rest = NOT_COVERED
    if selection is not None:
        return [*rest, "the time that tuning took: it hints at how many trials there were"]
    if tuned_on is not None:
        return [f"{first}, beside the choice that was made on public data ({tuned_on})", *rest]
    return [first, *rest]


def _chosen(data: dict[str, Any]) -> list[str]:
    """How the settings were chosen, if that is known."""
    if (selection := data.get("selection")) is not None:
        return [
            f"Tuning is covered: the best of a random number of trials ({selection['law']}, "
            f"{selection['repeats']:g} expected) over {len(selection['candidates'])} settings, "
            f"by {selection['scored_by']}. One trial alone: ε = {selection['epsilon_alone']:.4g}."
        ]
    tuned_on = data.get("tuned_on")
    return [] if tuned_on is None else [f"Tuned on public data ({tuned_on}), which costs nothing."]


def _words(data: dict[str, Any]) -> list[str]:
    if not data["private"]:
        return ["NOT PRIVATE: this run makes no claim, because " + "; ".join(data["why_not_private"]) + "."]
    relation = {"add-remove": "added or removed", "zero-out": "emptied, the number of rows being public"}
    replaced = data["epsilon_replace_one"]
    beside = []
    if (survey := data.get("survey")) is not None:
        beside.append(
            f"Before training: noised histograms of {survey['columns']:,} columns of all rows, noise multiplier "
            f"{survey['noise_multiplier']:g}: {survey['share']:.1%} of the cost, within the total."
        )
    if (federation := data.get("federation")) is not None:
        beside.append(f"Holds against {federation['against']}.")
    beside += _chosen(data)
    beside += [
        f"Public data, which costs nothing: {public_words(entry)}." for entry in data.get("public", ())
    ]
    if (account := data.get("account")) is not None:
        named = f"{account['account']!r}, reservation {account['reservation']}"
        beside.append(f"Other runs: within the account {named}.")
    return [
        f"ε = {data['epsilon']:.4g}, δ = {data['delta']:g}, "
        f"when one {data['unit']} is {relation[data['relation']]}.",
        f"If one {data['unit']} is replaced by another instead, ε = {replaced:.4g}."
        if replaced is not None
        else "The figure for replacing a unit is not supported by the accountant here.",
        f"Sampling: {data['sampler']['kind']}, rate {data['sampler']['rate']:.6g} "
        f"of {data['population']:,} declared; every sum divided by {data['divisor']:g}, a public constant.",
        f"Accounting: {data['accountant']['name']} {data['accountant']['version']}, all phases jointly, "
        f"for {data['planned_releases']} planned releases ({data['recorded_releases']} recorded).",
        f"Noise: tier {data['randomness']}. Ledger: {data['ledger_entries']} entries, head {data['ledger_head']}.",
        *beside,
        "Not covered:",
        *[f"  - {item}" for item in data["not_covered"]],
        f"Assumption: {data['trust']}",
    ]
