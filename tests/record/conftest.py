"""A run that was trained once, and a copy of it for each test that changes one."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_runs import copied, trained


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "original")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return copied(original, tmp_path / "run")
