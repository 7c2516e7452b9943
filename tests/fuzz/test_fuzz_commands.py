"""Random command lines to every command: an exit code and a sentence, never a traceback, and no file is touched.

Training, attacks and measurements are cut short where they begin, and accountants are replaced by a formula of
the right form: what is tried here is everything before. Nothing reaches for the network.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from fuzz_helpers import cases, snapshot, still_there
from hypothesis import given
from hypothesis import strategies as st

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat import plans
from saltflat.cli import main
from saltflat.cli.app import COMMANDS
from saltflat.errors import SaltflatError

pytestmark = pytest.mark.filterwarnings("ignore")

NUMBERS = ("-1", "0", "1", "2", "3", "0.5", "40", "1e-5", "1e-300", "1e308", "nan", "inf", "-inf", "1e400", "", "abc",
           "1_0", " 5", "\u0663", "0x10", "--", "5,5", "-0.0", "True")  # fmt: skip
HUGE = ("99999999999999999999", "1" * 400)
WORDS = ("", " ", "digits", "digitz", "mlp", "dp-sgd", "dp-sat+swa", "sai+", "+", "sgd", "x" * 300, "é\u202e", "\n",
         "*", "steps=3,noise-multiplier=2", "steps=", "learning_rate=1,2", "=", "a=b=c", "outcome", "here", "done",
         "done/x", "keep.txt", "run.toml", "broken.toml", "rows.csv", "empty.csv", "pic.png", ".",
         "..", "/", "nowhere/at/all", "-", "--json", "-h", "\udcff")  # fmt: skip


class CutShortError(SaltflatError):
    """Where the long part of a command would begin."""


def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command and sub-command with its path."""
    found: dict[tuple[str, ...], click.Command] = {}
    for name in COMMANDS:
        command = importlib.import_module(f"saltflat.cli.{name}").command
        if isinstance(command, click.Group):
            found |= {(name, sub): command.commands[sub] for sub in command.commands}
        else:
            found[(name,)] = command
    return found


ALL = commands()


def value_for(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Values that are right, nearly right and wrong."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return st.sampled_from((*kind.choices, "other", "", "FAST"))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType | click.IntRange):
        return st.sampled_from(NUMBERS + HUGE)
    return st.sampled_from(WORDS) | st.sampled_from(NUMBERS) | st.text(max_size=6)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command and up to five of its options, or none of that."""
    path = draw(st.sampled_from(sorted(ALL)))
    command, line = ALL[path], list(path)
    options = [p for p in command.params if isinstance(p, click.Option)]
    for option in draw(st.lists(st.sampled_from(options), max_size=5)) if options else []:
        line.append(option.opts[0])
        if not option.is_flag:
            line.append(draw(value_for(option)))
    for argument in command.params:
        if isinstance(argument, click.Argument) and draw(st.booleans()):
            line.insert(len(path), draw(st.sampled_from(WORDS)))
    if draw(st.integers(0, 9)) == 0:
        line.insert(
            draw(st.integers(0, len(line))), draw(st.sampled_from(("--nothing", "-q", "nothing", "-h", "")))
        )
    return line


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with files of all kinds, where every command is short and alone."""
    home = tmp_path_factory.mktemp("home")
    (home / "keep.txt").write_text("keep me")
    (home / "pic.png").write_bytes(b"\x89PNG not really")
    (home / "run.toml").write_text('data = "digits"\nsteps = 2\nbatch-size = 64\nnoise-multiplier = 4\n')
    (home / "broken.toml").write_text("epsilon = [[[")
    (home / "rows.csv").write_text("a,outcome\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    (home / "empty.csv").write_text("")
    plan = plans.dp_sgd(noise_multiplier=2.0, delta=1e-3, population=40, batch_size=8, steps=2)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sf.fit(small_net(), small_data(), plan, out=home / "done", progress=False)
        patch.chdir(home)
        patch.setenv("HOME", str(home / "nobody"))
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setattr(socket.socket, "connect", _no_network)
        patch.setattr(socket, "getaddrinfo", _no_network)
        for where in ("cli.training_run.fit", "cli.federated_run.federate", "cli.flower_run.Deployment",
                      "training.tune.fit", "training.trials.Trials.run", "audit.run",
                      "cli.bench.measured"):  # fmt: skip
            patch.setattr(f"saltflat.{where}", _cut_short)
        patch.setattr(importlib.import_module("saltflat.synthesis.train"), "Trainer", _cut_short)
        # the package has a function of the module's name
        patch.setattr(sys.modules["saltflat.accounting.epsilon"], "_epsilon", _rough_epsilon)
        patch.setattr("saltflat.accounting.selection._curve", _rough_curve)
        yield home


def _no_network(*_: Any, **__: Any) -> None:
    raise OSError("no network in tests")


def _cut_short(*_: Any, **__: Any) -> None:
    raise CutShortError("This is where the long part would begin.")


def _rough_epsilon(events: Any, delta: float, *_: Any) -> float:
    """Of the right form, and quick: accountants have tests of their own."""
    try:
        return math.sqrt(-math.log(delta) * sum(e.steps * (e.rate / e.noise_multiplier) ** 2 for e in events))
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _rough_curve(events: Any) -> tuple[Any, Any]:
    orders = np.array([1.5, 2.0, 4.0, 8.0, 32.0, 256.0])
    return orders, orders * min(1e300, _rough_epsilon(events, 1 / math.e) ** 2)


def said(line: list[str]) -> tuple[int, str, str]:
    """Exit code and streams of ``saltflat LINE``; anything but an exit is a defect."""
    out, err = io.StringIO(), io.StringIO()
    before, shown = sys.argv, warnings.showwarning
    sys.argv = ["saltflat", *line]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as stop:
                code = stop.code
    finally:
        sys.argv, warnings.showwarning = before, shown
    return (code if isinstance(code, int) else 0), out.getvalue(), err.getvalue()


@given(line=lines())
@cases(700)
def test_any_command_line(line: list[str], home: Path) -> None:
    """Fails for an option whose value reaches torch or numpy unchecked."""
    before = snapshot(home)
    code, out, err = said(line)
    assert code in (0, 1, 2, 130), (line, code)
    assert "Traceback" not in out + err, line
    if code == 2:
        assert err.strip(), line
    still_there(before)
    os.chdir(home)
