"""``saltflat quickstart``: the whole story on embedded data."""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import click

from saltflat.cli.run_options import free_folder, json_at_the_end
from saltflat.cli.words import painted, stopped
from saltflat.errors import InputError
from saltflat.report.contest import Contest, contest

METHODS = ("dp-sgd", "dp-sat", "sai", "dp-sgd+swa")
SETTINGS = {"data": "digits", "epsilon": 2.0, "delta": 1e-4, "batch_size": 256, "epochs": 40}
DEFAULT_OUT = "saltflat-quickstart"
NEXT = (
    "saltflat train --data my-table.csv --label outcome --test-fraction 0.2 --epsilon 2 --out runs/mine",
    "saltflat verify runs/mine",
    "saltflat compare --data my-table.csv --label outcome --test-fraction 0.2 --epsilon 2 --out runs/compared",
)


@click.command(
    epilog="""\b
Examples:
  saltflat quickstart
  saltflat quickstart --seeds 12 --out demo
  saltflat quickstart --seeds 3 --json
"""
)
@click.option("--seeds", default=7, show_default=True, type=click.IntRange(1, 50),
              help="Rounds: in each, all methods start from the same weights, drawn anew.")  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False),
    help=f"The folder of all runs and the report.  [default: {DEFAULT_OUT}, with a number if that is taken]",
)  # fmt: skip
@json_at_the_end
@click.option("--quiet", is_flag=True, help="Only the result: the table and who won.")
def command(seeds: int, out: str | None, as_json: bool, quiet: bool) -> None:
    """Four methods on scikit-learn's digits at one budget, several runs each, in about a minute.

    Writes a run folder for each run, with its certificate, and one report of them all.
    """
    started = time.perf_counter()
    folder = place_for(out)
    told = not (quiet or as_json)
    if told and folder.name != (out or DEFAULT_OUT):
        click.echo(f"{DEFAULT_OUT} is there already and stays as it is: this time it is {folder}.", err=True)
    try:
        results, test_rows = _all_rounds(seeds, folder, told)
    except KeyboardInterrupt:
        stopped(f"The runs so far are kept in {folder}. To start again: saltflat quickstart")
    found = contest(results, 1 / test_rows)
    answer = {
        "accuracy": results,
        "evaluation": "not covered",
        "epsilon": SETTINGS["epsilon"],
        "delta": SETTINGS["delta"],
        "verdict": found.to_dict(),
        "out": str(folder),
        "report": _report(results, folder),
        "seconds": round(time.perf_counter() - started, 1),
    }
    (folder / "quickstart.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(answer))
        return
    _show(results, found)
    if told:
        _tell_the_rest(folder, answer, found)


def place_for(out: str | None) -> Path:
    """The folder for the runs: a new or empty one. What is there already is never touched."""
    folder = Path(out or free_folder(DEFAULT_OUT))
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            "out", out, "a new or empty folder", problem="is not empty",
            cure="Nothing is written over: choose another name, or remove that folder.",
        )  # fmt: skip
    return folder


def _all_rounds(seeds: int, folder: Path, told: bool) -> tuple[dict[str, list[float]], int]:
    """Accuracies by method, one a round, and the number of test rows."""
    import torch

    from saltflat.cli.plan_settings import plan_for
    from saltflat.cli.training_run import train_once
    from saltflat.data import load
    from saltflat.report.contest import final_accuracy
    from saltflat.training.progress import NotedBar

    torch.set_num_threads(1)  # a model this small is slower with more, and much slower on a busy machine
    data = load("digits")
    assert data.test is not None
    if told:
        rows, others = len(data.train), len(data.test)
        click.echo(f"Private training on {rows:,} handwritten digits, tested on {others} others.\n")
        click.echo(f"{plan_for(data, SETTINGS | {'method': METHODS[0]})}\n")
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[float]] = {method: [] for method in METHODS}
    with NotedBar("", len(METHODS) * seeds, shown=told and sys.stderr.isatty()) as bar:
        for number in range(1, seeds + 1):
            start = secrets.randbits(31)
            for method in METHODS:
                bar.update(description=f"{method}, round {number} of {seeds}", note=_means(results))
                torch.manual_seed(start)  # the same initial weights for all methods of a round
                _, summary = train_once(
                    SETTINGS | {"method": method},
                    out=str(folder / f"{method}-{number}"), data=data, progress=False,
                )  # fmt: skip
                results[method].append(final_accuracy(summary))
                bar.update(advance=1)
    return results, len(data.test)


def _report(results: dict[str, list[float]], folder: Path) -> str:
    """Write the report of all runs."""
    from saltflat.report import write_report

    runs = [folder / f"{method}-{number + 1}" for method in results for number in range(len(results[method]))]
    return str(write_report(runs, folder / "report.html"))


def _means(results: dict[str, list[float]]) -> str:
    shown = [
        f"{method} {100 * statistics.fmean(values):.1f} %" for method, values in results.items() if values
    ]
    return "so far: " + ", ".join(shown) if shown else ""


def _show(results: dict[str, list[float]], found: Contest) -> None:
    from saltflat.plan.table import aligned

    table = [["method", "accuracy", "± between seeds", "runs"]]
    for method, values in results.items():
        spread = f"{100 * statistics.stdev(values):.1f}" if len(values) > 1 else "–"
        runs = ", ".join(f"{100 * value:.1f}" for value in values)
        table.append([method, f"{100 * statistics.fmean(values):.1f} %", spread, runs])
    lines = aligned(table)
    lines = [
        painted(line, bold=True) if found.won and line.split()[0] == found.leader else line for line in lines
    ]
    click.echo("\n".join(lines))
    click.echo("(exact numbers about the test digits: not covered by ε)\n")
    click.echo(painted(str(found), bold=True))


def _tell_the_rest(folder: Path, answer: dict[str, Any], found: Contest) -> None:
    from saltflat.record.folder import RunFolder

    rounds = found.rounds
    if rounds > 1:
        click.echo(click.wrap_text(found.test, width=100))
    certificate = RunFolder(folder / f"{METHODS[-1]}-{rounds}").read_certificate()
    click.echo("\nWhat each run guarantees on its own:")
    click.echo("\n".join(f"  {line}" for line in str(certificate).splitlines()[:2]))
    click.echo(f"  What that covers and what not: certificate.html in {folder / METHODS[0]}-1")
    count = len(METHODS) * rounds
    click.echo(f"  Whoever sees all {count} runs sees more than one of them shows: the report adds that up.")
    click.echo(f"\nReport of all {count} runs: {answer['report']} ({answer['seconds']:.0f} s)")
    click.echo("\nWith a table of your own that has a column outcome, try next:")
    if shutil.which("saltflat") is None and sys.prefix != sys.base_prefix:  # as under make quickstart
        activate = shlex.quote(str(Path(sys.prefix, "bin", "activate")))
        click.echo(f"  . {activate}   # once in every shell, so that it finds saltflat")
    click.echo("\n".join(f"  {line}" for line in NEXT))
