"""``saltflat train``: one model, one method, one run folder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from saltflat.cli.run_options import (
    account_options,
    checkpoint_option,
    data_options,
    free_folder,
    merge_run_file,
    plan_options,
    stem_of,
)
from saltflat.errors import InputError

STOPPED = 130


@click.command(
    epilog="""\b
Examples:
  saltflat train
  saltflat train --data digits --model mlp --epsilon 3 --delta 1e-4 --out runs/digits
  saltflat train --data fashion-mnist --model dpnas-fmnist --method sai --epsilon 1 --out runs/x --json
  saltflat train --data visits.csv --label outcome --group patient --epsilon 2
  saltflat train run.toml
  saltflat train --resume runs/digits
  saltflat train --data visits.csv --label outcome --epsilon 1 --population 5000 --account visits

A run file holds the same words: data = "digits", epsilon = 3, batch-size = 256 ...
"""
)
@click.argument("run_file", required=False, type=click.Path(exists=True, dir_okay=False))
@data_options
@click.option(
    "--method", default="dp-sgd", show_default=True,
    help="dp-sgd, dp-sam, dp-sat, sai, dp-sat-early-stop, sgd or sam; with +swa, +ema, +adam, +adam-bc.",
)  # fmt: skip
@plan_options
@click.option("--out", type=click.Path(file_okay=False), help="The run folder.  [default: runs/DATA-METHOD]")
@click.option(
    "--resume", type=click.Path(file_okay=False), help="Go on with the run in this folder, as it was started."
)
@checkpoint_option
@account_options
@click.option("--seed", type=int, help="A repeatable test run: NOT private.")
@click.option("--device", help="cpu, cuda, ...")
@click.option("--json", "as_json", is_flag=True, help="End by printing one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress, no plan; only the result.")
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Train a model on private data, and write a run folder with its certificate.

    With no arguments: embedded digits, a small model, DP-SGD at ε = 3.
    """
    options = merge_run_file(ctx, params.pop("run_file"), params)
    from saltflat.cli.training_run import resume_once, train_once

    quiet = options["quiet"] or options["as_json"]
    announce = None if quiet else lambda text: click.echo(text, err=True)
    progress = False if quiet else None
    out = (
        options["resume"] or options["out"] or free_folder(f"{stem_of(options['data'])}-{options['method']}")
    )
    if options["resume"] and options["out"]:
        raise InputError(
            "resume", options["resume"], "--out for a new run, or --resume for one that was cut off",
            problem=f"is given beside out={options['out']!r}",
        )  # fmt: skip
    try:
        if options["resume"]:
            run, summary = resume_once(
                options["resume"], given_options(ctx, options), announce=announce, progress=progress
            )
        else:
            run, summary = train_once(options, out=out, announce=announce, progress=progress)
    except KeyboardInterrupt:
        if not (Path(out) / "checkpoint" / "state.safetensors").exists():
            raise
        click.echo(
            "saltflat: stopped. What was released so far stays recorded in the ledger.\n"
            f"  Go on with: saltflat train --resume {shlex.quote(out)}",
            err=True,
        )
        ctx.exit(STOPPED)
    if options["as_json"]:
        click.echo(json.dumps(summary))
        return
    epsilon = summary["epsilon"]
    shown = "inf: NOT PRIVATE" if epsilon == "inf" else f"{epsilon:.4g}"
    if summary["accuracy"] is not None:
        label = f" ({summary['evaluation']} by ε)" if summary["evaluation"] else ""
        click.echo(
            f"accuracy {summary['accuracy']:.2%} on test data{label}, ε = {shown}, δ = {summary['delta']:g}"
        )
    if summary["average_accuracy"] is not None:
        click.echo(f"accuracy of the averaged weights {summary['average_accuracy']:.2%}{label}")
    click.echo(f"run folder {summary['out']} ({summary['seconds']:.1f} s)")
    if not options["quiet"] and sys.stderr.isatty():
        click.echo(str(run.certificate), err=True)


def given_options(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """What the command line or the run file said, and not what options are by default."""
    typed = click.core.ParameterSource.COMMANDLINE
    defaults = {option.name: option.get_default(ctx) for option in ctx.command.params}
    return {
        name: value
        for name, value in options.items()
        if value is not None and (ctx.get_parameter_source(name) is typed or value != defaults[name])
    }
