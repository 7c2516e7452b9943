"""``saltflat models``: what `build` and ``--model`` know."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from saltflat.plan.table import aligned


@click.command(epilog="\b\nExamples:\n  saltflat models\n  saltflat models cnn-selu --json")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the models, or describe one."""
    from saltflat.models import describe, names

    rows = [describe(name)] if name else [describe(each) for each in names()]
    if as_json:
        listed = [asdict(row) for row in rows]
        click.echo(json.dumps(listed[0] if name else listed))
    elif name:
        for key, value in asdict(rows[0]).items():
            click.echo(f"{key:14} {value}")
    else:
        table = [["name", "parameters", "input", "summary"]]
        table += [[r.name, f"{r.parameters:,}", "×".join(map(str, r.input_shape)), r.summary] for r in rows]
        click.echo("\n".join(aligned(table)))
