"""Run files: the options of a command as TOML. All faults of a file are reported at once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from saltflat.errors import SaltflatError, nearest

LISTS = ("methods", "augmentations")  # on the command line separated by commas


class RunFileError(SaltflatError, ValueError):
    """A run file that cannot be read."""


class RunFileType(click.Path):
    """The path of a run file. Who names a data set there is told which option that is."""

    name = "run file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As for any file, with a hint."""
        from saltflat.data.catalogue import names

        path = Path(str(value))
        if not path.is_file():
            if str(value) in names() or path.suffix in (".csv", ".parquet", ".npz"):
                self.fail(f"{value!r} is no run file (TOML). For data, write --data {value}", param, ctx)
            if (path / "plan.json").exists():
                said = f"{value!r} is a run folder, not a run file (TOML). To go on with it: --resume {value}"
                self.fail(said, param, ctx)
        return super().convert(value, param, ctx)


def run_file_argument(command: Any) -> Any:
    """The optional argument RUN_FILE."""
    return click.argument("run_file", required=False, type=RunFileType())(command)


def merge_run_file(ctx: click.Context, path: str | None, params: dict[str, Any]) -> dict[str, Any]:
    """Fill in from a TOML file what the command line did not say. All faults are reported at once."""
    if path is None:
        return params
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise RunFileError(f"run file {path!r} cannot be read: {error}") from error
    options = {p.name: p for p in ctx.command.params if isinstance(p, click.Option) and p.name}
    spelled = {name.removeprefix("as_").replace("_", "-"): name for name in options}
    faults, merged = [], dict(params)
    for key, value in content.items():
        name = spelled.get(key.replace("_", "-"))
        if name is None:
            guess, _, _ = nearest(key.replace("_", "-"), sorted(spelled)).partition("? Known")
            faults.append(f"unknown key {key!r}. {guess}{'?' if guess.startswith('Did') else ''}")
            continue
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            continue  # the command line wins
        try:
            merged[name] = options[name].type_cast_value(ctx, _as_typed(options[name], value))
        except click.BadParameter as error:
            faults.append(f"{key} = {value!r}: {error.message}")
        except TypeError as error:
            faults.append(f"{key} = {value!r}: {error}")
    if faults:
        from saltflat.cli.faults import FaultsError, faults_of  # imports models, and with them torch

        raise FaultsError(faults + faults_of(merged), f"run file {path!r}")
    return merged


def _as_typed(option: click.Option, value: Any) -> Any:
    """A value of TOML as the command line would have it: text, a truth value, or several texts."""
    if isinstance(value, bool) and option.is_flag:
        return value
    if option.is_flag:
        raise TypeError("this is either true or false")
    if option.multiple:
        if isinstance(value, dict):  # [grid] with one list a setting
            return [f"{key}={_listed(one)}" for key, one in value.items()]
        values = value if isinstance(value, list) else [value]
        if all(isinstance(one, str) for one in values):
            return values
        raise TypeError("this is not a text, nor a list of texts")
    if option.name in LISTS and isinstance(value, list):
        return _listed(value)
    if not _is_single(value):
        raise TypeError("this is not a single number or text")
    return str(value)


def _listed(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    if not all(map(_is_single, values)):
        raise TypeError("this is not a list of numbers or texts")
    return ",".join(map(str, values))


def _is_single(value: Any) -> bool:
    """Whether it is one number or text: true and false are neither."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)
