"""``saltflat report``: one page about one or several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from saltflat.cli.known import complete_run
from saltflat.cli.run_options import accept_option, json_option


@click.command(
    epilog="""\b
Examples:
  saltflat report runs/digits --out report.html
  saltflat report runs/digits --card card.md --card card.json
  saltflat report runs/compare-digits --out comparison.html
  saltflat report runs/a runs/b runs/c --out three.html
  saltflat report runs/digits --audit audit.json

The exit code is 0 if every run was verified, 1 if one was not (the page says so first), 2 for bad input.
"""
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False),
                shell_complete=complete_run)  # fmt: skip
@click.option(
    "--out", type=click.Path(dir_okay=False), help="The page.  [default: report.html in the first folder]"
)
@click.option("--card", "cards", multiple=True, type=click.Path(dir_okay=False),
              help="Also the privacy card of the run: a name that ends in .json or .md.")  # fmt: skip
@click.option("--audit", type=click.Path(exists=True, dir_okay=False),
              help="What saltflat audit --json printed.  [default: audit.json in the run folder]")  # fmt: skip
@accept_option
@json_option
@click.option("--quiet", is_flag=True, help="Only where the page is.")
@click.pass_context
def command(
    ctx: click.Context, /, runs: tuple[str, ...], out: str | None, as_json: bool, quiet: bool, **asked: Any
) -> None:
    """Write one HTML page about RUNS: verdict, curves, phases, geometry, comparison, audit, certificate.

    RUNS are run folders, or folders of runs such as compare makes. Each is verified first. The page needs no
    network and no script. A geometry.json or audit.json in a run folder is shown too.
    """
    from saltflat.report import report

    page = out or str(Path(runs[0]) / "report.html")
    made = report(list(runs), page, **asked)
    if as_json:
        click.echo(json.dumps(made.to_dict()))
    else:
        if not quiet:
            click.echo(str(made))
        click.echo(f"report {page}" + "".join(f"; card {path}" for path in asked["cards"]))
    if not made.passed:
        ctx.exit(1)
