"""Steps of tiny models are taken once: repeating them until the clock is fine enough would only take time."""

from __future__ import annotations

import pytest

from saltflat.bench import timing


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.0)
