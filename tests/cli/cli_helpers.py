"""Running the command line: as a process of its own, or quicker inside this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    "--data", "digits", "--noise-multiplier", "2", "--delta", "1e-4", "--steps", "4", "--batch-size", "64",
)  # fmt: skip
"""Options of a run that takes a second."""


def write_table(name: str, rows: int = 120, weight: float = 0) -> None:
    """A table of visits: two numbers, an outcome that follows from the first, and whose visit it was.

    Tables with another least ``weight`` share no row.
    """
    lines = [f"{i % 7},{weight + (i * 3) % 5},{'yes' if i % 7 > 3 else 'no'},{i % 30}" for i in range(rows)]
    Path(name).write_text("\n".join(["height,weight,outcome,patient", *lines, ""]), encoding="utf-8")


def saltflat(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``saltflat ARGUMENTS`` in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "saltflat", *arguments],
        capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300,
    )  # fmt: skip


def answer(*arguments: str, cwd: Path | None = None) -> dict[str, Any]:
    """The one JSON object that a command printed; anything else on standard output would break it."""
    done = saltflat(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=_no_constant)


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def killed_after(
    entries: int, command: list[str], folder: Path, with_signal: int = signal.SIGKILL, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command and kill it when the ledger in ``folder`` has so many entries."""

    def listen() -> None:  # a process in the background may have been told to ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, preexec_fn=listen,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    ledger, until = folder / "ledger.jsonl", time.monotonic() + 200
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < entries:
        assert process.poll() is None, f"it ended before it could be killed: {process.communicate()}"
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.005)
    process.send_signal(with_signal)
    out, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Inside:
    """The same entry point in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        from saltflat.cli import main

        self.monkeypatch.setattr(sys, "argv", ["saltflat", *arguments])
        self.monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main exchanges it
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = self.capsys.readouterr()
        code = stop.value.code
        return (code if isinstance(code, int) else 0), out, err

    def answer(self, *arguments: str) -> dict[str, Any]:
        """The one JSON object that a command printed, as `answer` gives it."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return json.loads(out, parse_constant=_no_constant)

    def refused(self, *arguments: str) -> str:
        """What a command said on standard error that refused its input: a sentence, and nothing else anywhere."""
        code, out, err = self(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err
