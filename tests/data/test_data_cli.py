"""``saltflat data``: list, describe, locate, fetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from data_writers import write_mnist

from saltflat import data
from saltflat.cli.data import command
from saltflat.data.catalogue import CATALOGUE
from saltflat.errors import InputError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), prog_name="saltflat data")


def answer(*arguments: str, code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_it_is_a_group_with_four_commands() -> None:
    assert isinstance(command, click.Group)
    assert sorted(command.commands) == ["describe", "fetch", "list", "locate"]


@pytest.mark.parametrize("name", ["describe", "fetch", "list", "locate"])
def test_help_has_examples(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"saltflat data {name}" in result.output.split("Examples:")[1]
    assert "--json" in result.output
    assert "--data-dir" in result.output


def test_list(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    result = run("list", "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].split() == ["name", "rows", "classes", "shape", "found", "at"]
    assert [line.split()[0] for line in lines[1:]] == data.names()
    assert lines[1].split()[1:] == ["1,437", "+", "360", "10", "1x8x8", "embedded"]
    assert lines[2].endswith(str(tmp_path / "mnist"))
    assert lines[3].endswith("-")
    listed = answer("list", "--data-dir", str(tmp_path))
    assert [entry["name"] for entry in listed] == data.names()
    assert listed[1]["found"][0].endswith("train-images-idx3-ubyte.gz")
    assert listed[2]["found"] is None


def test_describe() -> None:
    assert "73,257 to train on" in run("describe", "svhn").output
    assert answer("describe", "svhn")["shape"] == [3, 32, 32]


def test_locate(tmp_path: Path) -> None:
    files = [str(file) for file in write_mnist(tmp_path)]
    result = run("locate", "mnist", "--data-dir", str(tmp_path))
    assert (result.exit_code, result.output.split()) == (0, files)
    assert answer("locate", "mnist", "--data-dir", str(tmp_path)) == {"name": "mnist", "found": files}
    assert run("locate", "digits").output == "digits is embedded and needs no file.\n"


def test_locate_fails_when_nothing_is_found() -> None:
    result = run("locate", "svhn")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "saltflat data fetch svhn" in result.stderr
    assert answer("locate", "svhn", code=1) == {"name": "svhn", "found": None}


def test_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    write_mnist(tmp_path / "upstream")
    mnist = CATALOGUE["mnist"]
    bare = tuple(replace(download, sha256="") for download in mnist.downloads)
    monkeypatch.setitem(CATALOGUE, "mnist", replace(mnist, downloads=bare))
    options = ("--data-dir", str(tmp_path), "--mirror", (tmp_path / "upstream").as_uri())
    result = run("fetch", "mnist", *options)
    assert result.exit_code == 0
    assert result.stdout.split() == [str(file) for file in data.locate("mnist", tmp_path) or []]
    assert len(answer("fetch", "mnist", *options)["files"]) == 4
    assert run("fetch", "digits").output == "digits is embedded and needs no file.\n"


@pytest.mark.parametrize("arguments", [("describe", "minst"), ("locate", "minst"), ("fetch", "minst")])
def test_a_name_that_is_not_known_is_bad_input(arguments: tuple[str, str]) -> None:
    """The error goes up as it is: the command line turns it into a sentence and an exit code in one place."""
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert "Did you mean 'mnist'" in str(result.exception)


def test_a_failed_download_is_bad_input(tmp_path: Path) -> None:
    result = run("fetch", "mnist", "--data-dir", str(tmp_path), "--mirror", tmp_path.as_uri())
    assert isinstance(result.exception, InputError)
    assert "could not be downloaded" in str(result.exception)
