"""``saltflat audit``: attack one's own mechanism, and say what was caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from saltflat.cli.known import complete_run_or_file
from saltflat.cli.run_file import merge_run_file
from saltflat.cli.run_options import data_options, json_option, method_option, plan_options
from saltflat.cli.words import painted_checks, telling


@click.command(
    epilog="""\b
Examples:
  saltflat audit --quick
  saltflat audit runs/digits --data digits
  saltflat audit --data digits --model mlp --method sai --epsilon 3 --delta 1e-4 --json
  saltflat audit run.toml --randomness secure

The exit code is 0 if nothing was caught, 1 if something was, 2 for bad input.
"""
)
@click.argument("run", required=False, type=click.Path(exists=True), shell_complete=complete_run_or_file)
@data_options
@method_option
@plan_options
@click.option("--quick", is_flag=True, help="Fewer trials: under a minute for a small model on two cores.")
@json_option
@click.option("--quiet", is_flag=True, help="Only the result: do not say what is being tried.")
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Attack the mechanism of a plan, and bound ε from below.

    RUN is a run folder, whose plan, model and tier of randomness are audited, or a run file; without it, the
    options describe the plan as those of train do. The data give the shape of a row only: the rows of an
    audit are made up, so that it costs no budget.
    """
    run = params.pop("run")
    folder = run if run is not None and Path(run).is_dir() else None
    options = merge_run_file(ctx, None if folder else run, params)
    from saltflat.audit import run as attack
    from saltflat.cli.faults import all_faults
    from saltflat.cli.plan_settings import plan_for
    from saltflat.cli.run_data import data_of_run, load_data, started_here
    from saltflat.cli.training_run import model_for

    if folder is None:
        with all_faults(options):
            data = load_data(options)
            model, name = model_for(data, options["model"])
            plan = plan_for(data, options | {"model": name}, model)
        randomness = options["randomness"]
    else:
        from saltflat.record.folder import RunFolder
        from saltflat.training.run import rebuilt_as

        opened = RunFolder.open(folder, "run")
        said = ctx.get_parameter_source("data") is click.core.ParameterSource.COMMANDLINE
        if said or not started_here(opened):
            data = load_data(options)
        else:
            data = data_of_run(opened, options | {"data": None}, ("data", "data_dir", "label", "group"))
        plan = opened.read_plan()
        spec = opened.read_json("model.json")
        model = rebuilt_as(spec) if spec else model_for(data, options["model"])[0]
        randomness = opened.tier() or options["randomness"]
    say, _ = telling(options)
    announce = None if say is None else lambda text: say(f"trying: {text}")
    report = attack(model, data.train, plan, randomness=randomness, quick=options["quick"], announce=announce)
    click.echo(json.dumps(report.to_dict()) if options["as_json"] else painted_checks(str(report)))
    if not report.passed:
        ctx.exit(1)
