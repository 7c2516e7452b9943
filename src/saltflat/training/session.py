"""The session of a run: its loop with the record that is kept of it; opened anew, or where it was cut off."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import torch

from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError
from saltflat.mechanism.randomness import TIER_FAST, seed_torch
from saltflat.methods.optimizers import OptimizerFactory
from saltflat.record.certificate import Certificate, certify
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.record.selected import tuned_on
from saltflat.training.checks import check_seed
from saltflat.training.keep import EVERY, Keeper, setup_of
from saltflat.training.resume import check_setup, go_on, read_checkpoint
from saltflat.training.spend import AccountName, LoopWith, Spending, confirm, reserving
from saltflat.training.step import Loop


class RunSettings(TypedDict, total=False):
    """What every run takes, over rows or over clients."""

    loss_fn: LossFunction | None
    optimizer: OptimizerFactory | None
    public: Any
    out: str | Path | None
    device: torch.device | str | None
    seed: int | None
    randomness: str | None
    resume: str | Path | None
    checkpoint_every: float
    account: AccountName
    check_gradients: Any
    facts: dict[str, Any] | None


@dataclass
class Session:
    """A loop that is ready to run, with its record. ``history`` holds the metrics, also from before it was resumed;
    ``certificate`` is there once it was closed.
    """

    loop: Loop
    folder: RunFolder | None
    ledger: Ledger
    rules: dict[str, str]
    history: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] | None = None
    public: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    taken: float | None = None
    certificate: Certificate | None = None

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
        return given if keeper is None else keeper.setup["seed"]

    def close(self, *, finished: bool) -> Certificate:
        """Write weights, average and certificate. A run that stopped early is certified at the whole plan's ε,
        and keeps its checkpoint, from which it can be resumed.
        """
        loop, folder, ledger = self.loop, self.folder, self.ledger
        self.taken = self.seconds
        files: dict[str, str] = {}
        if folder is not None:
            self.store(folder)
            if not finished:  # it may have been stopped between writing an entry and knowing of it
                ledger.close()
                ledger = folder.read_ledger(cut_short=True)
            files = folder.hashes()
        randomness = loop.mechanism.randomness
        self.certificate = certificate = certify(
            loop.plan, ledger,
            randomness=randomness.tier, seeded=randomness.seeded, finished=finished, files=files,
            tuned_on=tuned_on(self.facts), public=self.public,
        )  # fmt: skip
        if folder is not None:
            folder.write_certificate(certificate)
            if finished:
                folder.checkpoints.remove()
        return certificate

    def store(self, folder: RunFolder) -> None:
        """Write weights, average and ``run.json``."""
        folder.write_tensors("weights.safetensors", self.loop.model.state_dict())
        if self.loop.average.average is not None:
            folder.write_tensors("average.safetensors", self.loop.average.average)
        folder.write_json("run.json", self.about())

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
def releasing(held: Session | RunFolder) -> Iterator[None]:
    """Let go of what is held if the block fails."""
    try:
        yield
    except BaseException:
        held.let_go()
        raise


def opened_session(
    loop_in: Callable[[str], LoopWith],
    rules: dict[str, str],
    settings: RunSettings,
    spending: Spending,
    public: Sequence[dict[str, Any]] = (),
) -> Session:
    """The session that the settings ask for: of a run that goes on, of a new folder, or in memory alone."""
    if (resume := settings.get("resume")) is not None:
        return resumed(RunFolder.open(resume, "resume"), loop_in, rules, settings, spending.account)
    out, seed = settings.get("out"), settings.get("seed")
    tier = settings.get("randomness") or TIER_FAST
    loop_with = reserving(loop_in(tier), spending, out)
    seed_torch(seed)
    if out is None:
        ledger = Ledger()
        facts = settings.get("facts")
        return Session(loop_with(ledger, seed), None, ledger, rules, facts=facts, public=list(public))
    return begun(RunFolder.create(out), loop_with, rules, settings, public)


def begun(
    folder: RunFolder,
    loop_with: LoopWith,
    rules: dict[str, str],
    settings: RunSettings,
    public: Sequence[dict[str, Any]],
) -> Session:
    """A new run in a new folder. The plan comes last: with it the folder becomes a run."""
    seed = settings.get("seed")
    with releasing(folder):
        ledger = folder.ledger()
        loop = loop_with(ledger, seed)
        # what a survey found is not written down, so such a run cannot go on
        every = settings.get("checkpoint_every", EVERY) if loop.plan.survey is None else math.inf
        loop.keeper = Keeper(folder, ledger, setup_of(loop, seed), every)
        session = Session(loop, folder, ledger, rules, facts=settings.get("facts"), public=list(public))
        loop.keeper.checkpoint(loop)
        if (spec := getattr(loop.model, "saltflat_spec", None)) is not None:
            folder.write_json("model.json", spec)
        folder.write_json("run.json", session.about())
        folder.write_plan(loop.plan)
    return session


def resumed(
    folder: RunFolder,
    loop_in: Callable[[str], LoopWith],
    rules: dict[str, str],
    settings: RunSettings,
    account: AccountName,
) -> Session:
    """A run that goes on where it was cut off."""
    seed = settings.get("seed")
    folder.hold()
    with releasing(folder):
        tensors, facts, ledger = read_checkpoint(folder)
        confirm(ledger, account)
        stored = facts["setup"].get("seed")
        if seed is not None and seed != stored:
            was = "none: the run is private" if stored is None else f"{stored}, as when the run was started"
            raise InputError("seed", seed, was, problem="differs from the run that is to go on",
                             cure="Leave the seed out.")  # fmt: skip
        check_seed(stored)
        tier = settings.get("randomness") or facts["setup"]["randomness"]
        seed_torch(stored)  # a seeded run then goes on where its generators stood
        loop = loop_in(tier)(ledger, stored)
        check_setup(loop, facts, stored)
        about = folder.read_json("run.json") or {}
        loop.keeper = Keeper(folder, ledger, facts["setup"], settings.get("checkpoint_every", EVERY))
        history = go_on(loop, loop.keeper, tensors, facts)
        told = about.get("facts") if isinstance(about, dict) else None
        return Session(loop, folder, ledger, rules, history, told)
