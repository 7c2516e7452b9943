"""``saltflat tune``: settings chosen within the budget, or on public data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from saltflat.cli import run_options
from saltflat.cli.known import complete_data
from saltflat.cli.run_file import merge_run_file, run_file_argument
from saltflat.cli.words import shown_epsilon, stopped, stopped_run, telling
from saltflat.errors import InputError


@click.command(
    epilog="""\b
Examples:
  saltflat tune --data digits --grid learning_rate=0.5,1,2 --epsilon 3 --delta 1e-4 --out runs/tuned
  saltflat tune --data mnist --method dp-sat --grid rho=0.01,0.03,0.1 --grid clip_norm=0.1,1 --epsilon 2
  saltflat tune --data mnist --grid learning_rate=0.5,1,2 --epsilon 1 --proxy fashion-mnist

Only the best trial is shown. The number of trials, and everything about the others, stays secret.
"""
)
@run_file_argument
@run_options.data_options
@run_options.method_option
@run_options.plan_options
@click.option(
    "--grid", multiple=True, metavar="SETTING=VALUE,VALUE", help="Values to try; repeat it for more settings."
)
@click.option("--repeats", type=float, help="Trials on average.  [default: as many as the grid has points]")
@click.option(
    "--law", type=click.Choice(["logarithmic", "geometric", "poisson"]), default="logarithmic", show_default=True,
    help="How the number of trials is drawn.",
)  # fmt: skip
@click.option("--validation-fraction", type=float, default=0.1, show_default=True,
              help="Share of private rows to score on, each held out by a coin of its own.")  # fmt: skip
@click.option(
    "--score-noise", type=float, help="Noise on the count of right answers.  [default: from the budget]"
)
@click.option("--proxy", shell_complete=complete_data,
              help="Public data to search on instead, at no cost: a data set's name, or a path.")  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False), help="The run folder.  [default: runs/DATA-METHOD-tuned]"
)
@run_options.seed_option
@run_options.device_option
@run_options.json_at_the_end
@run_options.quiet_option
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Try settings from a grid on private data, and keep the best, within one budget.

    A random number of trials is run. Each takes a random point of the grid, trains with more noise than a
    single run would need, and is scored by a noised count on held-out rows. ε is for all of it together.
    """
    options = merge_run_file(ctx, params.pop("run_file"), params)
    grid = read_grid(options["grid"])
    for word in ("noise_multiplier", "preset", "split", "portion"):
        if options[word] is not None:
            raise InputError(
                word, options[word], "--epsilon and --grid", problem="cannot be combined with tuning"
            )
    out = options["out"] or run_options.free_run(options["data"], f"{options['method']}-tuned")
    try:
        tuned, summary = _tuned(options, grid, out, telling(options)[1])
    except KeyboardInterrupt:
        if options["proxy"] is not None:  # the search was on public data, and one ordinary run follows it
            stopped_run(Path(out))
        stopped("Nothing is shown of a tuning that was cut off, and its budget counts as spent.")
    if options["as_json"]:
        click.echo(json.dumps(summary))
        return
    for row in tuned.scores:
        point = ", ".join(f"{key} {value}" for key, value in row.items() if key != "score")
        click.echo(f"{point}: {row['score']:.2%} on public data")
    click.echo("chosen: " + ", ".join(f"{key} {value}" for key, value in tuned.settings.items()))
    where = "on public data" if tuned.scores else "by a noised count on held-out private rows"
    click.echo(f"score {tuned.score:.2%} {where}")
    tested = "" if summary["accuracy"] is None else f"accuracy {summary['accuracy']:.2%} on test data, "
    click.echo(
        f"{tested}ε = {shown_epsilon(summary['epsilon'])} for all trials and the choice, δ = {summary['delta']:g}"
    )
    click.echo(f"run folder {summary['out']}")


def _tuned(
    options: dict[str, Any], grid: dict[str, list[Any]], out: str, progress: bool | None
) -> tuple[Any, dict[str, Any]]:
    from saltflat.cli.faults import all_faults
    from saltflat.cli.plan_settings import plan_settings
    from saltflat.cli.run_data import load_data
    from saltflat.cli.training_run import facts_for, model_for, summary_of
    from saltflat.data import load
    from saltflat.training.tune import tune

    with all_faults(options):
        data = load_data(options)
        model, name = model_for(data, options["model"])
        settings = plan_settings(data, options | {"model": name}, model, grid)
    proxy = None
    if options["proxy"] is not None:
        if options["proxy"] == options["data"]:
            raise InputError(
                "proxy", options["proxy"], "other data than --data", problem="is the private data itself",
                cure="Leave --proxy out to tune on private data within the budget.",
            )  # fmt: skip
        proxy = load(
            options["proxy"], data_dir=options["data_dir"], label=options["label"], provenance="public"
        ).train
    tuned = tune(
        model, data.train, options["method"], grid=grid, repeats=options["repeats"], law=options["law"],
        validation_fraction=options["validation_fraction"], score_noise=options["score_noise"], proxy=proxy,
        evaluate=data.test, out=out, seed=options["seed"], progress=progress,
        facts=facts_for(options, data, name),
        trial={
            "schedule": options["schedule"], "device": options["device"], "randomness": options["randomness"],
        },
        **settings,
    )  # fmt: skip
    summary = summary_of(tuned.run, data.name, name)
    summary |= {"settings": dict(tuned.settings), "score": tuned.score}
    if tuned.tuning is not None:
        summary |= {"law": options["law"], "repeats": tuned.tuning.repetitions.mean, "tuned_on": None}
    else:
        summary |= {"tuned_on": options["proxy"], "scores": list(tuned.scores)}
    return tuned, summary


def read_grid(texts: tuple[str, ...]) -> dict[str, list[Any]]:
    """``("clip_norm=0.1,1", "optimizer=sgd,adam")`` as values.

    >>> read_grid(("clip-norm=0.1,1", "optimizer=sgd,adam"))
    {'clip_norm': [0.1, 1], 'optimizer': ['sgd', 'adam']}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        name = key.strip().replace("-", "_")
        found = [_value(part.strip()) for part in values.split(",") if part.strip()]
        if not equals or not name or not found:
            raise InputError(
                "grid", text, "SETTING=VALUE,VALUE", cure="For example: --grid learning_rate=0.5,1,2"
            )
        if name in grid:
            raise InputError("grid", text, "each setting once", problem="names a setting again")
        grid[name] = found
    if not grid:
        raise InputError("grid", None, "at least one --grid SETTING=VALUE,VALUE", problem="is missing")
    return grid


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text
