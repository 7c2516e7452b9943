"""Rounds over a real Flower network on loopback: processes that are started, killed, restarted and gone afterwards.

What takes the time is starting them: Flower starts a process on a node for every message, and each imports torch. So
there are as few rounds as a claim needs, and clients are trained one by one, without the parts of torch that stacked
models need.
"""

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
from saltflat.federated.flower.deployment import Deployment
from saltflat.training.losses import cross_entropy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="processes are found in /proc (Linux)"
    ),
]

# One batch an epoch: the order of rows, which every process draws for itself, then does not matter.
QUICK = (
    "--data", "digits", "--model", "mlp", "--clients", "20", "--rate", "0.5", "--noise-multiplier", "1",
    "--local-batch-size", "1000", "--local-epochs", "2", "--together", "1",
)  # fmt: skip
FLOWER = ("--engine", "flower", "--nodes", "2")
SEED = 3
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


def simulated(
    run: Path, folder: Path, drop: Callable[[int, int], bool] = lambda number, client: False
) -> dict[str, torch.Tensor]:
    """The weights that a simulation in this process finds with the plan and the seed of a run."""
    torch.manual_seed(SEED)
    model = sf.models.build("mlp", classes=10, in_features=64)
    clients = sf.federated.partition(sf.data.load("digits").train, 20)
    engine = sf.federated.Simulation(model, clients, cross_entropy, drop=drop)
    sf.federate(model, engine, sf.Run.load(run).plan, seed=SEED, out=folder, progress=False)
    return model.state_dict()


def distance(run: Path, weights: dict[str, torch.Tensor]) -> float:
    """The largest difference between a weight that a run found and the same one here."""
    found = load_file(run / "weights.safetensors")
    assert found.keys() == weights.keys()
    return max(float((found[name] - weight).abs().max()) for name, weight in weights.items())


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The ledger without what follows from the time and from the entries before."""
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in ("time", "previous", "hash")}
        for line in lines
    ]


def test_flower_and_the_simulation_find_the_same_model(tmp_path: Path) -> None:
    """Two rounds, noise and cohorts from one seed; nothing stays behind."""
    there = tmp_path / "there"
    finish(tmp_path, *QUICK, "--rounds", "2", "--seed", str(SEED), *FLOWER, "--out", str(there))
    assert_nothing_left(tmp_path)
    assert distance(there, simulated(there, tmp_path / "here")) < 1e-5
    assert recorded(there) == recorded(tmp_path / "here")
    assert sf.verify(there, accept=("not-private",)).passed


def kill_node(home: Path, part: int) -> None:
    """SIGKILL to one SuperNode."""
    (node,) = [
        pid
        for pid, line in family(home).items()
        if "flower-supernode" in line and f"partition-id={part} " in line
    ]
    os.kill(node, signal.SIGKILL)


def test_a_killed_node_changes_what_the_server_received_and_nothing_else(tmp_path: Path) -> None:
    """The model and the ledger are those of a simulation in which the node's clients do not answer.

    The node dies while it works on the round: a process that imports torch cannot have answered yet.
    """
    out = tmp_path / "run"
    words = (*QUICK, "--rounds", "1", "--seed", str(SEED), *FLOWER, "--timeout", "25", "--out", str(out))
    with started(tmp_path, *words) as process:
        wait_for(lambda: releases(out) >= 1, process)
        kill_node(tmp_path, 1)
        told = process.communicate(timeout=LONG)
    assert process.returncode == 0, told
    assert_nothing_left(tmp_path)
    without = simulated(out, tmp_path / "without", lambda number, client: client % 2 == 1)
    assert recorded(out) == recorded(tmp_path / "without")
    assert distance(out, without) < 1e-5 < distance(out, simulated(out, tmp_path / "with"))


def test_a_killed_node_and_a_killed_server(tmp_path: Path) -> None:
    """A node dies in a round: the next ones are released all the same. Then the server dies, and is resumed."""
    out = tmp_path / "run"
    with started(tmp_path, *QUICK, "--rounds", "4", *FLOWER, "--timeout", "6", "--out", str(out)) as process:
        wait_for(lambda: releases(out) >= 1, process)
        kill_node(tmp_path, 1)
        wait_for(lambda: releases(out) >= 3, process)
        process.kill()
        process.communicate(timeout=LONG)
    wait_for(lambda: not family(tmp_path))  # without anybody who could stop them
    done = releases(out)
    finish(tmp_path, "--resume", str(out), "--nodes", "2")
    found = sf.verify(out)
    assert found.passed
    run = sf.Run.load(out)
    assert run.plan.steps == 4
    assert done <= releases(out) <= 4 + 2  # a round that was asked and not finished stays in the ledger
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


def gone(stat: Path) -> bool:
    """Whether a process, by its file in /proc, has ended: nobody may have asked for its code yet."""
    try:
        return ") Z " in stat.read_text()
    except OSError:
        return True


def test_an_orphan_of_a_dead_node_is_stopped() -> None:
    """A node starts a process for every message, and may die after its last one. Fails without sessions (tried)."""
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(600)'], stdout=subprocess.DEVNULL"
    program = f"import subprocess, sys; print(subprocess.Popen({sleeper}).pid)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    ) as node:
        orphan = Path(f"/proc/{int(node.communicate()[0])}/stat")
        assert orphan.exists()
        deployment = Deployment(1)
        deployment.processes = {"node-0": node}
        deployment.stop()
    wait_for(lambda: gone(orphan))


def test_what_a_killed_program_started_ends_though_it_hears_nothing(tmp_path: Path) -> None:
    """Nobody calls ``stop`` when the server was killed. Fails without the second process (tried)."""
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    program = (
        "import pathlib, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {deaf!r}])\n"
        f"pathlib.Path({str(tmp_path / 'unfinished')!r}).write_text(str(child.pid))\n"
        f"pathlib.Path({str(tmp_path / 'unfinished')!r}).rename({str(tmp_path / 'child')!r})\n"
        "time.sleep(600)"
    )
    deployment = Deployment(1)
    deployment.path = tmp_path
    node = deployment._spawn("node-0", [Path(sys.executable).name, "-c", program])
    wait_for((tmp_path / "child").exists)
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    assert not gone(child)
    node.kill()
    node.wait()
    wait_for(lambda: gone(child))
