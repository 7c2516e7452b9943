"""Real processes that ``torchrun`` starts on this machine, and that are gone when a test ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "cli"))  # for the command line inside this process
from cli_helpers import Inside as Inside  # noqa: E402

LONG = 500
"""Seconds: a busy machine may pause everything for minutes."""


def free_port() -> int:
    """A port on the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    """One thread a rank, and modules of the tests that a script may import."""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def launched(ranks: int, *words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """``torchrun`` with so many ranks, in a session of its own; nothing of it is left after the block."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
        "--master-addr", "127.0.0.1", "--master-port", str(free_port()), *words,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment(),
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        left = descendants(process.pid)
        for pid in ([process.pid] if process.poll() is None else []) + left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=60)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def torchrun(ranks: int, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    with launched(ranks, *words, cwd=cwd) as process:
        out, err = process.communicate(timeout=LONG)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (name / "children").read_text().split()]
    return found + [below for child in found for below in descendants(child)]


def process_of_rank(launcher: int, rank: int) -> int:
    """The process that the launcher started as this rank."""
    for pid in descendants(launcher):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
    raise AssertionError(f"there is no rank {rank} below process {launcher}")


def wait_for_entries(process: subprocess.Popen[str], ledger: Path, entries: int) -> None:
    """Until the ledger has so many lines."""
    until = time.monotonic() + LONG
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < entries:
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.005)


def wait_for_the_end(pid: int) -> None:
    """Until a process, which is nobody's child here, has ended; whether or not its parent has noticed."""
    until = time.monotonic() + LONG
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":
            return
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)
