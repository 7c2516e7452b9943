"""Every test has a cache and an environment of its own: nothing of the machine leaks in or out."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache folder, no SALTFLAT_DATA, and no folders of the system."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("SALTFLAT_DATA", raising=False)
    monkeypatch.setattr("saltflat.data.places.SYSTEM_DIRS", ())
    return cache / "saltflat"
