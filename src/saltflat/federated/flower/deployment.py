"""A Flower network on this machine: one SuperLink and some SuperNodes as processes, on loopback and free ports.

Processes are started here and stopped here, by their id, also after errors and Ctrl-C; if this process is killed, they
end too. What Flower writes goes to a temporary folder. It sends no telemetry and looks for no updates.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from saltflat.errors import SaltflatError, check_count
from saltflat.federated.flower.job import check_installed
from saltflat.ranks.stopping import undisturbed

START = 180.0
STOP = 10.0

# What Flower's program started may outlive it: Flower's own watch sends each one Ctrl-C, once, and a process that waits
# for an answer can miss it. So a second process waits for the end of the program, and then ends all of its group.
WATCH = """
import os, signal, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.2)
time.sleep(1)
os.killpg(0, signal.SIGKILL)
"""

# Linux ends a process whose parent has died, if it asked for that; elsewhere a killed parent leaves its children.
UNDER = f"""
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
program = os.getpid()
if hasattr(os, "fork") and os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-c", {WATCH!r}, str(program)])
os.execv(sys.argv[2], sys.argv[2:])
"""


class Deployment:
    """A SuperLink and ``nodes`` SuperNodes, as a context: they are there inside, and gone after it."""

    def __init__(self, nodes: int) -> None:
        check_installed()
        check_count("nodes", nodes)
        self.count = nodes
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.path: Path | None = None

    def __enter__(self) -> Deployment:
        self.path = Path(tempfile.mkdtemp(prefix="saltflat-flower-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """Where Flower may write: logs, its configuration, copies of the app."""
        assert self.path is not None, "the deployment is not running"
        return self.path

    @property
    def nodes(self) -> list[subprocess.Popen[bytes]]:
        """The processes of the SuperNodes, by partition."""
        return [process for name, process in self.processes.items() if name.startswith("node-")]

    def submit(self, app: Path) -> subprocess.Popen[bytes]:
        """Start the run of an app, with its log in ``run.log``. The process ends when the run does."""
        return self._spawn("run", ["flwr", "run", str(app), "local", "--stream"])

    def check(self) -> None:
        """Raise if the SuperLink is gone. A SuperNode may be: its clients do not answer then."""
        code = self.processes["superlink"].poll()
        if code is not None:
            raise SaltflatError(f"The SuperLink ended with code {code}.\n{self.tail('superlink')}")

    def tail(self, name: str) -> str:
        """The last dozen lines of a process's log."""
        file = self.folder / f"{name}.log"
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        return "\n".join(f"  {line}" for line in text.splitlines()[-12:])

    def stop(self) -> None:
        """End all processes, nodes before the SuperLink, and remove the folder. Does nothing a second time."""
        with undisturbed():
            started = list(self.processes.values())
            family: dict[int, str] = {}
            for process in started:
                if process.poll() is None:
                    family |= _family(process.pid)
            for process in reversed(started):
                if process.poll() is None:
                    process.terminate()
            until = time.monotonic() + STOP
            for process in reversed(started):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
                if process.poll() is None:
                    process.kill()
                    process.wait()
            # A node may have had another child since: it is an orphan now, and still of the node's session.
            _end(family | _in_sessions({process.pid for process in started}), until)
            self.processes.clear()
            if self.path is not None:
                shutil.rmtree(self.path, ignore_errors=True)
                self.path = None

    def _start(self) -> None:
        port, *own = _free_ports(1 + self.count)
        here = f"127.0.0.1:{port}"
        home = self.folder / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{here}"\ninsecure = true\n',
            encoding="utf-8",
        )
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        self._spawn("superlink", [*link, "--disable-runtime-dependency-installation"])
        self._await_port(port)
        for part, at in enumerate(own):
            words = f"partition-id={part} num-partitions={self.count}"
            node = ["flower-supernode", "--insecure", "--superlink", here, "--port", str(at)]
            self._spawn(f"node-{part}", [*node, "--node-config", words])

    def _spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        program = Path(sys.executable).parent / command[0]
        found = str(program) if program.exists() else shutil.which(command[0])
        if found is None:
            raise SaltflatError(f"The program {command[0]} of Flower was not found beside {sys.executable}.")
        with (self.folder / f"{name}.log").open("wb") as log:
            # A session of its own: Ctrl-C on the terminal reaches this process, which then stops the others.
            process = subprocess.Popen(
                [sys.executable, "-c", UNDER, str(os.getpid()), found, *command[1:]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(), start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return os.environ | {
            "PATH": path, "FLWR_HOME": str(self.folder / "flower"), "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1",
        }  # fmt: skip

    def _await_port(self, port: int) -> None:
        until = time.monotonic() + START
        while time.monotonic() < until:
            self.check()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.05)
        raise SaltflatError(f"The SuperLink did not start in {START:g} s.\n{self.tail('superlink')}")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _family(pid: int) -> dict[int, str]:
    """A process and its descendants with the times of their birth, where the system tells (Linux)."""
    found, new = {pid: _born(pid)}, [pid]
    while new:
        for file in Path(f"/proc/{new.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError, ValueError):
                children = {int(word) for word in file.read_text().split()} - found.keys()
                found |= {child: _born(child) for child in children}
                new.extend(children)
    return found


def _in_sessions(leaders: set[int]) -> dict[int, str]:
    """All processes of the sessions that these began, with the times of their birth, where the system tells (Linux)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(words[3]) in leaders:
                found[int(folder.name)] = words[19]
    return found


def _end(family: dict[int, str], until: float) -> None:
    """Wait for processes that end by themselves once their parent has; then end them."""
    while any(_alive(*one) for one in family.items()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid, born in family.items():
        if _alive(pid, born):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _born(pid: int) -> str:
    """When a process started: with it, an id that was given away again is not mistaken for it. Empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if words[0] == "Z" else words[19]
    except (OSError, IndexError):
        return ""


def _alive(pid: int, born: str) -> bool:
    return born != "" and _born(pid) == born
