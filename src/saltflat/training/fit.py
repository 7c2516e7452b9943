"""`fit` and `steps`: from a model, data and a plan to a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from saltflat.accounting import COARSE, epsilon
from saltflat.engine.clipped_sum import LossFunction
from saltflat.methods.optimizers import OptimizerFactory
from saltflat.plan import Plan
from saltflat.training.evaluate import evaluate as measure
from saltflat.training.evaluate import with_weights
from saltflat.training.prepare import Session, Settings, prepare
from saltflat.training.progress import Progress
from saltflat.training.run import Run
from saltflat.training.step import Loop, Schedule, Step

Callback = Callable[[Step], None]


def fit(
    model: nn.Module,
    data: Any,
    plan: Plan,
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
    randomness: str = "fast",
    progress: bool | None = None,
) -> Run:
    """Train ``model`` on private ``data`` as ``plan`` says.

    ``data`` is a pair of tensors or arrays, a map-style Dataset or a plain DataLoader. ``evaluate`` is public
    or test data; its accuracy is shown after each epoch and is not covered by ε. ``optimizer`` is a factory
    such as ``lambda parameters: torch.optim.Adam(parameters)``. ``schedule`` is ``"cosine"``, or maps the
    fraction of the plan that is done to a factor on the learning rate. ``groups`` gives each row the id of
    the person it belongs to, for plans whose unit is a person. ``public`` is data that an automatic switch
    may look at. ``out`` names the run folder. ``seed`` makes a repeatable test run, which is **not private**.
    ``randomness`` is the tier of noise and sampling: ``"fast"``, ``"secure"`` or ``"exact"``.

    Guarantees: the plan's ε and δ for every unit of ``data``, provided that nothing but what this function
    returns leaves. All checks come before the first release.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> plan = sf.plans.dp_sgd(epsilon=8, delta=1e-4, population=1437, batch_size=256, steps=3)
    >>> run = sf.fit(sf.models.build("mlp"), rows.train, plan, evaluate=rows.test, progress=False)
    >>> round(run.epsilon, 1), len(run.history)
    (8.0, 1)
    """
    started = time.perf_counter()
    session = prepare(
        model, data, plan, evaluate,
        loss_fn=loss_fn, optimizer=optimizer, schedule=schedule, groups=groups, public=public, out=out,
        device=device, seed=seed, micro_batch=micro_batch, randomness=randomness,
    )  # fmt: skip
    try:
        history = _trained(session, evaluate, callbacks, progress)
    except BaseException:
        session.close(time.perf_counter() - started)  # what was released stays certified and usable
        raise
    seconds = time.perf_counter() - started
    certificate = session.close(seconds)
    where = None if session.folder is None else session.folder.path
    return Run(plan, model, certificate, history, session.loop.average.average, session.rules, where, seconds)


def _trained(
    session: Session, evaluate: Any, callbacks: Sequence[Callback], progress: bool | None
) -> list[dict[str, Any]]:
    """Run the loop to its end; returns one row of metrics an epoch."""
    plan, every = session.loop.plan, session.loop.plan.steps_per_epoch
    history: list[dict[str, Any]] = []
    with Progress(plan, shown=progress) as bar:
        for step in session.loop:
            for callback in callbacks:
                callback(step)
            left = plan.steps - step.number
            if left == 0 or (step.number % every == 0 and left >= every // 2):
                row = _metrics(session.loop, step, evaluate)
                history.append(row)
                if session.folder is not None:
                    session.folder.append_metrics(row)
                bar.note(row)
            bar.advance(step)
    return history


def steps(model: nn.Module, data: Any, plan: Plan, **settings: Unpack[Settings]) -> Iterator[Step]:
    """The same loop as `fit`, open: control comes back after each release.

    Takes what `fit` takes, but for ``evaluate``, ``callbacks`` and ``progress``. The model has been updated when
    a step is handed out. Stopping early does not lower ε: the plan's ε was fixed before the data was touched.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=2)
    >>> [step.number for step in sf.steps(sf.models.build("mlp"), rows.train, plan)]
    [1, 2]
    """
    session = prepare(model, data, plan, **settings)
    started = time.perf_counter()
    try:
        yield from session.loop
    finally:
        session.close(time.perf_counter() - started)


def _metrics(loop: Loop, step: Step, data: Any) -> dict[str, Any]:
    """A row of the history: public facts, and exact numbers about the evaluation data."""
    spent = loop.plan.events(step.number)
    sofar = epsilon(spent, loop.plan.budget.delta, grid=COARSE)
    row: dict[str, Any] = {
        "step": step.number,
        "epoch": round(step.epoch, 3),
        "epsilon_so_far": "inf" if sofar == float("inf") else round(sofar, 6),
    }
    if data is None:
        return row
    row |= measure(loop.model, data, loop.device, loop.loss_fn)
    if loop.average.average is not None:
        with with_weights(loop.model, loop.average.average):
            row |= {
                f"average_{key}": value
                for key, value in measure(loop.model, data, loop.device, loop.loss_fn).items()
            }
    # A run that diverged has no number to show, and JSON no word for one: "nan" or "inf", as for ε.
    return {k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in row.items()}
