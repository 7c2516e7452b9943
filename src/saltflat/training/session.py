"""The session of a run: its loop with the record that is kept of it; opened anew, or where it was cut off."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from saltflat.errors import InputError
from saltflat.mechanism.randomness import TIER_FAST
from saltflat.record.certificate import Certificate, certify
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.record.selected import tuned_on
from saltflat.training.checks import check_seed
from saltflat.training.keep import EVERY, Keeper, setup_of
from saltflat.training.resume import check_setup, go_on, read_checkpoint
from saltflat.training.spend import AccountName, Spending, confirm, reserving
from saltflat.training.step import Loop

LoopWith = Callable[[Ledger, int | None], Loop]
"""From a ledger and a seed to a loop that records there."""


@dataclass
class Session:
    """A loop that is ready to run, with its record. ``history`` holds the metrics from before it was resumed."""

    loop: Loop
    folder: RunFolder | None
    ledger: Ledger
    rules: dict[str, str]
    history: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] | None = None
    public: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    taken: float | None = None
    certified: Certificate | None = None

    def certificate(self) -> Certificate:
        """The certificate of a session that was closed."""
        assert self.certified is not None
        return self.certified

    @property
    def seconds(self) -> float:
        """How long the run has taken, together with what came before it was resumed."""
        if self.taken is not None:
            return self.taken
        keeper = self.loop.keeper
        return round(time.perf_counter() - self.started if keeper is None else keeper.seconds, 3)

    def seed(self, given: int | None) -> int | None:
        """The seed of a test run: as given, or as it was when a run that goes on was started."""
        keeper = self.loop.keeper
        stored: int | None = given if keeper is None else keeper.setup["seed"]
        return stored

    def close(self, *, finished: bool) -> Certificate:
        """Write weights, average and certificate. A run that stopped early is certified at the whole plan's ε,
        and keeps its checkpoint, from which it can be resumed.
        """
        loop, folder, ledger = self.loop, self.folder, self.ledger
        self.taken = self.seconds
        files: dict[str, str] = {}
        if folder is not None:
            folder.write_tensors("weights.safetensors", loop.model.state_dict())
            if loop.average.average is not None:
                folder.write_tensors("average.safetensors", loop.average.average)
            folder.write_json("run.json", self.about())
            if not finished:  # it may have been stopped between writing an entry and knowing of it
                ledger.close()
                ledger = folder.read_ledger(cut_short=True)
            files = folder.hashes()
        randomness = loop.mechanism.randomness
        self.certified = certificate = certify(
            loop.plan, ledger,
            randomness=randomness.tier, seeded=randomness.seeded, finished=finished, files=files,
            tuned_on=tuned_on(self.facts), public=self.public,
        )  # fmt: skip
        if folder is not None:
            folder.write_certificate(certificate)
            if finished:
                folder.checkpoints.remove()
        return certificate

    def let_go(self) -> None:
        """Let go of the files, and let other processes at the folder."""
        self.ledger.close()
        if self.folder is not None:
            self.folder.checkpoints.close()
            self.folder.let_go()

    def about(self) -> dict[str, Any]:
        """``run.json``: time, layer rules, and what the caller wanted to be stored."""
        more: dict[str, Any] = {"public": self.public} if self.public else {}
        more |= {} if self.loop.ranks is None else {"ranks": self.loop.ranks.size}
        more |= {} if self.facts is None else {"facts": self.facts}
        return {"seconds": self.seconds, "rules": self.rules, **more}


@contextmanager
def releasing(session: Session) -> Iterator[None]:
    """Let go of a session's files if the block fails."""
    try:
        yield
    except BaseException:
        session.let_go()
        raise


def opened_session(
    loop_in: Callable[[str], LoopWith],
    rules: dict[str, str],
    settings: Any,
    spending: Spending,
    public: Sequence[dict[str, Any]] = (),
) -> Session:
    """The session that the settings ask for: of a run that goes on, of a new folder, or in memory alone."""
    every, tier = settings.get("checkpoint_every", EVERY), settings.get("randomness")
    out, seed, facts = settings.get("out"), settings.get("seed"), settings.get("facts")
    if settings.get("resume") is not None:
        folder = RunFolder.open(settings["resume"], "resume")
        return resumed(folder, loop_in, rules, every, seed, tier, spending.account)
    loop_with = reserving(loop_in(tier or TIER_FAST), spending.account, spending.charge, out)
    if seed is not None:
        torch.manual_seed(seed)
    if out is None:
        ledger = Ledger()
        return Session(loop_with(ledger, seed), None, ledger, rules, facts=facts, public=list(public))
    return begun(RunFolder.create(out), loop_with, rules, every, seed, facts, public)


def begun(
    folder: RunFolder,
    loop_with: LoopWith,
    rules: dict[str, str],
    every: float,
    seed: int | None,
    facts: dict[str, Any] | None,
    public: Sequence[dict[str, Any]] = (),
) -> Session:
    """A new run in a new folder. The plan comes last: with it the folder becomes a run."""
    try:
        ledger = folder.ledger()
        loop = loop_with(ledger, seed)
        if loop.plan.survey is not None:
            every = math.inf  # what a survey found is not written down, so such a run cannot go on
        loop.keeper = Keeper(folder, ledger, setup_of(loop, seed), every)
        session = Session(loop, folder, ledger, rules, facts=facts, public=list(public))
        loop.keeper.checkpoint(loop)
        if (spec := getattr(loop.model, "saltflat_spec", None)) is not None:
            folder.write_json("model.json", spec)
        folder.write_json("run.json", session.about())
        folder.write_plan(loop.plan)
    except BaseException:
        folder.let_go()
        raise
    return session


def resumed(
    folder: RunFolder,
    loop_in: Callable[[str], LoopWith],
    rules: dict[str, str],
    every: float,
    seed: int | None,
    tier: str | None,
    account: AccountName,
) -> Session:
    """A run that goes on where it was cut off."""
    folder.hold()
    try:
        tensors, facts, ledger = read_checkpoint(folder)
        confirm(ledger, account)
        stored = facts["setup"].get("seed")
        if seed is not None and seed != stored:
            was = "none: the run is private" if stored is None else f"{stored}, as when the run was started"
            raise InputError("seed", seed, was, problem="differs from the run that is to go on",
                             cure="Leave the seed out.")  # fmt: skip
        check_seed(stored)
        loop = loop_in(tier or facts["setup"]["randomness"])(ledger, stored)
        check_setup(loop, facts, stored)
        about = folder.read_json("run.json") or {}
        loop.keeper = Keeper(folder, ledger, facts["setup"], every)
        history = go_on(loop, loop.keeper, tensors, facts)
        told = about.get("facts") if isinstance(about, dict) else None
        return Session(loop, folder, ledger, rules, history, told)
    except BaseException:
        folder.let_go()
        raise
