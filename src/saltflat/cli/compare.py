"""``saltflat compare``: several methods side by side, several seeds each."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from saltflat.cli import run_options
from saltflat.cli.known import complete_methods
from saltflat.cli.run_file import merge_run_file, run_file_argument
from saltflat.cli.words import same_command, stopped, telling
from saltflat.errors import InputError, MissingDependencyError, pyplot_for
from saltflat.report.contest import summarise


@click.command(
    epilog="""\b
Examples:
  saltflat compare --data digits --methods dp-sgd,dp-sat,sai,dp-sat+swa --epsilon 2 --seeds 3
  saltflat compare --data cifar10 --model cnn-selu --methods dp-sgd,sai --epsilon 1 --epochs 10 --out runs/c

A comparison that was cut off goes on where it stopped when the same command is given again.
"""
)
@run_file_argument
@run_options.data_options
@click.option("--methods", default="dp-sgd,dp-sat,sai,dp-sgd+swa", show_default=True, shell_complete=complete_methods,
              help="Methods, separated by commas.")  # fmt: skip
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1), help="Initial weights for each method."
)
@run_options.plan_options
@click.option(
    "--out", type=click.Path(file_okay=False), help="The folder of all runs.  [default: runs/compare-DATA]"
)
@run_options.checkpoint_option
@run_options.account_options
@run_options.device_option
@run_options.json_at_the_end
@run_options.quiet_option
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Train several methods at one budget, and say which is better, with deviations.

    Each accuracy is that of the last iterate (or of the average, where the method averages), never of the
    best epoch. All runs are private on their own; showing several of them costs their sum: with --account each
    of them is paid for.
    """
    options = merge_run_file(ctx, params.pop("run_file"), params)
    methods = run_options.listed(options["methods"])
    if not methods:
        raise InputError("methods", options["methods"], "at least one method", problem="names none")
    if twice := [name for name in methods if methods.count(name) > 1]:
        raise InputError("methods", options["methods"], "each method once", problem=f"names {twice[0]} twice")
    folder = Path(options["out"] or f"runs/compare-{run_options.stem_of(options['data'])}")
    try:
        results = _all_runs(options, methods, folder)
    except KeyboardInterrupt:
        stopped(f"The runs so far are kept in {folder}.", same_command())
    table = summarise(results)
    verdict = who_won(results)
    folder.mkdir(parents=True, exist_ok=True)
    answer = {"methods": table} | ({} if verdict is None else {"verdict": verdict.to_dict()})
    (folder / "comparison.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    picture = _plot(results, folder / "comparison.png")
    if options["as_json"]:
        click.echo(json.dumps(answer | {"out": str(folder), "plot": picture}))
        return
    click.echo(_shown(table))
    if any(row["evaluation"] for row in table):
        click.echo("accuracies are exact numbers about private test rows: not covered by ε")
    if verdict is not None:
        click.echo(str(verdict))
    click.echo(f"runs in {folder}" + (f"; picture {picture}" if picture else ""))


def who_won(results: dict[str, list[dict[str, Any]]]) -> Any:
    """Whether a method is better than the others by more than chance would make, if there are others."""
    from saltflat.report.contest import contest, final_accuracy

    found = {method: [final_accuracy(run) for run in runs] for method, runs in results.items()}
    return contest(found) if len(found) > 1 else None


def _all_runs(
    options: dict[str, Any], methods: Sequence[str], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    import torch

    from saltflat.cli.faults import all_faults
    from saltflat.cli.plan_settings import plan_for
    from saltflat.cli.run_data import load_data
    from saltflat.cli.training_run import model_for, resume_once, summary_of, train_once

    results: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    announce, progress = telling(options)
    with all_faults(options):
        data = load_data(options)
        named = options | {"model": model_for(data, options["model"])[1]}
        plans = {method: plan_for(data, named | {"method": method}) for method in methods}
    if data.test is None:
        raise InputError(
            "data", options["data"], "data with test rows, to compare by", problem="has no test rows",
            cure="Hold some out: --test-fraction 0.2",
        )  # fmt: skip
    places = {(m, s): folder / f"{m}-seed{s}" for m in methods for s in range(options["seeds"])}
    _check_account(options, [(plans[m], place) for (m, _), place in places.items()])
    for seed in range(options["seeds"]):  # all methods of one seed first: a cut-off leaves whole rounds
        for method in methods:
            place = places[method, seed]
            run, cut_off = _found(place, plans[method].to_dict(), options["randomness"])
            if run is None:
                torch.manual_seed(seed)  # the initial weights only; noise is drawn afresh
                if announce is not None:
                    announce(f"{method}, seed {seed}" + (", going on" if cut_off else ""))
                if cut_off:
                    given = {word: options[word] for word in ("device", "checkpoint_every")}
                    run, _ = resume_once(str(place), given, data=data, progress=progress)
                else:
                    started = options | {"method": method, "seed": None}
                    run, _ = train_once(started, out=str(place), data=data, progress=progress)
            summary = summary_of(run, data.name, options["model"] or "")
            results[method].append(summary | {"history": run.history})
    return results


def _check_account(options: dict[str, Any], runs: list[tuple[Any, Path]]) -> None:
    """Refuse a comparison that its account cannot cover as a whole, before its first run.

    Each run then reserves its own part when it begins. One that is there must be covered by the same account.
    """
    from saltflat.cli.training_run import account_for
    from saltflat.record.folder import RunFolder
    from saltflat.training.spend import charge_of

    account = account_for(options)
    if account is None:
        return
    due = []
    for plan, place in runs:
        opened = RunFolder(place)
        if not opened.file("plan.json").exists():
            due.append(charge_of(plan))
            continue
        named = opened.read_ledger(cut_short=True).account
        if named is None or named.get("account_id") != account.balance().terms.id:
            raise InputError(
                "account", account.name, "runs that this account covers",
                problem=f"does not cover the run in {place}", cure="Choose another --out for this comparison.",
            )  # fmt: skip
    if due:
        account.check(due, f"The comparison ({len(due)} runs to come)")


def _found(place: Path, plan: dict[str, Any], randomness: str) -> tuple[Any, bool]:
    """The run in a folder, if it is the same plan and tier and was finished; else whether it was cut off and can go on.

    One that was cut off and has no checkpoint is moved aside. Its ledger stays: what it spent was spent.
    """
    from saltflat.record.folder import RunFolder
    from saltflat.training.resume import finished_run

    folder = RunFolder(place)
    if not folder.file("plan.json").exists():
        return None, False
    if folder.read_plan().to_dict() != plan:
        raise InputError(
            "out", str(place), "a folder without runs of another plan", problem="holds a run of another plan",
            cure="Choose another --out for these settings.",
        )  # fmt: skip
    tier = folder.tier()
    if tier is not None and tier != randomness:
        raise InputError(
            "randomness", randomness, f"the tier of the run in {place}, which is {tier}",
            problem="differs from it", cure="Choose another --out for this tier.",
        )  # fmt: skip
    if (run := finished_run(place, None)) is not None:
        return run, False
    if folder.checkpoints.exist():
        return None, True
    number = 1
    while (aside := place.with_name(f"{place.name}.cut-off-{number}")).exists():
        number += 1
    place.rename(aside)
    return None, False


def _shown(table: list[dict[str, Any]]) -> str:
    from saltflat.plan.table import aligned

    lines = [["method", "accuracy", "error reduction", "variance, last epochs", "ε", "steps", "seconds"]]
    for row in table:
        deviation = "" if row["deviation"] is None else f" ± {100 * row['deviation']:.2f}"
        steady = row["last_iterates_variance"]
        variance = "–" if steady is None else f"{1e4 * steady:.3g} points²"
        epsilon = row["epsilon"] if isinstance(row["epsilon"], str) else f"{row['epsilon']:.3g}"
        lines.append(
            [
                row["method"], f"{100 * row['accuracy']:.2f}{deviation} %", f"{100 * row['error_reduction']:+.1f} %",
                variance, epsilon, str(row["steps"]), f"{row['seconds']:.0f}",
            ]
        )  # fmt: skip
    return "\n".join(aligned(lines))


def _plot(results: dict[str, list[dict[str, Any]]], path: Path) -> str | None:
    """Accuracy against ε spent, one line a method, a band for the seeds."""
    try:
        plt = pyplot_for("drawing a comparison")
    except MissingDependencyError:
        click.echo("no picture: pip install 'saltflat[plot]' draws accuracy against ε spent", err=True)
        return None
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    private = True
    labelled = any(run.get("evaluation") for runs in results.values() for run in runs)
    for method, runs in results.items():
        rows = [[row for row in run["history"] if row.get("accuracy") is not None] for run in runs]
        length = min(map(len, rows))
        if not length:
            continue
        spent = [row["epsilon_so_far"] for row in rows[0][:length]]
        if any(isinstance(value, str) for value in spent):
            private = False
            spent = [row["epoch"] for row in rows[0][:length]]
        # the average, as soon as there is one
        best = [[100 * row.get("average_accuracy", row["accuracy"]) for row in run[:length]] for run in rows]
        columns = list(zip(*best))
        means = [statistics.fmean(column) for column in columns]
        (line,) = axes.plot(spent, means, marker=".", label=method)
        if len(runs) > 1:
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axes.fill_between(spent, low, high, alpha=0.15, color=line.get_color())
    axes.set(
        xlabel="ε so far" if private else "ε so far (epochs where there is no noise)",
        ylabel="test accuracy, %" + (" (not covered by ε)" if labelled else ""),
    )
    axes.set_title("Accuracy against the budget spent (band: all seeds)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return str(path)
