"""docs/cli.md says what the commands say: their options, and the samples that do not depend on chance."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cli_helpers import Inside

from saltflat.cli.app import COMMANDS, app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {
    title.removeprefix("saltflat "): body
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
}
# options of train that other commands take as well are described there
SHARED = ("compare", "tune", "audit")
EVERYWHERE = {"--help", "--json", "--quiet"}  # described at the top of the page


def options_of(command: click.Command) -> set[str]:
    found = {
        word
        for param in command.params
        if isinstance(param, click.Option)
        for word in (*param.opts, *param.secondary_opts)
    }
    if isinstance(command, click.Group):
        found |= {word for child in command.commands.values() for word in options_of(child)}
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_named(name: str) -> None:
    """Fails when an option is added and its section does not say so (tried)."""
    command = app.get_command(click.Context(app), name)
    assert command is not None
    said = set(re.findall(r"--[a-z][a-z-]+", SECTIONS[name]))
    if name in SHARED:
        assert "options of `train`" in SECTIONS[name]
        said |= set(re.findall(r"--[a-z][a-z-]+", SECTIONS["train"]))
    top = TEXT.partition("## saltflat quickstart")[0]
    assert all(word in top for word in EVERYWHERE)
    missing = options_of(command) - said - EVERYWHERE
    assert not missing, f"docs/cli.md does not name {sorted(missing)} in the section of {name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_made_up(name: str) -> None:
    """Every option in a section is one of some command, so that none outlives its removal."""
    known = {"--help", "--debug", "--version"}
    for other in COMMANDS:
        command = app.get_command(click.Context(app), other)
        assert command is not None
        known |= options_of(command)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", SECTIONS[name])) <= known


def test_the_list_of_commands_is_that_of_the_top(run: Inside) -> None:
    sample = samples("saltflat --help")["saltflat --help"]
    code, out, _ = run("--help")
    assert code == 0
    assert squeezed(sample) in squeezed(out)
    named = re.findall(r"^  ([a-z]+) {2,}\S", sample, flags=re.MULTILINE)
    assert named == list(COMMANDS)


def samples(beginning: str) -> dict[str, str]:
    """Commands of the page's console blocks that begin so, with what is printed below them."""
    blocks = re.findall(r"^```console\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    said = [pair for block in blocks for pair in said_in(block.replace("\\\n", " "))]
    return {command: output for command, output in said if command.startswith(beginning)}


def said_in(block: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^\$ (.+)$", block, flags=re.MULTILINE)
    for command, output in zip(parts[1::2], parts[2::2]):
        yield " ".join(command.split()), output.strip("\n")


def squeezed(text: str) -> str:
    return " ".join(text.split())


def rounded(text: str) -> str:
    """Numbers with more than eight digits to eight: the last ones of a Fourier transform are the processor's."""
    return re.sub(r"\d+\.\d{8,}", lambda found: f"{float(found.group()):.8g}", text)


# nothing random in them, and nothing that depends on the machine beyond the eighth digit
STEADY = ("calibrate", "account", "data list", "data describe", "models", "train --batch-size 5000")
CALLS = [command for beginning in STEADY for command in samples(f"saltflat {beginning}")]


def test_there_are_samples_of_each() -> None:
    assert all(samples(f"saltflat {beginning}") for beginning in STEADY)
    assert all("$ saltflat" in SECTIONS[name] for name in COMMANDS), "every section shows the command at work"


@pytest.mark.parametrize("command", CALLS)
def test_steady_samples_are_what_is_printed(
    command: str, run: Inside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To eight digits. Fails when a noise multiplier on the page is off by one unit (tried)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SALTFLAT_DATA", raising=False)
    monkeypatch.setattr("saltflat.data.places.SYSTEM_DIRS", ())
    code, out, err = run(*shlex.split(command)[1:])
    expected = samples(command)[command]
    if expected.startswith("saltflat: "):
        assert (code, err.strip("\n")) == (2, expected)
    else:
        assert code == 0, err
        assert rounded(squeezed(out)) == rounded(squeezed(expected)), textwrap.indent(out, "  ")
