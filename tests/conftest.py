"""Puts this folder on the path, so that the chapters' tests can share `core_helpers`; one thread for all.

The tests' models are small: several threads would only wait for one another, most of all on a busy machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import pytest
import torch

from worker_order import dealt

if TYPE_CHECKING:
    from cli.cli_helpers import Inside

torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)  # after those that were not asked for are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, long tests come first."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        files: dict[Path, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        slow = [
            sum(test.get_closest_marker("slow") is not None for test in tests) for tests in files.values()
        ]
        items[:] = dealt(list(zip(slow, files.values())), workers)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Inside:
    """``saltflat ARGUMENTS`` in this process, in a folder of its own."""
    from cli_helpers import Inside

    monkeypatch.chdir(tmp_path)
    return Inside(monkeypatch, capsys)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of tiny models are taken once: repeating them until the clock is fine enough would only take time."""
    from saltflat.bench import timing

    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.0)
