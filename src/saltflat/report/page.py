"""The page: the verdict in words first, then what it rests on. One file without scripts or anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import saltflat
from saltflat.accounting import shares
from saltflat.record.certificate import SEALS
from saltflat.record.markup import bullets, document, table, text
from saltflat.record.page import body_of
from saltflat.report.audits import audit_section
from saltflat.report.bars import stacked_bar
from saltflat.report.contest import deviation_of
from saltflat.report.curves import comparison, curves, private_evaluations, standings
from saltflat.report.facts import RunFacts
from saltflat.report.figures import claimed, number, scrolled, share
from saltflat.report.geometries import geometry_section
from saltflat.report.groups import Group, final, released
from saltflat.report.repeat import command, python
from saltflat.report.spent import Spent
from saltflat.report.style import STYLE
from saltflat.report.words import Verdict, belief_rows, meaning, not_covered, seen_together


def page(
    runs: Sequence[RunFacts],
    costs: Sequence[Spent],
    groups: Sequence[Group],
    verdicts: Sequence[Verdict],
    verdict: Verdict,
) -> str:
    """The report of these runs as HTML. ``verdict`` is that of all together."""
    single = len(runs) == 1
    title = f"Report: {runs[0].name}" if single else f"Report: {len(runs)} private training runs"
    sections = [
        ("verdict", "Verdict", _verdict(runs, costs, groups, verdicts, verdict)),
        ("accuracy", "Accuracy, and what it cost", [*curves(groups), *_evaluations(runs)]),
        ("phases", "Phases: noise and cost", _phases(groups)),
        ("geometry", "Geometry", _geometry(runs, groups)),
        *([] if single else [("comparison", "Comparison of methods", comparison(groups))]),
        ("audit", "Audit: ε from below", _audits(runs, costs)),
        ("certificate", "Certificate" if single else "Certificates", _certificates(runs, verdicts)),
        ("repeat", "To repeat it", _repeat(runs, groups)),
    ]
    links = "".join(f'<li><a href="#{name}">{text(words)}</a></li>' for name, words, _ in sections)
    body = [
        f"<header><h1>{text(title)}</h1>",
        f'<p class="sub">Made by saltflat {text(saltflat.__version__)} from '
        f"{text(str(runs[0].path)) if single else f'{len(runs)} run folders'}. This page needs no network.</p>",
        f'<nav aria-label="Contents"><ul>{links}</ul></nav></header>',
        "<main>",
        *(
            f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{text(words)}</h2>\n'
            + "\n".join(parts)
            + "</section>"
            for name, words, parts in sections
        ),
        "</main>",
    ]
    return document(title, body, STYLE)


# --- the verdict ------------------------------------------------------------------------------------


def _verdict(
    runs: Sequence[RunFacts],
    costs: Sequence[Spent],
    groups: Sequence[Group],
    verdicts: Sequence[Verdict],
    verdict: Verdict,
) -> list[str]:
    parts = [_box(verdict), *_tiles(runs, costs, groups)]
    problems = [problem for run in runs for problem in run.problems]
    parts += [f'<p class="note">{text(problem)}</p>' for problem in problems]
    if len(runs) > 1:
        parts.append(_overview(runs, costs, verdicts))
    # what is said for a person in the data is said of the run that promises least
    least = [math.inf if cost.epsilon is None else cost.epsilon for cost in costs]
    place = max(range(len(runs)), key=lambda p: (least[p], -p))
    run, cost = runs[place], costs[place]
    parts.append("<h3>What this means for a person in the data</h3>")
    if len(runs) > 1:
        parts.append(f'<p class="note">For the run that promises least, {text(run.name)}, alone.</p>')
    parts += [f"<p>{text(sentence)}</p>" for sentence in meaning(run, cost)]
    if cost.epsilon is not None and math.isfinite(cost.epsilon) and run.state != "damaged":
        rows = table(("how sure someone was before", "at most after"), belief_rows(cost.epsilon))
        parts.append(rows.replace("<table>", '<table class="narrow">'))
    if (words := seen_together(costs)) is not None:
        parts.append(f"<p>{text(words)}</p>")
    parts += ["<h3>What is not covered</h3>", bullets(not_covered(run))]
    return parts


def _box(verdict: Verdict) -> str:
    words = "".join(f"<p>{text(sentence)}</p>" for sentence in verdict.sentences)
    return f'<div class="claim {verdict.kind}"><p class="figure">{text(verdict.title)}</p>{words}</div>'


def _tiles(runs: Sequence[RunFacts], costs: Sequence[Spent], groups: Sequence[Group]) -> list[str]:
    """The few numbers that one looks for first."""
    tiles = []
    if len(runs) > 1:
        for label, values in standings(groups).items():
            spread = deviation_of(values)
            said = "one run" if spread is None else f"± {100 * spread:.2f} between {len(values)} runs"
            tiles.append((label, share(math.fsum(values) / len(values)), said))
        return [_tile_list(tiles)] if tiles else []
    run, cost, result = runs[0], costs[0], final(runs[0])
    if result is not None:
        label = f"{result.label} by ε" if result.label else "on public rows"
        tiles.append((result.measure.capitalize(), result.shown(), f"{result.weights}, {label}"))
    elif (noisy := released(run)) is not None:
        tiles.append(("Accuracy", share(noisy), "on private rows, with noise: covered by ε"))
    if run.state == "damaged":
        tiles.append(("ε", "no claim", "the run was not verified"))
    elif cost.epsilon is not None and cost.delta is not None:
        said = "not private" if math.isinf(cost.epsilon) else "smaller is more private; 0 tells nothing"
        tiles.append(("ε", claimed(cost.epsilon), said))
        tiles.append(("δ", claimed(cost.delta), f"about one in {1 / cost.delta:,.0f}"))
    if run.plan is not None:
        recorded = 0 if run.ledger is None else run.ledger.releases
        tiles.append(("Releases", f"{recorded:,}", f"of {run.plan.steps:,} planned"))
    return [_tile_list(tiles)]


def _tile_list(tiles: Sequence[tuple[str, str, str]]) -> str:
    items = [f"<div><dt>{text(a)}</dt><dd>{text(b)}<small>{text(c)}</small></dd></div>" for a, b, c in tiles]
    return f'<dl class="tiles">{"".join(items)}</dl>'


def _overview(runs: Sequence[RunFacts], costs: Sequence[Spent], verdicts: Sequence[Verdict]) -> str:
    rows = []
    for run, cost, verdict in zip(runs, costs, verdicts):
        result = final(run)
        claims = run.state != "damaged" and cost.epsilon is not None
        state = verdict.title.partition(":")[0]
        mark = "passed" if verdict.kind == "good" else "failed"
        rows.append(
            (
                text(run.name), text(run.method), f'<span class="{mark}">{text(state)}</span>',
                "–" if result is None else result.shown(2),
                claimed(cost.epsilon) if claims and cost.epsilon is not None else "no claim",
                claimed(cost.delta) if claims and cost.delta is not None else "–",
            )
        )  # fmt: skip
    head = ("run", "method", "verification", "result", "ε", "δ")
    content = scrolled(table(head, rows, words=(1, 2)), "All runs")
    opened = " open" if len(runs) <= 12 else ""
    return f"<details{opened}><summary>All {len(runs)} runs</summary>{content}</details>"


# --- what it rests on -------------------------------------------------------------------------------


def _evaluations(runs: Sequence[RunFacts]) -> list[str]:
    several = len(runs) > 1
    return [
        part
        for run in runs
        for part in private_evaluations(f", {run.name}" if several else "", run.evaluations)
    ]


def _phases(groups: Sequence[Group]) -> list[str]:
    if not groups:
        return ["<p>No plan can be read.</p>"]
    several = len(groups) > 1
    rows, bars = [], []
    notes: dict[str, list[str]] = {}
    for group in groups:
        plan = group.plan
        costs = shares([plan.sampling.event(plan.effective_noise(p), p.steps) for p in plan.phases])
        names = [phase.name or f"phase {place}" for place, phase in enumerate(plan.phases, start=1)]
        for name, phase, cost in zip(names, plan.phases, costs):
            rows.append(
                (
                    *((text(group.label),) if several else ()), text(name), text(phase.ascent), f"{phase.steps:,}",
                    ", ".join(number(noise, 6) for noise in plan.query_noises(phase)), number(phase.clip_norm),
                    "optimizer's own" if phase.learning_rate is None else number(phase.learning_rate),
                    number(plan.phase_epsilon(phase)), share(cost),
                )
            )  # fmt: skip
        if len(plan.phases) > 1:
            bars.append(stacked_bar(f"Where the budget of {group.label} went", list(zip(names, costs))))
        survey = f"before the first step: {plan.survey}; " if plan.survey is not None else ""
        total = f"{survey}all phases jointly: ε = {number(plan.epsilon)} at δ = {number(plan.budget.delta)}"
        notes.setdefault(f"{plan.sampling}; {total}.", []).append(group.label)
    head = ("phase", "ascent", "steps", "noise σ", "clip norm", "learning rate", "ε alone", "share of cost")
    words = (1, 2) if several else (1,)
    shown = ("method", *head) if several else head
    return [
        scrolled(table(shown, rows, words), "Phases with noise and cost"),
        *(
            f'<p class="note">{text(", ".join(labels) + ": " if len(notes) > 1 else "")}{text(note)}</p>'
            for note, labels in notes.items()
        ),
        f'<div class="figures">{"".join(bars)}</div>' if bars else "",
        '<p class="note">The ε of phases does not add up: they are accounted together. The share is that of the Rényi '
        "divergence of order 2, which adds up.</p>",
    ]


def _geometry(runs: Sequence[RunFacts], groups: Sequence[Group]) -> list[str]:
    """All runs in numbers; of each method the first one that was measured in pictures."""
    measured = [[run.name for run in group.runs if run.geometry is not None] for group in groups]
    shown = [names[0] for names in measured if names]
    shown = shown or [run.name for run in runs if run.geometry is not None][:1]
    return geometry_section([(run.name, str(run.path), run.geometry) for run in runs], shown)


def _audits(runs: Sequence[RunFacts], costs: Sequence[Spent]) -> list[str]:
    audited = [(run, cost) for run, cost in zip(runs, costs) if run.audit is not None]
    if not audited:
        return audit_section(None, True, f"saltflat audit {runs[0].path} --json > {runs[0].path}/audit.json")
    parts = []
    for run, cost in audited:
        if len(runs) > 1:
            parts.append(f"<h3>{text(run.name)}</h3>")
        parts += audit_section(run.audit, cost.is_audited(run), "")
    return parts


def _certificates(runs: Sequence[RunFacts], verdicts: Sequence[Verdict]) -> list[str]:
    parts = []
    for run, verdict in zip(runs, verdicts):
        content = [_checks(run, opened=verdict.kind != "good"), *_certificate(run)]
        if len(runs) == 1:
            parts += content
        else:
            parts.append(
                f"<details><summary>{text(run.name)}: {text(verdict.title)}</summary>{''.join(content)}</details>"
            )
    return parts


def _checks(run: RunFacts, opened: bool) -> str:
    rows = []
    for f in run.verification.findings:
        mark = "failed" if f.status in ("failed", "not tried") else "passed"
        said = "FAILED" if f.status == "failed" else f.status
        found = "".join(f"<br><small>{text(words)}</small>" for words in f.found)
        rows.append((text(f.name), f'<span class="{mark}">{said}</span>', text(f.means) + found))
    passed = sum(f.status == "passed" for f in run.verification.findings)
    return (
        f"<details{' open' if opened else ''}><summary>What saltflat verify found: {passed} checks passed</summary>"
        + scrolled(table((), rows), f"Checks of {run.name}")
        + "</details>"
    )


def _certificate(run: RunFacts) -> list[str]:
    if run.certificate is None:
        there = "cannot be read" if run.certificate_is_there else "is not there: the run is not finished"
        return [f"<p>The certificate {there}.</p>"]
    warning = '<p class="failed">This certificate does not hold: the run was not verified.</p>'
    body = body_of({key: value for key, value in run.certificate.items() if key not in SEALS})
    # its headings stand below those of this page
    shown = [part.replace("<h2>", "<h4>").replace("</h2>", "</h4>") for part in body[1:]]
    shown = [scrolled(p, "Part of the certificate") if p.startswith("<table>") else p for p in shown]
    return [
        *([warning] if run.state == "damaged" else []),
        f'<div class="certificate">{"".join(shown)}</div>',
    ]


def _repeat(runs: Sequence[RunFacts], groups: Sequence[Group]) -> list[str]:
    """The command and the plan of each group. Noise is fresh, so numbers will differ a little."""
    if not groups:
        return ["<p>No plan can be read, so nothing can be repeated.</p>"]
    parts = []
    for group in groups:
        run = group.runs[0]
        if len(groups) > 1:
            parts.append(f"<h3>{text(group.label)}</h3>")
        if (said := command(run)) is not None:
            parts.append(f"<p>The command:</p><pre>{text(said)}</pre>")
        if run.stated.get("selection") is not None:
            parts.append("<p>These settings were chosen by a tuning; this repeats the chosen run alone.</p>")
        if said is None:
            parts.append(
                "<p>The run was not started by <code>saltflat train</code>. In Python:</p>"
                f"<pre>{text(python(run))}</pre>"
            )
        parts += [
            f"<p>The plan, whose hash is <code>{text(group.plan.hash)}</code>:</p>",
            f"<pre>{text(group.plan.table())}</pre>",
            "<details><summary>The whole plan as JSON (plan.json)</summary>"
            f"<pre>{text(group.plan.to_json())}</pre></details>",
        ]
    parts.append(
        '<p class="note">Noise and sampling are drawn anew each time, and cost their ε again: accuracies will differ a '
        "little, ε will not.</p>"
    )
    return parts
