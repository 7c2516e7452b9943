"""Runs that are cut off and go on, for the tests of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import saltflat as sf
from core_helpers import small_data
from saltflat.plan import Plan
from saltflat.record.ledger import Ledger

COMMON: dict[str, Any] = {
    "population": 40, "batch_size": 8, "steps": 10, "delta": 1e-3, "noise_multiplier": 3.0,
}  # fmt: skip
CHAIN = ("entry", "previous", "hash")


def fit(model: nn.Module, plan: Plan | None, **options: Any) -> sf.Run:
    return sf.fit(model, small_data(), plan, **{"progress": False, "evaluate": small_data(9, 1)} | options)


def stop_after(number: int) -> Callable[[Any], None]:
    def stop(step: Any) -> None:
        if step.number == number:
            raise KeyboardInterrupt

    return stop


def cut_off(model: nn.Module, plan: Plan, number: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(model, plan, callbacks=[stop_after(number)], **options)


def releases(folder: Path) -> list[dict[str, Any]]:
    """The ledger's releases, without what chains them: a resumed run has more entries."""
    entries = Ledger.read(folder / "ledger.jsonl").entries
    kept = [entry for entry in entries if entry["kind"] == "release"]
    return [{key: value for key, value in entry.items() if key not in CHAIN} for entry in kept]
