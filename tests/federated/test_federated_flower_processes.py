"""Rounds over a real Flower network on loopback: processes that are started, killed, restarted and gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'saltflat[federated]'")

import saltflat as sf
from saltflat.training.losses import cross_entropy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="processes are found in /proc (Linux)"
    ),
]

# One batch an epoch: the order of rows, which every process draws for itself, then does not matter.
QUICK = (
    "--data", "digits", "--model", "mlp", "--clients", "20", "--rate", "0.5", "--noise-multiplier", "1",
    "--local-batch-size", "1000", "--local-epochs", "2",
)  # fmt: skip
FLOWER = ("--engine", "flower", "--nodes", "2")
LONG = 500


@contextlib.contextmanager
def started(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``saltflat federate`` with a home and a temporary folder of its own, by which its processes can be found.

    It is gone after the block, also when a test fails.
    """
    (home / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HOME": str(home), "TMPDIR": str(home / "tmp")}
    environment.pop("FLWR_HOME", None)

    def listen() -> None:  # a process in the background may have been told to ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        [sys.executable, "-m", "saltflat", "federate", *arguments, "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=listen,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.communicate()


def finish(home: Path, *arguments: str) -> None:
    with started(home, *arguments) as process:
        out, err = process.communicate(timeout=LONG)
    assert process.returncode == 0, out + err


def family(home: Path) -> dict[int, str]:
    """Processes that were started with this home, and their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"HOME={home}\0".encode() in (entry / "environ").read_bytes():
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:
                    found[int(entry.name)] = line
    return found


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + LONG
    while not what():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended too early: {process.communicate()}")
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.02)


def assert_nothing_left(home: Path) -> None:
    wait_for(lambda: not family(home))
    assert list((home / "tmp").glob("saltflat-flower-*")) == []
    assert not (home / ".flwr").exists()


def releases(folder: Path) -> int:
    ledger = folder / "ledger.jsonl"
    return ledger.read_text().count('"release"') if ledger.exists() else 0


def test_flower_and_the_simulation_find_the_same_model(tmp_path: Path) -> None:
    """Five rounds, noise and cohorts from one seed; nothing stays behind."""
    same = (*QUICK, "--rounds", "5", "--seed", "3")
    finish(tmp_path, *same, *FLOWER, "--out", str(tmp_path / "there"))
    assert_nothing_left(tmp_path)
    finish(tmp_path, *same, "--out", str(tmp_path / "here"))
    here, there = (load_file(tmp_path / name / "weights.safetensors") for name in ("here", "there"))
    assert here.keys() == there.keys()
    for name, weight in here.items():
        assert torch.allclose(weight, there[name], atol=1e-5), name
    assert sf.verify(tmp_path / "there", accept=("not-private",)).passed


def kill_node(home: Path, part: int) -> None:
    """SIGKILL to one SuperNode."""
    (node,) = [
        pid
        for pid, line in family(home).items()
        if "flower-supernode" in line and f"partition-id={part} " in line
    ]
    os.kill(node, signal.SIGKILL)


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The ledger without what follows from the time and from the entries before."""
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in ("time", "previous", "hash")}
        for line in lines
    ]


def test_a_killed_node_changes_what_the_server_received_and_nothing_else(tmp_path: Path) -> None:
    """The model and the ledger are those of a simulation in which the node's clients do not answer.

    The node dies while it works on the first round; should its answers have been under way already, on the second.
    """
    out = tmp_path / "run"
    words = (*QUICK, "--rounds", "2", "--seed", "3", *FLOWER, "--timeout", "25", "--out", str(out))
    with started(tmp_path, *words) as process:
        wait_for(lambda: releases(out) >= 1, process)
        kill_node(tmp_path, 1)
        told = process.communicate(timeout=LONG)
    assert process.returncode == 0, told
    assert_nothing_left(tmp_path)

    rows = sf.data.load("digits")
    clients = sf.federated.partition(rows.train, 20)
    plan = sf.Run.load(out).plan
    found = load_file(out / "weights.safetensors")
    distances = []
    for first in (1, 2, 3):  # 3: nobody is missing
        torch.manual_seed(3)
        model = sf.models.build("mlp", classes=10, in_features=64)

        def gone(number: int, client: int, first: int = first) -> bool:
            return number >= first and client % 2 == 1

        engine = sf.federated.Simulation(model, clients, cross_entropy, drop=gone)
        folder = tmp_path / f"without-from-{first}"
        sf.federate(model, engine, plan, seed=3, out=folder, progress=False)
        assert recorded(folder) == recorded(out)
        distances.append(max(float((found[n] - w).abs().max()) for n, w in model.state_dict().items()))
    assert min(distances[:2]) < 1e-5 < distances[2]


def test_a_killed_node_and_a_killed_server(tmp_path: Path) -> None:
    """A node dies in a round: the next ones are released all the same. Then the server dies, and is resumed."""
    out = tmp_path / "run"
    with started(tmp_path, *QUICK, "--rounds", "8", *FLOWER, "--timeout", "6", "--out", str(out)) as process:
        wait_for(lambda: releases(out) >= 1, process)
        kill_node(tmp_path, 1)
        wait_for(lambda: releases(out) >= 4, process)
        process.kill()
        process.communicate(timeout=LONG)
    wait_for(lambda: not family(tmp_path))  # without anybody who could stop them
    done = releases(out)
    finish(tmp_path, "--resume", str(out), "--nodes", "2")
    found = sf.verify(out)
    assert found.passed
    run = sf.Run.load(out)
    assert run.plan.steps == 8
    assert done <= releases(out) <= 8 + 2  # a round that was asked and not finished stays in the ledger
    left = list((tmp_path / "tmp").glob("saltflat-flower-*"))
    assert len(left) <= 1  # what the killed server could not remove
    assert not (tmp_path / ".flwr").exists()


def test_ctrl_c_stops_every_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(tmp_path, *QUICK, "--rounds", "50", *FLOWER, "--out", str(out)) as process:
        wait_for(lambda: releases(out) >= 1, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LONG)
    assert process.returncode != 0
    assert "Traceback" not in err
    assert_nothing_left(tmp_path)
