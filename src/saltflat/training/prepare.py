"""Everything that comes before the first release: checks, and the loop that `saltflat.training.session` opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from saltflat.data.people import People, units_of
from saltflat.data.shared_rows import refuse_shared_rows
from saltflat.data.source import Source, as_source, map_tensors
from saltflat.engine.batch import LossFunction
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.errors import InputError, SaltflatError, check_count
from saltflat.mechanism.exact import Grid
from saltflat.mechanism.randomness import TIER_EXACT
from saltflat.mechanism.sampling import check_rows
from saltflat.methods.multiplicity import views_of
from saltflat.plan import Multiplicity, Plan
from saltflat.ranks.group import shard
from saltflat.record.ledger import Ledger
from saltflat.training.alone import clipped_alone
from saltflat.training.build import build_mechanism
from saltflat.training.checks import (
    cannot_take,
    check_classes,
    check_evaluation,
    check_population,
    check_provenance,
    check_settings,
    check_solved,
    check_survey,
    checked_loss,
    held_targets,
    placed,
    units_in,
)
from saltflat.training.follow import facts_of
from saltflat.training.gradients import require_gradients
from saltflat.training.lead import Led
from saltflat.training.losses import check_outputs, cross_entropy, logits_of
from saltflat.training.public_side import check_public, content_hash, listed
from saltflat.training.resume import plan_of
from saltflat.training.session import RunSettings, Session, opened_session, releasing
from saltflat.training.spend import LoopWith, Spending
from saltflat.training.step import Loop, Schedule, build_optimizer, named_schedule
from saltflat.training.sums import Sums


class Settings(RunSettings, total=False):
    """What `fit` and `steps` take beside the model, the data and the plan."""

    schedule: Schedule | str | None
    groups: Any
    micro_batch: int | None


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
    check_classes(plan, data)
    check_public(plan, public)
    source = units_in(as_source(data), settings.get("groups"), plan.budget.unit)
    check_rows(plan.sampling, len(source))
    check_survey(plan, source, resume)
    loss = checked_loss(source, settings.get("loss_fn"), getattr(data, "num_classes", None))
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
    what = "people" if isinstance(source, People) else "rows"
    check_population(len(source), what, plan.sampling.population)
    if ranks is not None:
        ranks.agree(facts_of(Sums(model, source, plan, loss, where), test))

    def loop_in(tier: str) -> LoopWith:
        if tier == TIER_EXACT:
            _rehearse_alone(model, source, loss, plan, where)

        def loop_with(ledger: Ledger, seed: int | None) -> Loop:
            mechanism = build_mechanism(plan, source, ledger, where, seed, tier)
            return Loop(
                model, source, plan, mechanism, loss, optimizer, schedule, where, micro_batch, public,
                public_key=f"{key}:{seed}",
            )  # fmt: skip

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


def own_sums(
    model: nn.Module, data: Any, plan: Plan, test: Any, settings: Mapping[str, Any], shard_of: tuple[int, int]
) -> Sums:
    """What a rank that does not lead needs, checked on rows of its own shard: it reads no others."""
    rank, size = shard_of
    where = placed(model, settings.get("device"))
    source = units_in(as_source(data), settings.get("groups"), plan.budget.unit)
    check_rows(plan.sampling, len(source))
    own = shard(len(source), rank, size)
    some = torch.tensor(list(own[:3]) or [0])
    loss = checked_loss(
        source, settings.get("loss_fn"), getattr(data, "num_classes", None), first=int(some[0])
    )
    _rehearsed(model, source, loss, plan.multiplicity, where, some)
    if test is not None:
        check_evaluation(model, test, loss, where)
    return Sums(model, source, plan, loss, where, settings.get("micro_batch"))


def layer_rules(model: nn.Module, data: Any, loss_fn: LossFunction | None = None) -> dict[str, str]:
    """Which rule of the engine each trainable parameter goes through, found on a few rows of ``data``.

    >>> from saltflat.models import build
    >>> layer_rules(build("mlp"), (torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)))["1.weight"]
    'linear'
    """
    source = as_source(data)
    where = placed(model, None)
    return _rehearsed(model, source, checked_loss(source, loss_fn, None), Multiplicity(), where)


def _rehearsed(
    model: nn.Module,
    source: Source,
    loss: LossFunction,
    multiplicity: Multiplicity,
    device: torch.device,
    some: Tensor | None = None,
) -> dict[str, str]:
    """Take a gradient of a few rows and throw it away: what is wrong with the model shows here."""
    rows = units_of(source, torch.arange(min(3, len(source))) if some is None else some, device)
    inputs, targets = rows.inputs, rows.targets
    widths: list[int] = []

    def noting(outputs: Any, targets: Tensor) -> Tensor:
        widths.append(logits_of(outputs).shape[1])
        return cross_entropy(outputs, targets)

    try:
        if multiplicity.augmentations:
            inputs = views_of(inputs, replace(multiplicity, views=1, deviation=0.0))
        tried = noting if loss is cross_entropy else loss
        rules = clipped_sum(model, tried, inputs, targets, clip_norm=1.0).rules
        if widths and some is None:  # a rank that does not lead reads rows of its own shard only
            held = held_targets(source)
            check_outputs(targets if held is None else held, widths[0])
        return rules
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
    rows = units_of(source, torch.tensor([0]), device)
    try:
        clipped_alone(model, loss, map_tensors(lambda t: t[:1], rows.inputs), rows.targets[:1], 1.0)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            "randomness", "exact", "a model that accepts a batch of one row",
            problem=f"failed on the first row alone: {error}",
            cure="Use randomness='secure', or let the model take a single row.",
        ) from error  # fmt: skip
