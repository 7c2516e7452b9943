"""``saltflat models``: what `build` and ``--model`` know."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from saltflat.cli.known import complete_model


@click.command(epilog="\b\nExamples:\n  saltflat models\n  saltflat models cnn-selu --json")
@click.argument("name", required=False, shell_complete=complete_model)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, or a list of them.")
@click.option("--quiet", is_flag=True, help="Only the names.")
def command(name: str | None, as_json: bool, quiet: bool) -> None:
    """List the models, or describe the one called NAME."""
    from saltflat.models import describe, names
    from saltflat.plan.table import aligned

    rows = [describe(name)] if name else [describe(each) for each in names()]
    if as_json:
        listed = [asdict(row) for row in rows]
        click.echo(json.dumps(listed[0] if name else listed))
    elif quiet:
        click.echo("\n".join(row.name for row in rows))
    elif name:
        for key, value in asdict(rows[0]).items():
            click.echo(f"{key:14} {value}")
    else:
        table = [["name", "parameters", "input", "summary"]]
        table += [[r.name, f"{r.parameters:,}", "×".join(map(str, r.input_shape)), r.summary] for r in rows]
        click.echo("\n".join(aligned(table)))
