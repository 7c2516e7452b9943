"""``saltflat train``: one model, one method, one run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from saltflat.cli.known import complete_method
from saltflat.cli.public_options import public_options
from saltflat.cli.ranks import lost_rank, rank_here, ranks_here, stopped_ranks, together
from saltflat.cli.run_file import merge_run_file, run_file_argument
from saltflat.cli.run_options import data_options, folder_of, folder_options, plan_options
from saltflat.cli.words import say_accuracy, say_folder, shown_epsilon, stopped_run, telling
from saltflat.errors import InputError, LostRankError

BESIDE = ("recipe", "data", "epsilon", "delta", "population", "randomness", "seed", "account")
"""What may be said beside a recipe, of all that makes a run what it is. The rest is what a recipe decides."""

recipe_option = click.option(
    "--recipe", type=click.Choice(["best"]),
    help="Model, features and plan for this data set and budget, chosen on other data; see docs/recipes.md.",
)  # fmt: skip


@click.command(
    epilog="""\b
Examples:
  saltflat train
  saltflat train --data digits --model mlp --epsilon 3 --delta 1e-4 --out runs/digits
  saltflat train --data fashion-mnist --model dpnas-fmnist --method sai --epsilon 1 --out runs/x --json
  saltflat train --data fashion-mnist --recipe best --epsilon 1
  saltflat train --data visits.csv --label outcome --group patient --epsilon 2
  saltflat train run.toml
  saltflat train --resume runs/digits
  saltflat train --data visits.csv --label outcome --epsilon 1 --population 5000 --account visits
  saltflat train --data mnist --scenario warm --public-fraction 0.04 --warm-up sam --epsilon 1
  saltflat train --data mnist --method weight-multiplicity --public-fraction 0.04 --synthetic samples.npz
  torchrun --nproc-per-node 2 -m saltflat train --data mnist --epsilon 1 --out runs/two-ranks
  saltflat train --data scans/ --public open-scans/ --public-by "the clinics that publish them" --epsilon 2

A run file holds the same words: data = "digits", epsilon = 3, batch-size = 256 ...
"""
)
@run_file_argument
@data_options
@click.option(
    "--method", default="dp-sgd", show_default=True, shell_complete=complete_method,
    help="dp-sgd, dp-sgd-tapered, dp-sam, dp-sat, sai, dp-sat-early-stop, sgd or sam; with public data "
    "weight-multiplicity, dope-sgd, mirror-descent or ada-dps; with +swa, +ema, +adam, +adam-bc, +dope, +mirror, "
    "+ada.",
)  # fmt: skip
@recipe_option
@plan_options
@public_options
@folder_options
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Train a model on private data, and write a run folder with its certificate.

    With no arguments: embedded digits, a small model, DP-SGD at ε = 3.
    """
    options = merge_run_file(ctx, params.pop("run_file"), params)
    if options["recipe"] and not options["resume"]:
        options = with_recipe(options, given_options(ctx, options))
    out = folder_of(options)
    with together(options):
        run, summary = _trained(ctx, options, out)
    if rank_here():
        return
    if options["as_json"]:
        click.echo(json.dumps(summary))
        return
    spent = f"ε = {shown_epsilon(summary['epsilon'])}, δ = {summary['delta']:g}"
    if summary["accuracy"] is None:
        # a declared population does not go with a test part; rows with noise do with both
        cure = "saltflat evaluate releases one with noise"
        if options.get("population") is None:
            cure = "--test-fraction 0.2 would hold some out"
        click.echo(f"{spent} (no test rows: no accuracy; {cure})")
    say_accuracy(summary, spent)
    say_folder(summary, run, options["quiet"])


def _trained(ctx: click.Context, options: dict[str, Any], out: str) -> tuple[Any, dict[str, Any]]:
    """Train, or go on; a run that is stopped on the way says how to go on."""
    from saltflat.cli.training_run import resume_once, train_once

    announce, progress = telling(options)
    try:
        try:
            if options["resume"]:
                given = given_options(ctx, options)
                return resume_once(options["resume"], given, announce=announce, progress=progress)
            return train_once(options, out=out, announce=announce, progress=progress)
        except LostRankError as error:
            if rank_here():
                raise
            lost_rank(error, Path(out))
    except KeyboardInterrupt as error:  # the launcher's signal may come while a lost rank is being told of
        if ranks_here() > 1:
            stopped_ranks(error, Path(out))
        stopped_run(Path(out))


def given_options(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """What the command line or the run file said, and not what options are by default."""
    typed = click.core.ParameterSource.COMMANDLINE
    defaults = {option.name: option.get_default(ctx) for option in ctx.command.params}
    return {
        name: value
        for name, value in options.items()
        if value is not None and (ctx.get_parameter_source(name) is typed or value != defaults[name])
    }


def with_recipe(options: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options, filled in from the recipe that they name. What a recipe decides cannot be said beside it."""
    from saltflat.cli.training_run import STARTED_WITH, recipe_of

    for word in STARTED_WITH:
        if word in given and word not in BESIDE:
            raise InputError(
                word, given[word], f"no --{word.replace('_', '-')} beside --recipe {options['recipe']}",
                problem="is what a recipe decides", cure="Leave one of the two out.",
            )  # fmt: skip
    options = options | {"epsilon": 3.0 if options["epsilon"] is None else options["epsilon"]}
    recipe = recipe_of(options)
    assert recipe is not None
    return options | recipe.words
