"""``saltflat data``: which data sets there are, where they lie, what they are, and how to get them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from saltflat.cli.known import complete_data_name
from saltflat.cli.run_options import quiet_option
from saltflat.training.progress import NotedBar

if TYPE_CHECKING:
    from saltflat.data import Description

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
_folder = click.Path(file_okay=False, path_type=Path)
_data_dir = click.option("--data-dir", type=_folder, help="A folder to look in before the others.")


@click.group(name="data")
def command() -> None:
    """List, describe, locate and fetch data sets.

    Data sets are looked for in --data-dir, in the folders of the variable SALTFLAT_DATA, in the cache
    (~/.cache/saltflat), and where distributions install them (/usr/share/datasets).

    \b
    Examples:
      saltflat data list
      saltflat data fetch fashion-mnist
      SALTFLAT_DATA=/data saltflat data locate cifar10
    """


@command.command(name="list")
@_as_json
@click.option("--quiet", is_flag=True, help="Only the names.")
@_data_dir
def list_command(as_json: bool, quiet: bool, data_dir: Path | None) -> None:
    """Every data set that saltflat knows by name, and where it was found.

    Rows are the published counts: to train on + to test on.

    \b
    Examples:
      saltflat data list
      saltflat data list --quiet
      saltflat data list --json --data-dir /data
    """
    from saltflat import data
    from saltflat.plan.table import aligned

    if quiet and not as_json:
        click.echo("\n".join(data.names()))
        return
    entries = [data.describe(name, data_dir) for name in data.names()]
    if as_json:
        _print_json([entry.as_dict() for entry in entries])
        return
    table = [["name", "rows", "classes", "shape", "found at"]]
    table += [
        [e.name, f"{e.rows:,} + {e.test_rows:,}", str(e.classes), "x".join(map(str, e.shape)), _found(e)]
        for e in entries
    ]
    click.echo("\n".join(aligned(table)))


@command.command()
@click.argument("name", shell_complete=complete_data_name)
@_as_json
@_data_dir
def describe(name: str, as_json: bool, data_dir: Path | None) -> None:
    """What the data set NAME is: rows, classes, shape, licence, source, and how to get it.

    \b
    Examples:
      saltflat data describe svhn
      saltflat data describe emnist-letters --json
    """
    from saltflat import data

    description = data.describe(name, data_dir)
    if as_json:
        _print_json(description.as_dict())
    else:
        click.echo(str(description))


@command.command()
@click.argument("name", shell_complete=complete_data_name)
@_as_json
@_data_dir
def locate(name: str, as_json: bool, data_dir: Path | None) -> None:
    """Print the files of the data set NAME, one a line. The exit code is 1 if they were not found.

    \b
    Examples:
      saltflat data locate mnist
      saltflat data locate cifar10 --data-dir /data
    """
    from saltflat import data

    description = data.describe(name, data_dir)
    if as_json:
        _print_json({"name": description.name, "found": description.found})
    elif description.found is None:
        click.echo(f"{description.name} was not found.\n{description.to_get_it}", err=True)
    else:
        click.echo("\n".join(description.found) or f"{description.name} is embedded and needs no file.")
    if description.found is None:
        sys.exit(1)


@command.command()
@click.argument("name", shell_complete=complete_data_name)
@_as_json
@click.option("--data-dir", type=_folder, help="The folder under which to put it; the cache by default.")
@click.option("--mirror", help="An address that holds the same files, instead of the official hosts.")
@quiet_option
def fetch(name: str, as_json: bool, data_dir: Path | None, mirror: str | None, quiet: bool) -> None:
    """Download the data set NAME and check it.

    A file that is already there and right is not downloaded again.

    \b
    Examples:
      saltflat data fetch fashion-mnist
      saltflat data fetch cifar10 --data-dir /data
      saltflat data fetch svhn --mirror https://files.example.org/svhn
    """
    from saltflat import data

    # on the error stream, so that what is printed can still be piped
    with NotedBar("", None, shown=sys.stderr.isatty() and not (quiet or as_json)) as bar:

        def told(file: str, done: int, total: int | None) -> None:
            bar.update(description=file, completed=done, total=total)

        files = [str(file) for file in data.fetch(name, data_dir, told, mirror=mirror)]
    if as_json:
        _print_json({"name": name, "files": files})
    else:
        click.echo("\n".join(files) or f"{name} is embedded and needs no file.")


def _found(entry: Description) -> str:
    if entry.found is None:
        return "-"
    if not entry.found:
        return "embedded"
    return entry.found[0] if len(entry.found) == 1 else str(Path(entry.found[0]).parent)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
