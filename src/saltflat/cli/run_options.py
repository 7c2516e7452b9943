"""What `train` and its siblings share: options, run files, and the way from them to a plan."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from saltflat.errors import SaltflatError, nearest


class RunFileError(SaltflatError, ValueError):
    """A run file that cannot be used; the message lists every fault."""


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that describe the plan; their names are those of the Python arguments."""
    for option in reversed(
        [
            click.option("--epsilon", type=float, default=None, help="The budget ε (inf: clip, but add no noise)."),
            click.option("--delta", type=float, default=1e-5, show_default=True, help="δ, well below 1/population."),
            click.option("--noise-multiplier", type=float, help="The noise itself, instead of --epsilon."),
            click.option("--population", type=int, help="Declared number of rows. Left out, it is read from the data, and zero-out is certified."),
            click.option("--batch-size", type=int, help="Expected batch size."),
            click.option("--epochs", type=float, help="Passes over the population."),
            click.option("--steps", type=int, help="Releases, instead of --epochs."),
            click.option("--clip-norm", type=float, help="Length to which each example's gradient is clipped."),
            click.option("--learning-rate", type=float, help="Learning rate."),
            click.option("--optimizer", help="sgd, adam, adam-bc, adamw, rmsprop or adagrad."),
            click.option("--momentum", type=float, help="Momentum of sgd."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def merge_run_file(ctx: click.Context, path: str | None, params: dict[str, Any]) -> dict[str, Any]:
    """Fill in from a TOML file what the command line did not say. All faults are reported at once."""
    if path is None:
        return params
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunFileError(f"run file {path!r} cannot be read: {error}") from error
    options = {p.name: p for p in ctx.command.params if isinstance(p, click.Option) and p.name}
    spelled = {name.removeprefix("as_").replace("_", "-"): name for name in options}
    faults, merged = [], dict(params)
    for key, value in content.items():
        name = spelled.get(key.replace("_", "-"))
        if name is None:
            faults.append(f"unknown key {key!r}. {nearest(key, sorted(spelled))}")
            continue
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            continue  # the command line wins
        try:
            text = value if isinstance(value, bool) else str(value)
            merged[name] = options[name].type_cast_value(ctx, text)
        except (click.BadParameter, TypeError) as error:
            faults.append(f"{key} = {value!r}: {error}")
    if faults:
        raise RunFileError(f"run file {path!r}:\n" + "\n".join(f"  - {fault}" for fault in faults))
    return merged


def free_folder(stem: str) -> str:
    """``runs/<stem>``, with a number behind it if that is taken."""
    path = Path("runs") / stem
    number = 2
    while path.exists():
        path = Path("runs") / f"{stem}-{number}"
        number += 1
    return str(path)
