"""`federate`: from a model, clients and a plan to a run. The loop, its record and its resuming are those of `fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from saltflat.data.people import Rows
from saltflat.data.source import as_source
from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError
from saltflat.federated.checks import check_model, rehearse
from saltflat.federated.clients import Clients
from saltflat.federated.diagnostics import LABEL, Diagnostics
from saltflat.federated.protocol import Engine
from saltflat.federated.server import Server
from saltflat.federated.simulation import Simulation
from saltflat.mechanism.exact import Grid
from saltflat.mechanism.randomness import TIER_EXACT
from saltflat.mechanism.sampling import check_rows
from saltflat.plan import Plan, PublicMask
from saltflat.record.ledger import Ledger
from saltflat.training.build import build_mechanism
from saltflat.training.checks import (
    check_alone,
    check_evaluation,
    check_population,
    check_settings,
    check_solved,
    checked_loss,
    placed,
)
from saltflat.training.evaluate import evaluate as measure
from saltflat.training.fit import completed
from saltflat.training.gradients import require_gradients
from saltflat.training.keep import EVERY
from saltflat.training.losses import cross_entropy
from saltflat.training.public_side import check_not_private
from saltflat.training.resume import finished_run, plan_of
from saltflat.training.run import Run
from saltflat.training.session import RunSettings, Session, opened_session
from saltflat.training.spend import AccountName, LoopWith, Spending
from saltflat.training.step import Loop, Step, build_optimizer

TRAIN_ROWS = 10_000


class FederatedSettings(RunSettings, total=False):
    """What `federate` takes beside the model, the clients and the plan; and an optimizer, for audits."""

    together: int | None
    diagnostics: Diagnostics | None


def prepare_rounds(
    model: nn.Module,
    clients: Clients | Engine,
    plan: Plan | None,
    test: Any = None,
    /,
    **settings: Unpack[FederatedSettings],
) -> Session:
    """Check everything that can be checked, then set up the loop of rounds. Nothing is spent or written before.

    ``clients`` are rows on this machine, or an engine that knows where clients are.
    """
    check_alone("federate")
    check_settings(settings, FederatedSettings)
    resume = settings.get("resume")
    plan = _checked_plan(plan if resume is None else plan_of(resume, plan))
    spending = Spending.of(plan, settings)
    where = placed(model, settings.get("device"))
    check_model(model)
    public = _public_rows(plan, settings.get("public"))
    engine, loss = _engine(model, clients, where, settings)
    check_rows(plan.sampling, len(engine))
    optimizer = build_optimizer(plan, model, settings.get("optimizer"))
    if test is not None:
        check_evaluation(model, test, loss, where)
    check_population(len(engine), "clients", plan.sampling.population)
    diagnostics = settings.get("diagnostics")

    def loop_in(tier: str) -> LoopWith:
        _check_tier(plan, tier)

        def loop_with(ledger: Ledger, seed: int | None) -> Loop:
            mechanism = build_mechanism(plan, engine, ledger, where, seed, tier)
            server = Server(engine, public, None if diagnostics is None else diagnostics.watch)
            loop = Loop(model, None, plan, mechanism, loss, optimizer, None, where, asked=server)
            server.begin(loop)
            if isinstance(engine, Simulation):
                engine.noise = mechanism.randomness.noise
            return loop

        return loop_with

    return opened_session(loop_in, {"update": "one vector, clipped whole"}, settings, spending)


def federate(
    model: nn.Module,
    clients: Clients | Engine,
    plan: Plan | None = None,
    *,
    evaluate: Any = None,
    loss_fn: LossFunction | None = None,
    callbacks: Sequence[Callable[[Step], None]] = (),
    public: Any = None,
    out: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
    randomness: str | None = None,
    progress: bool | None = None,
    resume: str | Path | None = None,
    checkpoint_every: float = EVERY,
    account: AccountName = None,
    together: int | None = None,
    diagnostics: Diagnostics | None = None,
    check_gradients: Any = True,
    facts: dict[str, Any] | None = None,
) -> Run:
    """Train ``model`` over ``clients`` as ``plan`` says; the unit that is protected is the client.

    ``clients`` come from `partition`, or are an `Engine`. ``public`` is what a mask from public data is made of.
    ``together`` clients are trained at a time. ``diagnostics`` collects update norms, which no ε covers. Everything
    else is as in `fit`: run folder, resuming after the last completed round, account, seed, tiers of randomness.

    Guarantees: the plan's ε and δ for everything that one client holds, against those whom the certificate names,
    whatever clients send. All checks come before the first release.

    References: McMahan et al. 2018 (DP-FedAvg); Shi et al. 2023 (DP-FedSAM).

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> clients = sf.federated.partition(rows.train, 100, by="dirichlet", alpha=0.6)
    >>> plan = sf.plans.dp_fedsam(epsilon=8, clients=100, rate=0.2, rounds=2, local_epochs=1)
    >>> run = sf.federate(sf.models.build("mlp"), clients, plan, evaluate=rows.test, progress=False)
    >>> run.certificate.data["unit"], run.epsilon <= 8
    ('client', True)
    """
    if resume is not None and out is None and (done := finished_run(resume, model, plan)) is not None:
        return done
    if diagnostics is not None:
        facts = {**(facts or {}), "diagnostics": LABEL}
    session = prepare_rounds(
        model, clients, plan, evaluate,
        loss_fn=loss_fn, public=public, out=out, device=device, seed=seed, randomness=randomness, resume=resume,
        checkpoint_every=checkpoint_every, account=account, together=together, diagnostics=diagnostics,
        check_gradients=check_gradients, facts=facts,
    )  # fmt: skip
    loop, folder = session.loop, session.folder
    if diagnostics is not None and folder is not None:
        diagnostics.folder = folder.path
    run = completed(session, evaluate, callbacks, progress, "sf.federate")
    if diagnostics is not None and isinstance(clients, Clients):
        some = torch.cat(list(clients.rows_of))[:TRAIN_ROWS]
        diagnostics.ended(
            measure(model, clients.source.fetch(some), loop.device, loop.loss_fn).get("accuracy"),
            run.accuracy,
        )
    return run


def _checked_plan(plan: Plan | None) -> Plan:
    if not isinstance(plan, Plan) or plan.federation is None:
        raise InputError(
            "plan", plan.method if isinstance(plan, Plan) else plan, "a plan over clients",
            problem="is none" if isinstance(plan, Plan) else "is missing",
            cure="Make one with sf.plans.dp_fedavg(...) or sf.plans.dp_fedsam(...).",
        )  # fmt: skip
    check_solved(plan)
    return plan


def _check_tier(plan: Plan, tier: str) -> None:
    if tier != TIER_EXACT:
        return
    if plan.shared_noise is not None:
        raise InputError(
            "randomness", tier, "'fast' or 'secure' with shared noise",
            problem="needs one exact Gaussian, and shares add up to another law",
        )  # fmt: skip
    for phase in plan.phases:
        Grid.for_clip_norm(phase.clip_norm)


def _public_rows(plan: Plan, public: Any) -> Rows | None:
    assert plan.federation is not None
    if not isinstance(plan.federation.mask, PublicMask):
        return None
    if public is None:
        raise InputError(
            "public", None, "public data, because the plan's mask is made from it", problem="is missing"
        )
    check_not_private(public)
    source = as_source(public)
    return Rows(*source.fetch(torch.arange(len(source))))


def _engine(
    model: nn.Module, clients: Clients | Engine, where: torch.device, settings: FederatedSettings
) -> tuple[Engine, LossFunction]:
    """The engine and the loss. Rows on this machine are tried on the model first, as blanks of their shape."""
    loss_fn = settings.get("loss_fn")
    if not isinstance(clients, Clients):
        if not hasattr(clients, "collect"):
            raise InputError("clients", clients, "clients from sf.federated.partition(...), or an engine")
        own = getattr(clients, "loss_fn", None)
        if isinstance(clients, Simulation):
            _rehearsed(clients)
        return clients, loss_fn or own or cross_entropy
    source = clients.source
    loss = checked_loss(source, loss_fn, getattr(source, "num_classes", None))
    engine = _rehearsed(Simulation(model, clients, loss, where, together=settings.get("together")))
    require_gradients(
        model, *source.fetch(torch.tensor([0])), loss, where, settings.get("check_gradients", True)
    )
    return engine, loss


def _rehearsed(engine: Simulation) -> Simulation:
    """Try the model on blanks; one that cannot be stacked is trained client by client."""
    rows = Rows(*engine.clients.source.fetch(torch.tensor([0, 0]))).to(engine.device)
    if not rehearse(engine.model, rows, engine.loss_fn):
        engine.together = 1
    return engine
