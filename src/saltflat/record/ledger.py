"""The ledger: a write-ahead record of every release, hash-chained, on disk before the release is used.

It holds public numbers only: the plan's fingerprint, the step, noise, rate and clip norm. Never the size of
an actual batch, a loss, or a count of bad rows. Each release names its plan, step, phase, queries, noise,
sampling, clip norm and tier of randomness, so that ε can be recomputed from the ledger alone.

An entry that a crash cut short is the last line, without its end. Its release was never drawn, because a
release is drawn only when its entry is whole and on the disk. So a run that goes on may write over it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from saltflat.accounting import SampledGaussian, combined_noise
from saltflat.errors import SaltflatError
from saltflat.record.atomic import append, open_to_append
from saltflat.record.canonical import (
    LARGEST_LEDGER,
    DamagedError,
    fingerprint,
    parsed,
    read_bounded,
    same,
    spelled,
)

FORMAT = 1
GENESIS = "0" * 64
SPENDING = ("release", "survey")
"""The kinds of entries that record something computed from rows, with noise."""


class LedgerError(SaltflatError):
    """A ledger that was changed, cut, or cannot be read."""


def entry_hash(entry: dict[str, Any]) -> str:
    """The hash of an entry without its own hash; it covers the hash of the entry before."""
    content = {key: value for key, value in entry.items() if key != "hash"}
    return fingerprint(content)


@dataclass
class Ledger:
    """An append-only chain of entries; in memory, and in a file if there is one.

    >>> ledger = Ledger()
    >>> ledger.open_run(plan_hash="ab", randomness="fast")
    >>> ledger.record_release(step=1, phase=0, queries=(2.0,), sampling={"rate": 0.1}, clip_norm=1.0)
    >>> len(ledger.entries), ledger.releases
    (2, 1)
    """

    path: Path | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)
    _handle: int | None = field(default=None, repr=False)
    _whole: int | None = field(default=None, repr=False)

    def open_run(self, *, plan_hash: str, randomness: str, **facts: Any) -> None:
        """The first entry: which plan is about to be run, with what randomness."""
        self.record("run", format=FORMAT, plan_hash=plan_hash, randomness=randomness, **facts)

    def record_release(
        self,
        *,
        step: int,
        phase: int,
        queries: tuple[float, ...],
        sampling: dict[str, Any],
        clip_norm: float,
        randomness: str | None = None,
    ) -> None:
        """Record that a release is about to leave. Returns only when the record is on disk.

        ``randomness`` is the tier that its noise is drawn in; that of the run, unless told otherwise.
        """
        tier = self._of_the_run("randomness") if randomness is None else {"randomness": randomness}
        self.record(
            "release", **self._of_the_run("plan_hash"), step=step, phase=phase,
            queries=len(queries), noise_multipliers=list(queries),
            clip_norm="inf" if clip_norm == float("inf") else clip_norm, **sampling, **tier,
        )  # fmt: skip

    def record_survey(self, *, columns: int, noise_multiplier: float) -> None:
        """Record that the plan's survey is about to leave. Returns only when the record is on disk."""
        self.record(
            "survey", **self._of_the_run("plan_hash"), columns=columns, noise_multiplier=noise_multiplier,
            rate=1.0, **self._of_the_run("randomness"),
        )  # fmt: skip

    def resume_run(self, *, step: int, replayed: int, lost: list[int]) -> None:
        """Record that a run goes on after ``step`` steps.

        ``replayed`` releases were taken from the journal. The steps in ``lost`` were recorded, and their
        releases are gone: each uses up a planned release of its phase.
        """
        self.record("resume", step=step, replayed=replayed, lost=lost, **self._of_the_run("randomness"))

    def abort_release(self, *, step: int, answers: int, needed: int) -> None:
        """Record that a round was given up, because too few clients answered. It stays counted as a release."""
        self.record("aborted", step=step, answers=answers, needed=needed, **self._of_the_run("randomness"))

    def _of_the_run(self, key: str) -> dict[str, Any]:
        opened = self.entries[0] if self.entries else {}
        return {key: opened[key]} if key in opened else {}

    def record(self, kind: str, **facts: Any) -> None:
        """Any entry: one of the above, an account, an evaluation, a tuning. Returns only when it is on disk."""
        entry = {"entry": len(self.entries), "kind": kind, **facts, "previous": self.head}
        entry["hash"] = entry_hash(entry)
        if self.path is not None:
            if self._handle is None:
                self._handle = open_to_append(self.path)
                if self._whole is not None:
                    os.ftruncate(self._handle, self._whole)
            append(self._handle, spelled(entry, indent=None))
        self.entries.append(entry)

    def close(self) -> None:
        """Let go of the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def head(self) -> str:
        """The hash of the last entry, which covers all before it."""
        return self.entries[-1]["hash"] if self.entries else GENESIS

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The entries of one kind, in order."""
        return [entry for entry in self.entries if entry["kind"] == kind]

    @property
    def releases(self) -> int:
        """How many releases are recorded."""
        return len(self.of_kind("release"))

    @property
    def shows_nothing(self) -> bool:
        """Whether nothing that was computed from rows is on record, no release and no survey."""
        return not any(entry["kind"] in SPENDING for entry in self.entries)

    @property
    def surveys(self) -> int:
        """How many surveys are recorded: at most one, before the first release."""
        return len(self.of_kind("survey"))

    @property
    def resumes(self) -> int:
        """How often the run went on after it had stopped."""
        return len(self.of_kind("resume"))

    @property
    def account(self) -> dict[str, Any] | None:
        """The entry that names the account which covers the run, if there is one."""
        return next(iter(self.of_kind("account")), None)

    def events(self) -> Iterator[SampledGaussian]:
        """What the recorded releases cost, for an accountant; equal neighbours are taken together."""
        run: SampledGaussian | None = None
        for entry in self.entries:
            if entry["kind"] not in SPENDING:
                continue
            try:
                noises = (
                    [entry["noise_multiplier"]] if entry["kind"] == "survey" else entry["noise_multipliers"]
                )
                noise = combined_noise(*noises)
                cap = entry.get("cap")
                event = SampledGaussian(noise, entry["rate"], 1, entry["population"] if cap else None, cap)
            except (KeyError, TypeError, ValueError, OverflowError, ArithmeticError) as error:
                raise LedgerError(
                    f"Entry {entry.get('entry')} does not record a release as saltflat does ({error})."
                ) from error
            if run is not None and replace(run, steps=1) == event:
                run = replace(run, steps=run.steps + 1)
                continue
            if run is not None:
                yield run
            run = event
        if run is not None:
            yield run

    @staticmethod
    def read(path: Path, *, cut_short: bool = False) -> Ledger:
        """Read a ledger and check its chain.

        With ``cut_short``, a last line without its end is left out, and written over by the next entry.
        Without it, such a line is an error, and so is a file that is too large. A run that goes on must be able to
        read what it wrote, however long it is. Any byte that saltflat would have written differently is an error.
        """
        content = path.read_bytes() if cut_short else read_bounded(path, LARGEST_LEDGER)
        whole = content.rfind(b"\n") + 1
        if whole < len(content) and not cut_short:
            raise LedgerError(f"{path.name}: its last entry is cut short.")
        entries: list[dict[str, Any]] = []
        previous = GENESIS
        for number, line in enumerate(content[:whole].split(b"\n")[:-1]):
            entry = _read_entry(line, number, path.name)
            version = entry.get("format", FORMAT)
            if isinstance(version, int) and version > FORMAT:
                raise LedgerError(
                    f"{path.name} has format {version}; this saltflat reads formats up to {FORMAT}. Update saltflat."
                )
            sound = entry["hash"] == entry_hash(entry) and entry["previous"] == previous
            numbered = same(entry.get("entry"), number) and isinstance(entry.get("kind"), str)
            if not sound or not numbered or spelled(entry, indent=None) != line + b"\n":
                raise LedgerError(
                    f"{path.name}: the chain is broken at entry {number}: it was changed or cut."
                )
            entries.append(entry)
            previous = entry["hash"]
        return Ledger(path, entries, _whole=whole if cut_short else None)


def _read_entry(line: bytes, number: int, name: str) -> dict[str, Any]:
    try:
        entry = parsed(line, "it")
    except DamagedError as error:
        raise LedgerError(f"{name}: entry {number} cannot be read ({error}).") from error
    if not isinstance(entry, dict) or not {"hash", "previous"} <= entry.keys():
        raise LedgerError(f"{name}: entry {number} cannot be read (it is no entry).")
    return entry
