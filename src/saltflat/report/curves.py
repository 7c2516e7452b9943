"""Accuracy against epochs and against ε spent; accuracies that were released with noise; methods side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from saltflat.errors import is_number
from saltflat.record.ledger import Ledger
from saltflat.record.markup import table, text
from saltflat.report.bars import Bar, row_chart
from saltflat.report.contest import contest, summarise
from saltflat.report.figures import Chart, Series, claimed, line_chart, number, scrolled, share
from saltflat.report.groups import Group, Place, figure_in, final, measure_of
from saltflat.report.spent import MOST_POINTS


def curves(groups: Sequence[Group]) -> list[str]:
    """Two figures: over epochs and over ε. One run shows its last iterate and its average, several their mean."""
    measure = next(
        (found for group in groups for run in group.runs if (found := measure_of(run)) is not None), None
    )
    if measure is None:
        return [
            "<p>Nothing was measured on the way: the run had no test rows. "
            "<code>saltflat evaluate RUN --epsilon 0.1</code> releases an accuracy with noise.</p>"
        ]
    single = len(groups) == 1 and len(groups[0].runs) == 1
    if single:
        named = [("last iterate", measure), ("average of iterates", f"average_{measure}")]
        lines = [(name, groups[0].places(key)) for name, key in named]
    else:
        lines = [(group.label, group.places(f"final {measure}")) for group in groups]
    lines = [(name, places) for name, places in lines if places]
    if not lines:
        return ["<p>No evaluation of these runs holds a number that could be drawn.</p>"]
    labels = {f.label for group in groups for run in group.runs if (f := final(run)) is not None and f.label}
    about = f"Measured exactly on test rows: {', '.join(sorted(labels))} by ε." if labels else (
        "Measured on public rows, which no ε needs to cover."
    )  # fmt: skip
    if not single and any(len(place.values) > 1 for _, places in lines for place in places):
        about += " Lines are means over runs, bands reach from the lowest to the highest run."
    if any(len(places) == MOST_POINTS for _, places in lines):
        about += f" {MOST_POINTS} of the evaluations are shown."
    marks = _switches(groups[0]) if len(groups) == 1 else []
    first = _chart(measure, "epochs", lines, about, single, marks)
    paid = [(name, [place for place in places if place.epsilon is not None]) for name, places in lines]
    paid = [(name, places) for name, places in paid if any(math.isfinite(p.epsilon or 0) for p in places)]
    if paid:
        note = "ε is computed from the ledger's releases up to each evaluation. Stopping there would not earn it: "
        if any(run.stated.get("selection") is not None for group in groups for run in group.runs):
            note = f"A ledger holds the chosen trial alone; the verdict's ε is for all trials and the choice. {note}"
        second = _chart(
            measure, "ε", paid, note + "only a number of steps that was declared beforehand does.", single
        )
    else:
        second = '<p class="note">There is no curve against ε: these runs make no claim that a ledger bears out.</p>'
    return [f'<div class="figures">{first}{second}</div>']


def _chart(
    measure: str,
    over: str,
    lines: Sequence[tuple[str, Sequence[Place]]],
    note: str,
    single: bool,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    percent = measure == "accuracy"
    shown = share if percent else number
    series, rows = [], []
    for style, (name, places) in enumerate(lines):
        points = [(p.epoch if over == "epochs" else p.epsilon or 0.0, p.mean) for p in places]
        several = any(len(place.values) > 1 for place in places)
        band = [(min(p.values), max(p.values)) for p in places] if several else []
        series.append(Series(name, points, band, style))
        for p in places:
            cost = "–" if p.epsilon is None else number(p.epsilon)
            spread = () if single else (shown(min(p.values)), shown(max(p.values)))
            rows.append((text(name), f"{p.step:,}", number(p.epoch), cost, shown(p.mean), *spread))
    head = ("", "step", "epoch", "ε spent", measure, *(() if single else ("lowest", "highest")))
    what = "Accuracy" if percent else "Loss"
    name = f"{what} on test rows against {'epochs' if over == 'epochs' else 'ε spent'}"
    label = "epoch" if over == "epochs" else "ε spent so far"
    unit = "accuracy, %" if percent else "loss"
    return line_chart(
        Chart(name, label, unit, series, marks, percent=percent, note=note, head=head, rows=rows)
    )


def _switches(group: Group) -> list[tuple[float, str]]:
    """Where one phase ends and the next one begins, in epochs."""
    plan, done, marks = group.plan, 0, []
    for before, after in zip(plan.phases, plan.phases[1:]):
        done += before.steps
        marks.append((done * plan.sampling.rate, f"{after.name or 'next phase'} from here on"))
    return marks if len(marks) <= 3 else []


def private_evaluations(name: str, record: Ledger | None) -> list[str]:
    """Accuracies that were released with noise: these are covered, each by its own ε."""
    if record is None:
        return []
    found: list[tuple[dict[str, Any], dict[str, Any] | None]] = []  # each as it was opened, and its result
    for entry in record.entries:
        if entry["kind"] == "evaluation":
            found.append((entry, None))
        elif entry["kind"] == "result" and found and found[-1][1] is None:
            found[-1] = (found[-1][0], entry)
    if not found:
        return []
    rows = [_evaluation(*each) for each in found]
    head = ("released with noise", "accuracy", "exact one between (95 %)", "ε", "δ")
    return [
        f"<h3>Accuracy on private rows{text(name)}</h3>",
        "<p>Released with noise, and covered: each by an ε of its own, which the verdict counts.</p>",
        scrolled(table(head, rows), "Accuracies on private rows, with noise"),
    ]


def _evaluation(opened: dict[str, Any], result: dict[str, Any] | None) -> tuple[str, ...]:
    def shown(value: Any) -> str:
        return number(float(value)) if is_number(value) else "–"

    accuracy, between = "cut off before it was shown; counts all the same", "–"
    if result is not None:
        value: Any = result.get("accuracy")
        interval = result.get("interval")
        accuracy = share(float(value)) if is_number(value) else "–"
        if isinstance(interval, list) and len(interval) == 2 and all(map(is_number, interval)):
            between = f"{share(interval[0])} and {share(interval[1])}"
    cost = (shown(opened.get("epsilon")), shown(opened.get("delta")))
    return (f"evaluation {opened.get('entry')}", accuracy, between, *cost)


def standings(groups: Sequence[Group]) -> dict[str, list[float]]:
    """The results of the runs that can be compared, by group."""
    found: dict[str, list[float]] = {}
    for group in groups:
        values = [
            result.value
            for run in group.sound
            if (result := final(run)) is not None and result.measure == "accuracy"
        ]
        if values:
            found[group.label] = values
    return found


def who_won(groups: Sequence[Group]) -> str | None:
    """One sentence on the comparison, if there is one to make."""
    found = standings(groups)
    return str(contest(found)) if len(found) > 1 else None


def comparison(groups: Sequence[Group]) -> list[str]:
    """A table and a figure of the methods: mean, deviation, error reduction against the first, steadiness."""
    found = standings(groups)
    if not found:
        return ["<p>There is nothing to compare: no run that is finished and whole has an accuracy.</p>"]
    by_label = {group.label: group for group in groups}
    rows = summarise({label: [*_summaries(by_label[label])] for label in found})
    head = ("method", "accuracy", "deviation", "runs", "error reduction", "variance, last epochs", "ε", "steps",
            "seconds")  # fmt: skip
    cells, bars, single = [], [], []
    for style, row in enumerate(rows):
        deviation, steady = row["deviation"], row["last_iterates_variance"]
        epsilon = by_label[row["method"]].epsilon
        cells.append(
            (
                text(row["method"]), share(row["accuracy"], 2),
                "–" if deviation is None else f"± {100 * deviation:.2f}", str(len(row["runs"])),
                "–" if style == 0 else f"{100 * row['error_reduction']:+.1f} %".replace("-", "−"),
                "–" if steady is None else f"{1e4 * steady:.3g}", "unknown" if epsilon is None else claimed(epsilon),
                f"{row['steps']:,}", "–" if not row["seconds"] else number(row["seconds"], 3),
            )
        )  # fmt: skip
        bars.append(
            Bar(row["method"], points=row["runs"], mean=row["accuracy"], deviation=deviation, style=style)
        )
        apart = "–" if deviation is None else f"{100 * deviation:.2f}"
        values = ", ".join(share(value, 2) for value in row["runs"])
        single.append((text(row["method"]), share(row["accuracy"], 2), apart, values))
    left_out = [run.name for group in groups for run in group.runs if run not in group.sound]
    return [
        *([f"<p>{text(sentence)}</p>"] if (sentence := who_won(groups)) is not None else []),
        scrolled(table(head, cells), "Comparison of methods"),
        '<p class="note">Each accuracy is that of the last iterate, or of the average where the method averages; '
        "never that of the best epoch. Deviation: between runs, in points of percent. Error reduction: against "
        f"{text(rows[0]['method'])}. Variance: of the last five evaluations, in points².</p>",
        *([f"<p>Left out of the comparison, because they are unfinished, damaged or were not evaluated: "
           f"{text(', '.join(left_out))}.</p>"] if left_out else []),
        row_chart(
            "Accuracy of each run, with mean and deviation of each method", bars, "accuracy, %", percent=True,
            note="Points: single runs. Upright line: their mean. Level line: one deviation to each side.",
            head=("method", "mean", "deviation", "single runs"), rows=single,
        ),
    ]  # fmt: skip


def _summaries(group: Group) -> list[dict[str, Any]]:
    """What `summarise` asks of each run."""
    found = []
    for run in group.sound:
        history = [
            {key: figure_in(row, key) for key in ("accuracy", "average_accuracy")} for row in run.metrics
        ]
        found.append(
            {**history[-1], "history": history, "evaluation": run.metrics[-1].get("evaluation"),
             "epsilon": group.epsilon, "steps": group.plan.steps, "seconds": run.seconds or 0.0}
        )  # fmt: skip
    return found
