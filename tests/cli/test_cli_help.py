"""Every command explains itself, and the top of the command line keeps its word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Inside, saltflat

from saltflat.cli.app import COMMANDS
from saltflat.models import names


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


def test_the_top_lists_every_command(run: Inside) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name, words in COMMANDS.items():
        assert name in out
        assert words.split(",")[0] in out
    assert "Exit codes: 0 done, 1 a check failed, 2 bad input" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, run: Inside) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage: saltflat" in out
    assert "Examples:" in out
    assert f"saltflat {command}" in out


def test_commands_are_files(run: Inside) -> None:
    from saltflat import cli

    folder = Path(cli.__file__).parent
    assert all((folder / f"{name}.py").exists() for name in COMMANDS)


def test_models_as_a_table_and_as_json(run: Inside) -> None:
    code, out, _ = run("models")
    assert code == 0
    assert all(name in out for name in names())
    code, out, _ = run("models", "--json")
    assert [entry["name"] for entry in json.loads(out)] == names()
    code, out, _ = run("models", "cnn-selu", "--json")
    assert json.loads(out)["parameters"] == 550_570
    code, out, _ = run("models", "cnn-selu")
    assert "550570" in out
    assert "Did you mean 'cnn-selu'" in run.refused("models", "cnn-selo")


def test_as_a_module() -> None:
    done = saltflat("--help")
    assert done.returncode == 0
    assert "Usage: saltflat" in done.stdout
    assert done.stderr == ""
