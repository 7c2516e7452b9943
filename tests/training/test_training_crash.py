"""Death at any moment: what was released is recorded, nothing is half-written, and the run can go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HARNESS = Path(__file__).with_name("crash_harness.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked"),
]


def harness(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HARNESS), *arguments],
        capture_output=True, text=True, timeout=1800, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["faults"] == [], done.stderr[-3000:]
    return found


@pytest.fixture
def quick_folder() -> Iterator[str]:
    """In memory where there is such a place: these deaths are no power cuts, and need no disk that syncs."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield folder


def test_fifty_processes_killed_at_random_and_resumed(quick_folder: str) -> None:
    """Half of them seeded: they end bit for bit as if nothing had happened. The others are private: every planned
    release is recorded once, ε is the plan's, and a kill costs one release at most.
    """
    found = harness("kills", "50", quick_folder)
    assert found["cases"] == 50
    assert found["kills"] >= 50
    assert len({point for point in found["points"] if 0 < point < 12}) > 5  # at many different steps
    assert found["before_start"] < 0.6 * found["kills"]  # on a busy machine a start takes long


@pytest.mark.parametrize("mode", ["seeded", "private"])
def test_the_end_at_every_single_write(mode: str, quick_folder: str) -> None:
    """Before each write, sync, rename, cut and removal of a run, and in the middle of each write."""
    found = harness("cuts", mode, quick_folder)
    assert found["writes"] > 40


def test_the_end_at_every_single_write_of_a_resumed_run(quick_folder: str) -> None:
    found = harness("resumes", quick_folder)
    assert found["writes"] > 20
