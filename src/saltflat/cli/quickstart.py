"""``saltflat quickstart``: the whole story on embedded data."""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import time
from typing import Any

import click

from saltflat.report.comparison import verdict

METHODS = ("dp-sgd", "dp-sat", "sai", "dp-sgd+swa")
SETTINGS = {"data": "digits", "epsilon": 2.0, "delta": 1e-4, "batch_size": 256, "epochs": 40}


@click.command(epilog="\b\nExamples:\n  saltflat quickstart\n  saltflat quickstart --seeds 5 --json")
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1, 20), help="Runs of each method."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(seeds: int, as_json: bool) -> None:
    """Four methods on scikit-learn's digits at one budget, several runs each, in about a minute."""
    import torch

    from saltflat.cli.training_run import plan_for, train_once
    from saltflat.data import load

    started = time.perf_counter()
    torch.set_num_threads(1)  # a model this small is slower with more, and much slower on a busy machine
    data = load("digits")
    if not as_json:
        click.echo(
            f"Private training on {len(data.train):,} handwritten digits, tested on {len(data.test or ())} others.\n"
        )
        click.echo(str(plan_for(data, SETTINGS | {"method": "dp-sgd"})) + "\n")
    results: dict[str, list[float]] = {method: [] for method in METHODS}
    certificate: Any = None
    with RunBar(len(METHODS) * seeds, shown=not as_json) as advance:
        for _ in range(seeds):
            start = secrets.randbits(31)  # the same initial weights for all methods of a round
            for method in METHODS:
                torch.manual_seed(start)
                run, summary = train_once(SETTINGS | {"method": method}, out=None, progress=False)
                averaged = summary["average_accuracy"]
                results[method].append(summary["accuracy"] if averaged is None else averaged)
                certificate = run.certificate
                advance(method)
    seconds = time.perf_counter() - started
    if as_json:
        click.echo(
            json.dumps(
                {
                    "accuracy": results,
                    "evaluation": summary["evaluation"],
                    "epsilon": SETTINGS["epsilon"],
                    "delta": SETTINGS["delta"],
                    "seconds": round(seconds, 1),
                }
            )
        )
        return
    _show(results)
    click.echo("(accuracies on the test digits are exact numbers: not covered by ε)")
    click.echo(f"\n{verdict(results)}\n\nWhat the last run guarantees:\n")
    click.echo("\n".join("  " + line for line in str(certificate).splitlines()))
    click.echo(f"\nDone in {seconds:.0f} s. With your own data, try next:")
    click.echo("  saltflat train --data my-table.csv --label outcome --epsilon 1 --out runs/mine")
    click.echo("  saltflat compare --data digits --methods dp-sgd,dp-sat,sai --epsilon 2 --seeds 3")
    click.echo(
        "  saltflat calibrate --epsilon 1 --population 60000 --batch-size 2048 --epochs 10 --plot budget.png"
    )


def _show(results: dict[str, list[float]]) -> None:
    from saltflat.plan.table import aligned

    table = [["method", "accuracy", "± between seeds", "runs"]]
    for method, values in results.items():
        spread = f"{100 * statistics.stdev(values):.1f}" if len(values) > 1 else "–"
        runs = ", ".join(f"{100 * value:.1f}" for value in values)
        table.append([method, f"{100 * statistics.fmean(values):.1f} %", spread, runs])
    click.echo("\n".join(aligned(table)))


class RunBar:
    """A progress bar over runs on a terminal."""

    def __init__(self, total: int, shown: bool) -> None:
        self.total, self.shown = total, shown and sys.stderr.isatty()
        self.bar: Any = None

    def __enter__(self) -> Any:
        if self.shown:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True))
            self.task = self.bar.add_task("training", total=self.total)
            self.bar.start()
        return self.advance

    def advance(self, method: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=method)

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()
