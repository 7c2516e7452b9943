"""`fit` and `steps`: from a model, data and a plan to a run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.accounting import COARSE, epsilon
from saltflat.data.people import People
from saltflat.data.source import Examples, Source, as_source
from saltflat.engine.clipped_sum import LossFunction, clipped_sum
from saltflat.errors import InputError, PrivacyWarning, SaltflatError, check_count
from saltflat.mechanism.sampling import check_rows
from saltflat.methods.multiplicity import views_of
from saltflat.methods.optimizers import OptimizerFactory
from saltflat.plan import Plan
from saltflat.record.certificate import certify
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.training.build import build_mechanism, trainable
from saltflat.training.evaluate import evaluate as measure
from saltflat.training.evaluate import with_weights
from saltflat.training.losses import check_targets, default_loss
from saltflat.training.progress import Progress
from saltflat.training.run import Run
from saltflat.training.step import Loop, Schedule, Step, build_optimizer, fetch

Callback = Callable[[Step], None]


def fit(
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    loss_fn: LossFunction | None = None,
    evaluate: Any = None,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
    callbacks: Sequence[Callback] = (),
    groups: Any = None,
    public: Any = None,
    out: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
    micro_batch: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Train ``model`` on private ``data`` as ``plan`` says.

    ``data`` is a pair of tensors or arrays, a map-style Dataset or a plain DataLoader. ``evaluate`` is public
    or test data; its accuracy is shown after each epoch and is not covered by ε. ``optimizer`` is a factory
    such as ``lambda parameters: torch.optim.Adam(parameters)``. ``schedule`` maps the fraction of the plan
    that is done to a factor on the learning rate. ``groups`` gives each row the id of the person it belongs
    to, for plans whose unit is a person. ``public`` is data that an automatic switch may look at. ``out``
    names the run folder. ``seed`` makes a repeatable test run, which is **not private**.

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
    if evaluate is not None:
        as_source(evaluate)  # refuses what cannot be evaluated before anything is spent
    loop, folder, ledger, rules = _prepared(
        model, data, plan, loss_fn, optimizer, schedule, groups, public, out, device, seed, micro_batch
    )
    history: list[dict[str, Any]] = []
    every = plan.steps_per_epoch
    with closing(ledger), Progress(plan, shown=progress) as bar:
        for step in loop:
            for callback in callbacks:
                callback(step)
            last = step.number == plan.steps
            if last or (step.number % every == 0 and plan.steps - step.number >= every // 2):
                row = _metrics(loop, step, evaluate)
                history.append(row)
                if folder is not None:
                    folder.append_metrics(row)
                bar.note(row)
            bar.advance(step)
    average = loop.average.average
    seconds = time.perf_counter() - started
    weights_hash = None
    if folder is not None:
        weights_hash = folder.write_tensors("weights.safetensors", model.state_dict())
        if average is not None:
            folder.write_tensors("average.safetensors", average)
        folder.write_json("run.json", {"seconds": round(seconds, 3), "rules": rules})
    randomness = loop.mechanism.randomness
    certificate = certify(
        plan, ledger, randomness=randomness.tier, seeded=randomness.seeded, weights_hash=weights_hash
    )
    if folder is not None:
        folder.write_json("certificate.json", certificate.data)
    return Run(plan, model, certificate, history, average, rules, folder.path if folder else None, seconds)


def steps(
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
    groups: Any = None,
    public: Any = None,
    out: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
    micro_batch: int | None = None,
) -> Iterator[Step]:
    """The same loop as `fit`, open: control comes back after each release.

    The model has been updated when a step is handed out. Stopping early does not lower ε: the plan's ε was
    fixed before the data was touched.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=2)
    >>> [step.number for step in sf.steps(sf.models.build("mlp"), rows.train, plan)]
    [1, 2]
    """
    loop, folder, ledger, _ = _prepared(
        model, data, plan, loss_fn, optimizer, schedule, groups, public, out, device, seed, micro_batch
    )
    try:
        yield from loop
    finally:
        if folder is not None:
            folder.write_tensors("weights.safetensors", model.state_dict())
        ledger.close()


def _prepared(
    model: nn.Module,
    data: Any,
    plan: Plan,
    loss_fn: LossFunction | None,
    optimizer: OptimizerFactory | None,
    schedule: Schedule | None,
    groups: Any,
    public: Any,
    out: str | Path | None,
    device: torch.device | str | None,
    seed: int | None,
    micro_batch: int | None,
) -> tuple[Loop, RunFolder | None, Ledger, dict[str, str]]:
    """Check everything that can be checked, then set up the loop. Nothing is spent or written before that."""
    if not isinstance(plan, Plan):
        raise InputError("plan", plan, "a Plan", cure="Make one with sf.plans.dp_sgd(...).")
    if not plan.is_solved:
        raise InputError(
            "plan", "unsolved", "a plan whose noise is known", cure="Use plan.calibrated_to(budget)."
        )
    source = as_source(data)
    where = _placed(model, device)
    check_rows(plan.sampling, len(source))
    if micro_batch is not None:
        check_count("micro_batch", micro_batch)
    if seed is not None and (not isinstance(seed, int) or not 0 <= seed < 2**62):
        raise InputError("seed", seed, "a whole number 0 <= seed < 2**62, or none for a private run")
    _check_provenance(data, public)
    source = _by_person(source, groups, plan)
    loss = _checked_loss(source, loss_fn, getattr(data, "num_classes", None))
    built = build_optimizer(plan, model, optimizer)
    rules = _rehearsed(model, source, loss, plan, where)
    if seed is not None:
        torch.manual_seed(seed)
    if len(source) != plan.sampling.population:
        warnings.warn(
            f"The data has {len(source)} rows and the plan declares population={plan.sampling.population}. "
            "Rate, divisor and steps stay as declared; the guarantee holds. "
            "This is said here and stored nowhere.",
            PrivacyWarning,
            stacklevel=3,
        )
    folder = None if out is None else RunFolder.create(out)
    ledger = Ledger() if folder is None else folder.ledger()
    mechanism = build_mechanism(plan, source, ledger, where, seed)
    if folder is not None:
        folder.write_plan(plan)
        if (spec := getattr(model, "saltflat_spec", None)) is not None:
            folder.write_json("model.json", spec)
    loop = Loop(model, source, plan, mechanism, loss, built, schedule, where, micro_batch, public)
    return loop, folder, ledger, rules


def _placed(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move the model to the device and set it to train; a model without weights is refused."""
    if not isinstance(model, nn.Module) or not trainable(model):
        raise InputError("model", model, "a torch.nn.Module with parameters that require gradients")
    try:
        where = torch.device(device) if device is not None else next(model.parameters()).device
        model.to(where).train()
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            "device", str(device), "a device that torch has here, such as 'cpu'", problem=f"failed: {error}"
        ) from error
    return where


def _check_provenance(data: Any, public: Any) -> None:
    if isinstance(data, Examples) and data.provenance != "private":
        warnings.warn(
            f"This data is marked {data.provenance}: it needs no budget, and the plan spends one on it.",
            PrivacyWarning,
            stacklevel=4,
        )
    if public is not None:
        as_source(public)
    if isinstance(public, Examples) and public.provenance == "private":
        raise InputError(
            "public", "private data", "data whose provenance is public or synthetic",
            problem="is given where public data is needed",
            cure="Declare it when loading: provenance='public'.",
        )  # fmt: skip


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
    if groups is not None:
        raise InputError(
            "unit", plan.budget.unit, "unit='person' in the plan, because groups are given",
            problem="would protect single rows only",
        )  # fmt: skip
    return source


def _checked_loss(source: Source, loss_fn: LossFunction | None, classes: int | None) -> LossFunction:
    held = source.source if isinstance(source, People) else source
    targets: Tensor = held.targets if isinstance(held, Examples) else held.fetch(torch.tensor([0]))[1]
    check_targets(targets, classes, loss_fn)
    return loss_fn if loss_fn is not None else default_loss(targets)


def _rehearsed(
    model: nn.Module, source: Source, loss: LossFunction, plan: Plan, device: torch.device
) -> dict[str, str]:
    """Take a gradient of a few rows and throw it away: what is wrong with the model shows here."""
    rows = fetch(source, torch.arange(min(3, len(source))), device)
    inputs, targets = rows.inputs, rows.targets
    try:
        if plan.multiplicity.augmentations:
            inputs = views_of(inputs, replace(plan.multiplicity, views=1))
        return clipped_sum(model, loss, inputs, targets, plan.phases[0].clip_norm).rules
    except SaltflatError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            "model", model, "a model that accepts a batch of this data, and a loss that accepts its output",
            problem=f"failed on the first rows: {error}",
            cure="Call loss_fn(model(inputs), targets) on a small batch to see where.",
        ) from error  # fmt: skip


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
    row |= measure(loop.model, data, loop.device)
    if loop.average.average is not None:
        with with_weights(loop.model, loop.average.average):
            row |= {f"average_{key}": value for key, value in measure(loop.model, data, loop.device).items()}
    return row
