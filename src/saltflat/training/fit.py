"""`fit` and `steps`: from a model, data and a plan to a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from saltflat.accounting import COARSE, epsilon
from saltflat.engine.batch import LossFunction
from saltflat.methods.optimizers import OptimizerFactory
from saltflat.plan import Plan
from saltflat.ranks.stopping import undisturbed
from saltflat.training.evaluate import coverage, with_weights
from saltflat.training.follow import follow
from saltflat.training.keep import EVERY
from saltflat.training.lead import Led, leading, opened_group
from saltflat.training.prepare import Settings, prepare
from saltflat.training.progress import NotedBar, note_about
from saltflat.training.resume import finished_run
from saltflat.training.run import Run
from saltflat.training.session import Session
from saltflat.training.spend import AccountName
from saltflat.training.step import Loop, Schedule, Step

Callback = Callable[[Step], None]
"""Called after every release, when the model has been updated. What it returns is not looked at. One that has a true
attribute ``wants_releases`` finds the release itself in ``step.release``."""


def fit(
    model: nn.Module,
    data: Any,
    plan: Plan | None = None,
    *,
    loss_fn: LossFunction | None = None,
    evaluate: Any = None,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | str | None = None,
    callbacks: Sequence[Callback] = (),
    groups: Any = None,
    public: Any = None,
    out: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
    micro_batch: int | None = None,
    randomness: str | None = None,
    progress: bool | None = None,
    resume: str | Path | None = None,
    checkpoint_every: float = EVERY,
    account: AccountName = None,
    check_gradients: Any = True,
    facts: dict[str, Any] | None = None,
) -> Run:
    """Train ``model`` on private ``data`` as ``plan`` says.

    ``data`` is a pair of tensors or arrays, a map-style Dataset or a plain DataLoader. ``evaluate`` is public
    or test data; its accuracy is shown after each epoch, labelled "not covered" unless the data is marked public
    (`evaluate_privately` gives one that is covered). ``optimizer`` is a factory such as
    ``lambda parameters: torch.optim.Adam(parameters)``. ``schedule`` is ``"cosine"``, or maps the fraction of the
    plan that is done to a factor on the learning rate. ``callbacks`` are called with a `Step` after every release,
    such as `geometry.Flatness`. ``groups`` gives each row the id of the person it belongs to,
    for plans whose unit is a person. ``public`` is data that an automatic switch
    may look at, and that plans with public gradients need; the certificate lists it. ``out`` names the run folder.
    ``seed`` makes a repeatable test run, which is **not private**.
    ``randomness`` is the tier of noise and sampling: ``"fast"`` (unless told otherwise), ``"secure"`` or
    ``"exact"``.

    A run with a folder can be cut off at any point, and goes on with ``resume``, the folder's name, in place of
    ``out``: same model, data and settings; the plan may be left out. It keeps the releases since the last
    checkpoint on disk, and writes a checkpoint every ``checkpoint_every`` seconds (0: after every step; inf:
    none, and the run cannot be resumed). A finished run is given back as it is. ``account`` is the name of an
    account, or an `Account`: the whole plan is reserved from it before the first release, and a run that would
    overdraw it is refused. Before anything is spent, made-up rows show whether every trainable tensor gets a gradient
    (`check_gradients`); ``check_gradients=False`` accepts a model in which one gets none, and ``(inputs, targets)``
    are rows of your making for that check. ``facts`` are stored in ``run.json`` as they are: say nothing there that
    came from private rows.

    In a process group of several ranks (`torchrun`), every rank calls this with the same arguments. Batches are
    drawn from the whole of ``data``; each rank computes its own shard of them. Rank 0 alone draws batches and
    noise, keeps the folder and calls the callbacks; in the end every rank has the same result. See docs/scale.md.

    Guarantees: the plan's ε and δ for every unit of ``data``, provided that nothing but what this function
    returns leaves, however often the run is cut off and resumed. All checks come before the first release.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> plan = sf.plans.dp_sgd(epsilon=8, delta=1e-4, population=1437, batch_size=256, steps=3)
    >>> run = sf.fit(sf.models.build("mlp"), rows.train, plan, evaluate=rows.test, progress=False)
    >>> round(run.epsilon, 1), len(run.history)
    (8.0, 1)
    """
    settings: Settings = {
        "loss_fn": loss_fn, "optimizer": optimizer, "schedule": schedule, "groups": groups, "public": public,
        "out": out, "device": device, "seed": seed, "micro_batch": micro_batch, "randomness": randomness,
        "resume": resume, "checkpoint_every": checkpoint_every, "account": account,
        "check_gradients": check_gradients, "facts": facts,
    }  # fmt: skip
    group = opened_group(model, device)
    if group is not None and not group.leads:
        return follow(group, model, data, plan, evaluate, settings)
    with leading(group) as ranks:
        run = _finished(model, plan, settings, ranks)
        if run is None:
            session = prepare(model, data, plan, evaluate, ranks, **settings)
            run = completed(session, evaluate, callbacks, progress, "sf.fit")
        if ranks is not None:
            ranks.end(run)
        return run


def _finished(model: nn.Module, plan: Plan | None, settings: Settings, ranks: Led | None) -> Run | None:
    """The run that is to be resumed, if there is nothing left to do."""
    resume = settings.get("resume")
    if resume is None or settings.get("out") is not None:
        return None
    run = finished_run(resume, model, plan)
    if run is not None and ranks is not None:
        ranks.open(None)
    return run


def completed(
    session: Session, evaluate: Any, callbacks: Sequence[Callback], progress: bool | None, function: str
) -> Run:
    """Run a session to its end, and certify it; ``function`` is what can go on with it if it is cut off."""
    loop, folder = session.loop, session.folder
    try:
        try:
            trained(session, evaluate, callbacks, progress)
        except BaseException as error:
            # what was released stays certified and usable
            with nullcontext() if loop.ranks is None else undisturbed():
                session.close(finished=False)
            if folder is not None and folder.checkpoints.exist():
                error.add_note(
                    f"The run in {folder.path} can go on: {function}(..., resume={str(folder.path)!r})"
                )
            raise
        session.close(finished=True)
    finally:
        session.let_go()
    return run_of(session)


def run_of(session: Session) -> Run:
    """What a session came to that was closed."""
    loop, folder, certificate = session.loop, session.folder, session.certificate
    assert certificate is not None
    where, average = None if folder is None else folder.path, loop.average.average
    return Run(
        loop.plan, loop.model, certificate, session.history, average, session.rules, where, session.seconds
    )


def trained(session: Session, evaluate: Any, callbacks: Sequence[Callback], progress: bool | None) -> None:
    """Run the loop to its end; the session's history gets one row of metrics an epoch."""
    loop, history = session.loop, session.history
    loop.hand_out_releases = any(getattr(callback, "wants_releases", False) for callback in callbacks)

    def measured() -> None:
        row = metrics_row(loop, loop.last_step(), evaluate)
        history.append(row)
        if session.folder is not None:
            session.folder.append_metrics(row)
        bar.update(note=note_about(row, loop.plan))

    shown = sys.stderr.isatty() if progress is None else progress
    with NotedBar(loop.plan.method, loop.plan.steps, shown) as bar:
        # a run may have been cut off between a step and its row
        if _has_row(loop) and (not history or history[-1]["step"] != loop.position):
            measured()
        for step in loop:
            for callback in callbacks:
                callback(step)
            if _has_row(loop):
                measured()
            bar.update(completed=step.number)


def _has_row(loop: Loop) -> bool:
    """Whether the last step is one after which the model is evaluated: the end of an epoch, or of the plan."""
    done, every = loop.position, loop.plan.steps_per_epoch
    left = loop.plan.steps - done
    return done > 0 and (left == 0 or (done % every == 0 and left >= every // 2))


def steps(
    model: nn.Module, data: Any, plan: Plan | None = None, **settings: Unpack[Settings]
) -> Iterator[Step]:
    """The same loop as `fit`, open: control comes back after each release.

    Takes what `fit` takes, but for ``evaluate``, ``callbacks`` and ``progress``. The model has been updated when
    a step is handed out. Stopping early does not lower ε: the plan's ε was fixed before the data was touched.
    With ``resume`` the steps after the one at which the run was cut off are handed out; of a finished run, none.
    With several ranks, rank 0 hands out the steps; on the others the loop is empty, and ends with the same weights.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=2)
    >>> [step.number for step in sf.steps(sf.models.build("mlp"), rows.train, plan)]
    [1, 2]
    """
    group = opened_group(model, settings.get("device"))
    if group is not None and not group.leads:
        follow(group, model, data, plan, None, settings)
        return
    with leading(group) as ranks:
        run = _finished(model, plan, settings, ranks)
        if run is None:
            session = prepare(model, data, plan, None, ranks, **settings)
            try:
                yield from _handed_out(session)
            except GeneratorExit:  # the caller has seen enough
                if ranks is not None:
                    ranks.end(run_of(session))
                raise
            run = run_of(session)
        if ranks is not None:
            ranks.end(run)


def _handed_out(session: Session) -> Iterator[Step]:
    """The steps of a session, which is closed however they end."""
    loop = session.loop
    try:
        yield from loop
    finally:
        try:
            session.close(finished=loop.position == loop.plan.steps)
        finally:
            session.let_go()


def metrics_row(loop: Loop, step: Step, data: Any) -> dict[str, Any]:
    """A row of the history: public facts, and exact numbers about the evaluation data."""
    spent = loop.plan.events(step.number)
    # a coarse grid overstates long runs; a part of the plan never costs more than the whole
    sofar = min(epsilon(spent, loop.plan.budget.delta, grid=COARSE), loop.plan.epsilon)
    row: dict[str, Any] = {
        "step": step.number,
        "epoch": round(step.epoch, 3),
        "epsilon_so_far": "inf" if sofar == float("inf") else round(sofar, 6),
    }
    if data is None:
        return row
    row |= loop.measure(data)
    if (label := coverage(data)) is not None:
        row["evaluation"] = label
    if loop.average.average is not None:
        with with_weights(loop.model, loop.average.average):
            row |= {f"average_{key}": value for key, value in loop.measure(data).items()}
    # A run that diverged has no number to show, and JSON no word for one: "nan" or "inf", as for ε.
    return {k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in row.items()}
