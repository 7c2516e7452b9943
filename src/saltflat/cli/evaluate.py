"""``saltflat evaluate``: the accuracy of a run on private rows, released with noise and recorded."""

from __future__ import annotations

import json
from typing import Any

import click

from saltflat.cli import run_options
from saltflat.cli.known import complete_data, complete_run


@click.command(
    epilog="""\b
Examples:
  saltflat evaluate runs/digits --epsilon 0.1
  saltflat evaluate runs/visits --data holdout.csv --label outcome --epsilon 0.1 --size 1000 --disjoint
  saltflat evaluate runs/visits --data holdout.csv --label outcome --epsilon 0.1 --size 1000 --account visits
"""
)
@click.argument("run", type=click.Path(exists=True, file_okay=False), shell_complete=complete_run)
@click.option("--epsilon", type=float, required=True, help="What this release may cost.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ, well below 1/size.")
@click.option(
    "--data", shell_complete=complete_data, help="A data set's name, or a path.  [default: that of the run]"
)
@run_options.data_dir_option
@run_options.label_option
@click.option("--group", help="The column that says whose row it is: each person has one vote.")
@run_options.part_option
@click.option(
    "--size", type=int,
    help="Declared number of rows (or people) of the hold-out. Left out, it is read from the data (zero-out).",
)  # fmt: skip
@click.option(
    "--disjoint", is_flag=True,
    help="Declare: nobody here was trained on, and no one's side was decided by looking at others.",
)  # fmt: skip
@click.option("--average", is_flag=True, help="The averaged weights instead of the last ones.")
@click.option("--randomness", type=click.Choice(["fast", "secure", "exact"]), default="fast", show_default=True,
              help="Tier of noise.")  # fmt: skip
@run_options.account_options
@run_options.device_option
@run_options.json_option
@click.option("--quiet", is_flag=True, help="Only the accuracy.")
def command(run: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """The accuracy of the run in RUN on private rows, by a noised count of right answers.

    It costs --epsilon, which is recorded in RUN/evaluations.jsonl before the noise is drawn, and adds up with
    training and earlier evaluations unless --disjoint is declared. An account is charged in any case.
    """
    from saltflat.cli.training_run import account_for
    from saltflat.training.evaluate_privately import evaluate_privately
    from saltflat.training.run import Run

    loaded = Run.load(run)
    found = evaluate_privately(
        loaded, _rows(run, options),
        epsilon=options["epsilon"], delta=options["delta"], size=options["size"],
        disjoint=options["disjoint"], average=options["average"], randomness=options["randomness"],
        account=account_for(options), device=options["device"],
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    if quiet:
        click.echo(str(found).splitlines()[0])
        return
    click.echo(str(found))
    if found.account is not None:
        click.echo(f"charged to the account {found.account}, reservation {found.reservation}")
    click.echo(f"recorded in {found.recorded_in}")


def _rows(run: str, options: dict[str, Any]) -> Any:
    """The hold-out: from what the options name, or from the data that the run was started with."""
    from saltflat.cli.run_data import data_of_run, part_of
    from saltflat.record.folder import RunFolder

    data = data_of_run(RunFolder.open(run), options, ("data", "data_dir", "label", "group"))
    return part_of(data, options["part"])
