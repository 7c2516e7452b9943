"""The ledger: a chain that shows every change, and events that give back ε."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_helpers import bounded
from saltflat.accounting import SampledGaussian
from saltflat.record.ledger import GENESIS, Ledger, LedgerError, entry_hash


def written(path: Path, releases: int = 3) -> Ledger:
    """A ledger on disk, with a few releases."""
    ledger = Ledger(path)
    ledger.open_run(plan_hash="ab" * 32, randomness="fast")
    for step in range(1, releases + 1):
        ledger.record_release(
            step=step, phase=0, queries=(2.0,), sampling={"sampler": "poisson", "rate": 0.1}, clip_norm=1.0
        )
    ledger.close()
    return ledger


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ledger = written(tmp_path / "l")
    again = Ledger.read(tmp_path / "l")
    assert again.entries == ledger.entries
    assert (again.head, again.releases, len(again.entries)) == (ledger.head, 3, 4)
    assert again.entries[0]["previous"] == GENESIS


def test_each_entry_is_on_disk_at_once(tmp_path: Path) -> None:
    """Before `record_release` returns. Fails without the flush (tried)."""
    ledger = Ledger(tmp_path / "l")
    ledger.open_run(plan_hash="ab", randomness="fast")
    for step in (1, 2, 3):
        ledger.record_release(step=step, phase=0, queries=(1.0,), sampling={"rate": 0.1}, clip_norm=1.0)
        assert Ledger.read(tmp_path / "l").releases == step
    ledger.close()


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    """Any byte to any other: refused, or without meaning (another space). Fails without the hash (tried)."""
    before = written(tmp_path / "l").entries
    content = (tmp_path / "l").read_bytes()

    @given(st.integers(0, len(content) - 1), st.integers(1, 255))
    @bounded(300)
    def changed(place: int, by: int) -> None:
        damaged = bytearray(content)
        damaged[place] = (damaged[place] + by) % 256
        (tmp_path / "changed").write_bytes(damaged)
        with contextlib.suppress(LedgerError):
            assert Ledger.read(tmp_path / "changed").entries == before

    changed()


@pytest.mark.parametrize(
    "key", ["noise_multipliers", "rate", "step", "phase", "clip_norm", "plan_hash", "kind"]
)
def test_a_changed_value_is_found(tmp_path: Path, key: str) -> None:
    written(tmp_path / "l")
    lines = (tmp_path / "l").read_text().splitlines()
    number = 0 if key == "plan_hash" else 2
    entry = json.loads(lines[number])
    entry[key] = [9.0] if key == "noise_multipliers" else 9
    lines[number] = json.dumps(entry)
    (tmp_path / "l").write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=f"broken at entry {number}"):
        Ledger.read(tmp_path / "l")


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_removed_entry_is_found(tmp_path: Path, removed: int) -> None:
    written(tmp_path / "l")
    lines = (tmp_path / "l").read_text().splitlines()
    del lines[removed]
    (tmp_path / "l").write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=f"broken at entry {removed}"):
        Ledger.read(tmp_path / "l")


def test_a_cut_tail_shows_in_head_and_count(tmp_path: Path) -> None:
    """A chain cannot miss its own end: the certificate keeps the head and the count."""
    whole = written(tmp_path / "l")
    lines = (tmp_path / "l").read_text().splitlines()
    (tmp_path / "l").write_text("\n".join(lines[:-1]) + "\n")
    cut = Ledger.read(tmp_path / "l")
    assert cut.head != whole.head
    assert len(cut.entries) == len(whole.entries) - 1


def test_exchanged_and_half_written_entries_are_found(tmp_path: Path) -> None:
    written(tmp_path / "l")
    lines = (tmp_path / "l").read_text().splitlines()
    for content in ([lines[0], lines[2], lines[1], lines[3]], [*lines[:3], lines[3][:40]], ["[]"], ["3"]):
        (tmp_path / "l").write_text("\n".join(content) + "\n")
        with pytest.raises(LedgerError):
            Ledger.read(tmp_path / "l")


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"entry": 0, "kind": "run", "format": 2, "previous": GENESIS}
    entry["hash"] = entry_hash(entry)
    (tmp_path / "l").write_text(json.dumps(entry) + "\n")
    with pytest.raises(LedgerError, match="has format 2; this saltflat reads formats up to 1"):
        Ledger.read(tmp_path / "l")


def test_reading_events_changes_nothing() -> None:
    ledger = Ledger()
    ledger.open_run(plan_hash="ab", randomness="fast")
    for sigma, cap in ((2.0, None), (2.0, None), (3.0, None), (3.0, 40), (2.0, None)):
        sampling: dict[str, Any] = {"rate": 0.1} | ({} if cap is None else {"cap": cap, "population": 100})
        ledger.record_release(step=1, phase=0, queries=(sigma,), sampling=sampling, clip_norm=1.0)
    before = json.dumps(ledger.entries)
    events = list(ledger.events())
    assert [(round(e.noise_multiplier, 9), e.steps, e.cap) for e in events] == [
        (2.0, 2, None), (3.0, 1, None), (3.0, 1, 40), (2.0, 1, None),
    ]  # fmt: skip
    assert list(ledger.events()) == events
    assert json.dumps(ledger.entries) == before


def test_two_queries_are_one_event() -> None:
    ledger = Ledger()
    ledger.record_release(step=1, phase=0, queries=(6.0, 2.0), sampling={"rate": 0.1}, clip_norm=1.0)
    [event] = ledger.events()
    assert event == SampledGaussian(event.noise_multiplier, 0.1, 1)
    assert event.noise_multiplier == pytest.approx((6.0**-2 + 2.0**-2) ** -0.5)


def test_infinite_clip_norms_are_written_as_text(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.record_release(step=1, phase=0, queries=(0.0,), sampling={"rate": 0.1}, clip_norm=float("inf"))
    ledger.close()
    assert "Infinity" not in (tmp_path / "l").read_text()
    assert Ledger.read(tmp_path / "l").entries[0]["clip_norm"] == "inf"
