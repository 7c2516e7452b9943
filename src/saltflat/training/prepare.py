"""Everything that comes before the first release: checks, and the session that will keep the record."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from saltflat.data.people import People
from saltflat.data.shared_rows import refuse_shared_rows
from saltflat.data.source import Examples, Source, as_source, map_tensors
from saltflat.engine.batch import LossFunction
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.errors import InputError, PrivacyWarning, SaltflatError, check_count
from saltflat.mechanism.exact import Grid
from saltflat.mechanism.randomness import TIER_EXACT, TIER_FAST
from saltflat.mechanism.sampling import check_rows
from saltflat.methods.multiplicity import views_of
from saltflat.methods.optimizers import OptimizerFactory
from saltflat.plan import Multiplicity, Plan
from saltflat.ranks.shards import shard
from saltflat.record.certificate import Certificate, certify
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.training.alone import clipped_alone
from saltflat.training.build import build_mechanism
from saltflat.training.checks import (
    cannot_take,
    check_evaluation,
    check_provenance,
    check_seed,
    check_settings,
    check_solved,
    check_survey,
    placed,
)
from saltflat.training.follow import facts_of
from saltflat.training.gradients import require_gradients
from saltflat.training.keep import EVERY, Keeper, setup_of
from saltflat.training.lead import Led
from saltflat.training.losses import check_targets, default_loss
from saltflat.training.public_side import check_public, content_hash, listed
from saltflat.training.resume import check_setup, go_on, plan_of, read_checkpoint
from saltflat.training.spend import AccountName, Spending, confirm, reserving
from saltflat.training.step import Loop, Schedule, build_optimizer, named_schedule
from saltflat.training.sums import Sums, fetch

LoopWith = Callable[[Ledger, int | None], Loop]
"""From a ledger and a seed to a loop that records there."""


class Settings(TypedDict, total=False):
    """What `fit` and `steps` take beside the model, the data and the plan."""

    loss_fn: LossFunction | None
    optimizer: OptimizerFactory | None
    schedule: Schedule | str | None
    groups: Any
    public: Any
    out: str | Path | None
    device: torch.device | str | None
    seed: int | None
    micro_batch: int | None
    randomness: str | None
    resume: str | Path | None
    checkpoint_every: float
    account: AccountName
    check_gradients: Any
    facts: dict[str, Any] | None


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
            tuned_on=_tuned_on(self.facts), public=self.public,
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


def _tuned_on(facts: dict[str, Any] | None) -> str | None:
    """The public data that settings were chosen on, if the caller said so; it survives being resumed."""
    named = facts.get("tuned_on") if isinstance(facts, dict) else None
    return named if isinstance(named, str) else None


def prepare(
    model: nn.Module,
    data: Any,
    plan: Plan | None,
    test: Any = None,
    ranks: Led | None = None,
    /,
    **settings: Unpack[Settings],
) -> Session:
    """Check everything that can be checked, then set up the loop. Nothing is spent or written before that.

    ``test`` is what will be evaluated on: the model must be able to take it. With ``ranks``, others have checked
    theirs as well before anything is written.
    """
    check_settings(settings, Settings)
    resume, micro_batch, public = settings.get("resume"), settings.get("micro_batch"), settings.get("public")
    if resume is not None:
        plan = plan_of(resume, plan)
    if not isinstance(plan, Plan):
        raise InputError("plan", plan, "a Plan", cure="Make one with sf.plans.dp_sgd(...).")
    check_solved(plan)
    if ranks is not None:
        ranks.open(plan)
    schedule = named_schedule(settings.get("schedule"))
    if micro_batch is not None:
        check_count("micro_batch", micro_batch)
    spending = Spending.of(plan, settings)
    where = placed(model, settings.get("device"))
    check_provenance(data)
    check_public(plan, public)
    source = _by_person(as_source(data), settings.get("groups"), plan)
    check_rows(plan.sampling, len(source))
    check_survey(plan, source, resume)
    loss = _checked_loss(source, settings.get("loss_fn"), getattr(data, "num_classes", None))
    key = ""
    if public is not None:
        refuse_shared_rows(data, public)
        key = content_hash(public)
    optimizer = build_optimizer(plan, model, settings.get("optimizer"))
    rules = _rehearsed(model, source, loss, plan.multiplicity, where)
    require_gradients(
        model, *source.fetch(torch.tensor([0])), loss, where, settings.get("check_gradients", True)
    )
    if test is not None:
        check_evaluation(model, test, loss, where)
    if public is not None:
        check_evaluation(model, public, loss, where, "public")
    if len(source) != plan.sampling.population:
        warnings.warn(
            f"The data has {len(source)} {'people' if isinstance(source, People) else 'rows'} and the plan declares "
            f"population={plan.sampling.population}. "
            "Rate, divisor and steps stay as declared; the guarantee holds. "
            "This is said here and stored nowhere.",
            PrivacyWarning,
            stacklevel=3,
        )
    if ranks is not None:
        ranks.agree(facts_of(Sums(model, source, plan, loss, where), test))

    def loop_in(tier: str) -> LoopWith:
        if tier == TIER_EXACT:
            _rehearse_alone(model, source, loss, plan, where)

        def loop_with(ledger: Ledger, seed: int | None) -> Loop:
            mechanism = build_mechanism(plan, source, ledger, where, seed, tier)
            return Loop(
                model,
                source,
                plan,
                mechanism,
                loss,
                optimizer,
                schedule,
                where,
                micro_batch,
                public,
                public_key=f"{key}:{seed}",
            )

        return loop_with

    shown = listed(plan, public, settings.get("facts"))
    session = opened_session(loop_in, rules, settings, spending, shown)
    if resume is not None:
        session.public = listed(plan, public, session.facts)
    if ranks is not None:
        with releasing(session):
            ranks.begin(session.loop, len(source), session.seed(settings.get("seed")))
        session.loop.ranks = ranks
    return session


@contextmanager
def releasing(session: Session) -> Iterator[None]:
    """Let go of a session's files if the block fails."""
    try:
        yield
    except BaseException:
        session.let_go()
        raise


def own_sums(
    model: nn.Module,
    data: Any,
    plan: Plan,
    test: Any,
    settings: Mapping[str, Any],
    shard_of: tuple[int, int],
) -> Sums:
    """What a rank that does not lead needs, checked on rows of its own shard: it reads no others."""
    rank, size = shard_of
    where = placed(model, settings.get("device"))
    source = _by_person(as_source(data), settings.get("groups"), plan)
    check_rows(plan.sampling, len(source))
    own = shard(len(source), rank, size)
    some = torch.tensor(list(own[:3]) or [0])
    loss = _checked_loss(
        source, settings.get("loss_fn"), getattr(data, "num_classes", None), first=int(some[0])
    )
    _rehearsed(model, source, loss, plan.multiplicity, where, some)
    if test is not None:
        check_evaluation(model, test, loss, where)
    return Sums(model, source, plan, loss, where, settings.get("micro_batch"))


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


def layer_rules(model: nn.Module, data: Any, loss_fn: LossFunction | None = None) -> dict[str, str]:
    """Which rule of the engine each trainable parameter goes through, found on a few rows of ``data``.

    >>> from saltflat.models import build
    >>> layer_rules(build("mlp"), (torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)))["1.weight"]
    'linear'
    """
    source = as_source(data)
    where = placed(model, None)
    return _rehearsed(model, source, _checked_loss(source, loss_fn, None), Multiplicity(), where)


def _by_person(source: Source, groups: Any, plan: Plan) -> Source:
    """People as units where the plan protects people; a plan and data that disagree are refused."""
    ids = groups if groups is not None else getattr(source, "groups", None)
    if plan.budget.unit == "person":
        if ids is None:
            raise InputError(
                "groups", None, "an id for each row, because the plan protects a person",
                problem="is missing",
                cure="Pass fit(groups=ids), or make a plan with unit='example'.",
            )  # fmt: skip
        return People(source, ids)
    if plan.budget.unit == "client":
        raise InputError(
            "unit", "client", "unit='example' or unit='person' in fit",
            problem="would claim more than training on rows protects",
            cure="Train clients with sf.federate; or pass their ids as groups and protect them with unit='person'.",
        )  # fmt: skip
    if ids is not None and groups is None:
        warnings.warn(
            "The data says whose rows they are, and the plan protects single rows: a person with several rows "
            "is protected less. Make the plan with unit='person'.",
            PrivacyWarning,
            stacklevel=4,
        )
    if groups is not None:
        raise InputError(
            "unit", plan.budget.unit, "unit='person' in the plan, because groups are given",
            problem="would protect single rows only",
        )  # fmt: skip
    return source


def _checked_loss(
    source: Source, loss_fn: LossFunction | None, classes: int | None, first: int = 0
) -> LossFunction:
    held = source.source if isinstance(source, People) else source
    targets: Tensor = held.targets if isinstance(held, Examples) else source.fetch(torch.tensor([first]))[1]
    check_targets(targets, classes, loss_fn)
    return loss_fn if loss_fn is not None else default_loss(targets)


def _rehearsed(
    model: nn.Module,
    source: Source,
    loss: LossFunction,
    multiplicity: Multiplicity,
    device: torch.device,
    some: Tensor | None = None,
) -> dict[str, str]:
    """Take a gradient of a few rows and throw it away: what is wrong with the model shows here."""
    rows = fetch(source, torch.arange(min(3, len(source))) if some is None else some, device)
    inputs, targets = rows.inputs, rows.targets
    try:
        if multiplicity.augmentations:
            inputs = views_of(inputs, replace(multiplicity, views=1, deviation=0.0))
        return clipped_sum(model, loss, inputs, targets, clip_norm=1.0).rules
    except SaltflatError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise cannot_take(model, "a batch of this data", "the first rows", error) from error


def _rehearse_alone(
    model: nn.Module, source: Source, loss: LossFunction, plan: Plan, device: torch.device
) -> None:
    """The exact tier takes every unit by itself: a model or plan that does not allow it is refused here."""
    for phase in plan.phases:
        Grid.for_clip_norm(phase.clip_norm)
    rows = fetch(source, torch.tensor([0]), device)
    try:
        clipped_alone(model, loss, map_tensors(lambda t: t[:1], rows.inputs), rows.targets[:1], 1.0)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            "randomness", "exact", "a model that accepts a batch of one row",
            problem=f"failed on the first row alone: {error}",
            cure="Use randomness='secure', or let the model take a single row.",
        ) from error  # fmt: skip
