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

if TYPE_CHECKING:
    from cli.cli_helpers import Inside

torch.set_num_threads(1)


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
