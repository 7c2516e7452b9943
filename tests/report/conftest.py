"""A run that was trained once, and a copy of it for each test that changes one."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import copied, trained


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two phases with an average."""
    return trained(tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return copied(whole, tmp_path / "run")
