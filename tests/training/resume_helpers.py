"""Runs that are cut off and go on, for the tests of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import saltflat as sf
from core_helpers import small_data, stop_after
from saltflat.plan import Plan
from saltflat.record.ledger import Ledger

CHAIN = ("entry", "previous", "hash")


def fit(model: nn.Module, plan: Plan | None = None, **options: Any) -> sf.Run:
    return sf.fit(model, small_data(), plan, **{"progress": False, "evaluate": small_data(9, 1)} | options)


def cut_off(model: nn.Module, plan: Plan | None, number: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(model, plan, callbacks=[stop_after(number)], **options)


def releases(folder: Path) -> list[dict[str, Any]]:
    """The ledger's releases, without what chains them: a resumed run has more entries."""
    kept = Ledger.read(folder / "ledger.jsonl").of_kind("release")
    return [{key: value for key, value in entry.items() if key not in CHAIN} for entry in kept]
