"""How the command line speaks: colours, progress, errors, and the same few options everywhere."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cli_helpers import Inside

from saltflat.cli.app import COMMANDS, app
from saltflat.cli.words import painted, painted_checks

QUICK = ("--noise-multiplier", "4", "--delta", "1e-4", "--batch-size", "256", "--steps", "12")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command and sub-command."""
    top = click.Context(app)
    for name in COMMANDS:
        command = app.get_command(top, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", child) for sub, child in command.commands.items())
        else:
            yield name, command


LEAVES = dict(leaves())
# what prints one line, or a record of an account, has nothing to leave out
WITHOUT_QUIET = {
    "sign", "keygen", "completion", "data describe", "data locate", "budget create", "budget show", "budget list",
    "budget return", "budget close",
}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_the_same_options_everywhere(name: str) -> None:
    options = {word for param in LEAVES[name].params for word in param.opts}
    assert ("--json" in options) == (name != "completion")
    if name not in WITHOUT_QUIET:
        assert "--quiet" in options
    for param in LEAVES[name].params:
        if isinstance(param, click.Option):
            assert param.help, f"{name} {param.opts[0]} has no help"
            assert param.help[0].isupper() or param.help[0] in "δεσcds", param.help
            assert "_" not in param.opts[0]


@pytest.mark.parametrize("name", [name for name in LEAVES if " " in name])
def test_sub_commands_have_examples(name: str, run: Inside) -> None:
    code, out, _ = run(*name.split(), "--help")
    assert code == 0
    assert "Examples:" in out
    assert f"saltflat {name}" in out


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trian", "There is no command 'trian'. Did you mean 'train'"),
        ("train --epsilonn 1", "No such option"),
        ("train --epsilon x", "'x' is not a valid float.\n  See: saltflat train --help"),
        ("train --method", "requires an argument"),
        ("train --steps 2 --out file/x --quiet", "out='file/x' cannot be made (Not a directory)"),
        ("train --data table.csv", "label is missing"),
        ("train --population 9 --test-fraction 0.5", "depends on the number of rows"),
        ("compare --methods ,", "names none"),
        ("compare --methods dp-sgd,sai,dp-sgd", "names dp-sgd twice"),
        ("compare --data table.csv --label b --steps 1", "has no test rows"),
        ("verify folder", "It is a folder of runs. Name one of them: folder/run."),
        ("evaluate folder --epsilon 1", "It is a folder of runs. Name one of them: folder/run."),
        ("keygen file/key.pem", "saltflat: file/key.pem: Not a directory."),
        ("calibrate --epsilon 1 --population 9", "batch_size is missing"),
        ("calibrate --epsilon 1 --population 9 --batch-size 3", "steps is missing"),
        ("calibrate --epsilon 1 --population 9 --batch-size 3 --steps 1 --plot no/p.png", "no folder 'no'"),
        ("account --population 9 --batch-size 3 --steps 2", "noise_multiplier is missing"),
        ("budget show x --budgets none", "There are none yet."),
        ("data describe digitz", "Did you mean 'digits'"),
        ("models mlq", "Did you mean 'mlp'"),
        ("completion", "Choose from: bash, zsh, fish."),
        ("quickstart extra", "unexpected extra argument"),
    ],
)
def test_every_error_has_one_form(line: str, words: str, run: Inside) -> None:
    """One label, what is wrong, what to do next; exit code 2; nothing on standard output, nothing left behind."""
    Path("file").touch()
    Path("table.csv").write_text("a,b\n1,x\n2,y\n")
    Path("folder/run").mkdir(parents=True)
    Path("folder/run/plan.json").touch()
    before = sorted(Path().rglob("*"))
    err = run.refused(*line.split())
    assert err.startswith("saltflat: ")
    assert words in err
    assert "Errno" not in err
    assert "Usage" not in err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("line", ["", "data", "budget"])
def test_a_group_alone_explains_itself(line: str, run: Inside) -> None:
    code, out, err = run(*line.split())
    assert "Commands:" in out + err
    assert "Examples:" in out + err
    assert code in (0, 2)  # click 8.1 says 0


def test_no_epsilon_is_lost_where_there_is_nothing_to_test_on(run: Inside) -> None:
    Path("table.csv").write_text("a,b\n" + "".join(f"{i % 5},{i % 2}\n" for i in range(60)))
    settings = (
        "--data", "table.csv", "--label", "b", "--noise-multiplier", "4", "--delta", "1e-3", "--steps", "2",
    )  # fmt: skip
    code, out, _ = run("train", *settings, "--out", "here", "--quiet")
    assert code == 0
    assert re.match(r"ε = [0-9.]+, δ = 0.001 \(no test rows", out)
    code, out, _ = run("train", *settings, "--test-fraction", "0.25", "--out", "there", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] is not None
    assert "test_fraction=0.5 differs" in run.refused("train", "--resume", "there", "--test-fraction", "0.5")


# --- quiet --------------------------------------------------------------------------------------------


def test_quiet_leaves_the_number_that_was_asked_for(run: Inside) -> None:
    common = ("--population", "1000", "--batch-size", "100", "--steps", "10", "--quiet")
    code, out, err = run("calibrate", "--epsilon", "1", *common)
    assert (code, err) == (0, "")
    noise = float(out)
    code, out, _ = run("account", "--noise-multiplier", str(noise), *common)
    assert 0.99 < float(out) <= 1
    phases = ("--phase", "steps=5,noise-multiplier=3", "--phase", "steps=5", "--phase", "steps=5")
    code, out, _ = run(
        "calibrate", "--epsilon", "1", "--population", "1000", "--rate", "0.1", *phases, "--quiet"
    )
    assert len(out.split()) == 2
    assert run("models", "--quiet")[1].split()[:2] == ["centred-linear", "cnn-selu"]
    assert run("data", "list", "--quiet")[1].split()[0] == "digits"


def test_quiet_verdicts(run: Inside) -> None:
    assert run("train", *QUICK, "--out", "here", "--quiet")[0] == 0
    code, out, err = run("verify", "here", "--quiet")
    assert (code, err) == (0, "")
    assert out.startswith("Verified: ε = ")
    assert out.count("\n") == 1
    Path("here/metrics.jsonl").write_text("")
    code, out, _ = run("verify", "here", "--quiet")
    assert code == 1
    assert out.startswith("NOT VERIFIED")
    assert out.count("\n") == 1


def test_keys_and_signatures_as_json(run: Inside) -> None:
    pytest.importorskip("cryptography", reason="signing is an extra of the package")
    code, out, _ = run("keygen", "key.pem", "--json")
    assert json.loads(out) == {"private_key": "key.pem", "public_key": "key.pem.pub"}
    assert run("train", *QUICK, "--out", "here", "--quiet")[0] == 0
    assert run.answer("sign", "here", "--key", "key.pem", "--json")["signed"] is True
    Path("here/metrics.jsonl").write_text("")
    code, out, _ = run("sign", "here", "--key", "key.pem", "--json")
    assert code == 1
    assert json.loads(out)["signed"] is False


# --- colours and progress -----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert painted("x", Terminal(), fg="red") == "\x1b[31mx\x1b[0m"
    assert painted("x", io.StringIO(), fg="red") == "x"
    monkeypatch.setenv("TERM", "dumb")
    assert painted("x", Terminal(), fg="red") == "x"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("x", Terminal(), fg="red") == "x"


def test_the_words_of_checks_are_coloured_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    text = "Verifying passed\n  passed    files\n  FAILED    page   passed\n  noted     x\n"
    shown = painted_checks(text)
    assert COLOUR.sub("", shown) == text
    assert shown.count("\x1b[32m") == 1
    assert "\x1b[31mFAILED" in shown


def on_a_terminal(*arguments: str, cwd: Path, **more: str) -> str:
    """Everything that a process wrote to a terminal of 80 columns."""
    leader, follower = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "saltflat", *arguments],
        stdin=follower, stdout=follower, stderr=follower, cwd=cwd, env=environment | size | more,
    )  # fmt: skip
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other side was closed
            break
        if not part:
            break
        written += part
    os.close(leader)
    process.wait(timeout=300)
    return written.decode()


def test_a_terminal_has_progress_and_colours_unless_told_not_to(tmp_path: Path) -> None:
    shown = on_a_terminal("train", *QUICK, "--out", "a", cwd=tmp_path)
    assert COLOUR.search(shown)
    lines = [line for part in CONTROL.sub("", shown).split("\n") for line in part.split("\r")]
    bars = [line for line in lines if "━" in line]
    assert bars
    assert max(map(len, bars)) <= 80
    assert all(re.search(r"\d+/12 ", line) for line in bars), bars
    notes = [line for line in lines if line.strip().startswith("ε so far")]
    assert re.match(r" *ε so far [0-9.]+ of the plan's [0-9.]+, accuracy [0-9.]+% \(not covered\)", notes[-1])
    plain = on_a_terminal("train", *QUICK, "--out", "b", cwd=tmp_path, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|38;|4[0-9])[0-9;]*m", plain)
    assert "12/12" in plain
    assert not CONTROL.search(on_a_terminal("verify", "a", cwd=tmp_path, NO_COLOR="1"))
    assert "\x1b[32mpassed" in on_a_terminal("verify", "a", cwd=tmp_path)
    assert "\x1b[31m\x1b[1msaltflat:" in on_a_terminal("verify", "nowhere", cwd=tmp_path)


@pytest.mark.parametrize("width", [50, 80, 132])
def test_a_long_note_leaves_the_count_whole(width: int) -> None:
    """Fails when the note stands beside the bar (tried)."""
    from rich.console import Console

    from saltflat.training.progress import bar_with_note

    out = io.StringIO()
    bar = bar_with_note(Console(file=out, force_terminal=True, width=width, color_system=None))
    note = "ε so far 2.31 of the plan's 3, accuracy 91.67% (not covered), test loss 0.312" * 2
    task = bar.add_task("dp-sat-early-stop+adam-bc+swa", total=123_456, note=note)
    bar.start()
    bar.update(task, completed=123_455)
    bar.refresh()
    bar.stop()
    lines = [line for line in re.split(r"[\r\n]+", CONTROL.sub("", out.getvalue())) if line.strip()]
    assert all(len(line) <= width for line in lines)
    bars = [line for line in lines if "━" in line]
    assert bars
    assert all("123455/123456" in line or "0/123456" in line for line in bars)
    assert any("ε so far 2.31 of the plan's 3, acc" in line for line in lines)
