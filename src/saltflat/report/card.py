"""The privacy card: what a model hub should know of a run, as JSON and as Markdown with front matter."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import saltflat
from saltflat.record.canonical import plain_figure
from saltflat.report.facts import RunFacts
from saltflat.report.groups import final
from saltflat.report.spent import Spent
from saltflat.report.words import Verdict, meaning, not_covered

FORMAT = 1


def card(run: RunFacts, cost: Spent, verdict: Verdict) -> dict[str, Any]:
    """The card as plain data. It claims what the report claims: nothing, where the run was not verified."""
    claims = run.state in ("verified", "unfinished") and not run.makes_no_claim and verdict.kind != "bad"
    result = final(run)
    stated, plan = run.stated, run.plan
    return {
        "saltflat_card": FORMAT,
        "run": run.name,
        "verdict": {"kind": verdict.kind, "title": verdict.title, "sentences": list(verdict.sentences)},
        "verified": run.verification.passed,
        "state": run.state,
        "private": claims,
        "epsilon": plain_figure(cost.epsilon) if claims else "inf" if run.state == "not private" else None,
        "delta": cost.delta if claims else None,
        "epsilon_training": plain_figure(cost.training) if claims else None,
        "epsilon_replace_one": stated.get("epsilon_replace_one") if claims and not cost.evaluations else None,
        "private_evaluations": cost.evaluations,
        "unit": None if plan is None else plan.budget.unit,
        "relation": None if plan is None else plan.budget.relation,
        "population": None if plan is None else plan.sampling.population,
        "method": run.method,
        "accountant": stated.get("accountant"),
        "randomness": stated.get("randomness"),
        "data": run.told("data"),
        "model": run.told("model"),
        "result": None if result is None else {
            "measure": result.measure,
            "value": None if math.isnan(result.value) else result.value,
            "weights": "average" if result.averaged else "last iterate",
            "covered": result.label or "public rows",
        },
        "meaning": meaning(run, cost),
        "not_covered": not_covered(run),
        "audit": None if run.audit is None else {
            "passed": run.audit.passed,
            "of_this_plan": cost.is_audited(run),
            "epsilon_lower_bounds": {bound.attack: plain_figure(bound.lower) for bound in run.audit.bounds},
        },
        "plan_hash": None if plan is None else plan.hash,
        "certificate_sha256": run.verification.certificate_hash,
        "saltflat": saltflat.__version__,
    }  # fmt: skip


def card_json(data: dict[str, Any]) -> str:
    """The card as JSON."""
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def card_markdown(data: dict[str, Any]) -> str:
    """The card as Markdown with YAML front matter, as model hubs read it.

    Values in the front matter are JSON, which is YAML too, so no name can break out of its place.
    """
    verdict, result = data["verdict"], data["result"]
    epsilon = "none" if data["epsilon"] is None else data["epsilon"]
    facts = [
        ("ε", epsilon if isinstance(epsilon, str) else f"{epsilon:.6g}"),
        ("δ", "none" if data["delta"] is None else f"{data['delta']:g}"),
        ("for every", data["unit"]),
        ("relation", data["relation"]),
        ("declared population", data["population"]),
        ("method", data["method"]),
        ("data", data["data"]),
        ("model", data["model"]),
        ("accounting", _accounting(data["accountant"])),
        ("randomness", data["randomness"]),
        ("state", data["state"]),
    ]
    lines = [
        *_front_matter(data),
        "# Privacy card",
        "",
        f"**{plain(verdict['title'])}**",
        "",
        *(f"{plain(sentence)}\n" for sentence in verdict["sentences"]),
        *_rows(("what", "value"), [(name, value) for name, value in facts if value is not None]),
    ]
    if result is not None:
        value = "no number" if result["value"] is None else f"{result['value']:.4g}"
        lines += _rows(("result", "value", "weights", "covered"),
                       [(result["measure"], value, result["weights"], result["covered"])])  # fmt: skip
    lines += ["## What it means for a person in the data", ""]
    lines += [f"{plain(words)}\n" for words in data["meaning"]]
    lines += ["## What is not covered", "", *(f"- {plain(item)}" for item in data["not_covered"]), ""]
    if (audit := data["audit"]) is not None and audit["of_this_plan"]:
        bounds = audit["epsilon_lower_bounds"].items()
        caught = "Nothing was caught." if audit["passed"] else "**The audit caught a fault.**"
        lines += ["## Audit", "", caught, ""]
        lines += [*(f"- {plain(name)}: ε is at least {value}" for name, value in bounds), ""]
    lines += [
        "## How to check it",
        "",
        f"`saltflat verify FOLDER` (saltflat {plain(data['saltflat'])}). SHA-256 of certificate.json: "
        f"`{data['certificate_sha256'] or 'none'}`",
        "",
    ]
    return "\n".join(lines)


def _front_matter(data: dict[str, Any]) -> list[str]:
    result = data["result"]
    tags = ["differential-privacy", "saltflat", data["method"]]
    lines = ["---", "library_name: saltflat", f"tags: {_yaml(tags)}"]
    if data["data"] is not None:
        lines.append(f"datasets: {_yaml([data['data']])}")
    told = ("epsilon", "delta", "unit", "relation", "private", "verified", "state", "certificate_sha256")
    lines += ["privacy:", *(f"  {key}: {_yaml(data[key])}" for key in told)]
    if result is not None and result["value"] is not None:
        name = data["model"] or data["run"]
        measured = f"{result['measure']} of the {result['weights']} ({result['covered']})"
        lines += [
            "metrics:",
            f"- {_yaml(result['measure'])}",
            "model-index:",
            f"- name: {_yaml(name)}",
            "  results:",
            '  - task: {"type": "classification"}',
            f"    dataset: {_yaml({'name': data['data'] or 'unknown', 'type': data['data'] or 'unknown'})}",
            "    metrics:",
            f"    - {_yaml({'type': result['measure'], 'value': result['value'], 'name': measured})}",
        ]
    return [*lines, "---", ""]


def _yaml(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _accounting(accountant: Any) -> str | None:
    if not isinstance(accountant, dict):
        return None
    return f"{accountant.get('name')} {accountant.get('version')}"


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([plain(cell) for cell in row] for row in rows)]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


def plain(value: object) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, one line.

    >>> plain("<b>*x*|y")
    '&lt;b&gt;\\\\*x\\\\*\\\\|y'
    """
    words = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", words)
