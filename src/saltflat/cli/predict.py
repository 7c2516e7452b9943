"""``saltflat predict``: what the model of a run says of other rows."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import click

from saltflat.cli import run_options
from saltflat.cli.known import complete_data, complete_run
from saltflat.errors import InputError


@click.command(
    epilog="""\b
Examples:
  saltflat predict runs/digits
  saltflat predict runs/visits --data new-visits.csv --out predicted.csv
  saltflat predict runs/visits --data new-visits.csv --scores --average --out predicted.csv
"""
)
@click.argument("run", type=click.Path(exists=True, file_okay=False), shell_complete=complete_run)
@click.option(
    "--data", shell_complete=complete_data,
    help="A data set's name, or a path; a table needs no labels.  [default: the data of the run]",
)  # fmt: skip
@run_options.data_dir_option
@run_options.part_option
@click.option("--scores", is_flag=True, help="Add the model's probability of each class.")
@click.option("--average", is_flag=True, help="The averaged weights instead of the last ones.")
@click.option("--out", type=click.Path(dir_okay=False), help="A CSV file.  [default: standard output]")
@run_options.device_option
@run_options.json_option
@click.option("--quiet", is_flag=True, help="Nothing but the predictions.")
def command(run: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """What the model of the run in RUN says of each row, in the order of the rows.

    The weights are a release, so this costs nothing for the rows that they were trained on. What is said of other
    rows is as private as those rows are.
    """
    from saltflat.cli.run_data import data_of_run, facts_of, part_of
    from saltflat.data.tables import is_table, read_features
    from saltflat.record.folder import RunFolder
    from saltflat.training.run import Run

    out = None if options["out"] is None else Path(options["out"])
    if out is not None and out.exists():
        raise InputError("out", str(out), "a file that is not there", problem="is there already",
                         cure="Choose another name.")  # fmt: skip
    folder, path = RunFolder.open(run), options["data"]
    if path is not None and is_table(path):
        facts = facts_of(folder)
        others = [facts["options"].get(word) for word in ("label", "group")]
        inputs: Any = read_features(Path(path).expanduser(), facts.get("columns"), leave_out=others)
        classes = facts.get("classes") or []
    else:
        data = data_of_run(
            folder, options | {"label": None, "group": None}, ("data", "data_dir", "label", "group")
        )
        inputs, classes = part_of(data, options["part"]).inputs, data.classes
    loaded = Run.load(run)
    if options["device"] is not None:
        loaded.model.to(options["device"])
    outputs = loaded.outputs(inputs, average=options["average"])
    rows = _told(outputs, list(classes), options["scores"])
    if as_json:
        click.echo(json.dumps({"predictions": rows}))
        return
    if out is None:
        _write(rows, sys.stdout)
        return
    with out.open("x", encoding="utf-8", newline="") as stream:
        _write(rows, stream)
    if not quiet:
        click.echo(f"{len(rows)} rows in {out}")


def _told(outputs: Any, classes: list[str], scores: bool) -> list[dict[str, Any]]:
    """A row each: the class by its name, or the number that a single output says."""
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return [{"prediction": value} for value in outputs.flatten().tolist()]
    names = classes if len(classes) == outputs.shape[1] else [str(place) for place in range(outputs.shape[1])]
    likely = [{"prediction": names[place]} for place in outputs.argmax(1).tolist()]
    if not scores:
        return likely
    shares = outputs.double().softmax(1).tolist()
    return [
        one | {f"score {n}": round(s, 6) for n, s in zip(names, share)} for one, share in zip(likely, shares)
    ]


def _write(rows: list[dict[str, Any]], stream: Any) -> None:
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
