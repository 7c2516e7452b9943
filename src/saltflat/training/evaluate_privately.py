"""Accuracy on a private hold-out, released with noise and recorded before it is drawn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import nn

from saltflat.accounting import Relation, SampledGaussian, least_scale
from saltflat.accounting import epsilon as cost_of
from saltflat.data.people import People
from saltflat.data.source import Source, as_source, map_tensors
from saltflat.engine.calling import call_model
from saltflat.engine.probe import refuse_if_mixed
from saltflat.errors import InputError, PrivacyWarning, check_count
from saltflat.mechanism.noise import SENSITIVITY, centred_sum, noised_count
from saltflat.mechanism.randomness import TIER_EXACT, TIER_FAST, Randomness, check_tier
from saltflat.plan import Budget
from saltflat.plan.budget import Unit
from saltflat.record.balance import Charge
from saltflat.record.evaluations import FILE, composed, entry_of, evaluations_in, spent_on_evaluations
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.training.checks import check_alone, check_provenance
from saltflat.training.evaluate import BATCH, evaluating, with_weights
from saltflat.training.losses import logits_of
from saltflat.training.run import Run
from saltflat.training.score import right_answers, tells_classes
from saltflat.training.spend import AccountName, opened, reserve

CONFIDENCE = 0.95


@dataclass(frozen=True)
class PrivateAccuracy:
    """An accuracy that was released with noise. Printing it gives the words.

    ``interval`` holds the exact accuracy on these rows with 95 % confidence, from the known noise alone, if the
    declared size is right: how far these rows are from others like them is not in it.
    ``epsilon`` and ``delta`` are those of this release;
    ``total_epsilon`` and ``total_delta`` those of all evaluations so far and of training, where that is known.
    """

    accuracy: float
    interval: tuple[float, float]
    epsilon: float
    delta: float
    noise_multiplier: float
    size: int
    relation: Relation
    unit: Unit
    disjoint: bool
    randomness: str
    evaluations: int
    total_epsilon: float
    total_delta: float
    training_known: bool
    account: str | None = None
    reservation: str | None = None
    recorded_in: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; infinite ε is the word "inf"."""
        data = asdict(self)
        data["interval"] = list(self.interval)
        if math.isinf(self.total_epsilon):
            data["total_epsilon"] = "inf"
        return data

    def __str__(self) -> str:
        low, high = self.interval
        relation = {"add-remove": "added or removed", "zero-out": "emptied, their number being public"}
        people = {"example": "rows", "person": "people", "client": "clients"}[self.unit]
        total = "inf: NOT PRIVATE" if math.isinf(self.total_epsilon) else f"{self.total_epsilon:.4g}"
        beside = "training and " if self.training_known else ""
        how = "the larger of both, the hold-out being disjoint" if self.disjoint else "added up"
        return (
            f"accuracy {self.accuracy:.2%} on {self.size:,} declared private {people}, with noise; "
            f"the exact one is between {low:.2%} and {high:.2%} ({CONFIDENCE:.0%})\n"
            f"this release: ε = {self.epsilon:.4g}, δ = {self.delta:g}, when one {self.unit} is "
            f"{relation[self.relation]}\n"
            f"{beside}{self.evaluations} evaluation{'s' * (self.evaluations > 1)} so far: ε = {total}, "
            f"δ = {self.total_delta:g}" + (f" ({how})" if self.training_known else "")
        )


def evaluate_privately(
    model: nn.Module | Run,
    data: Any,
    *,
    epsilon: float,
    delta: float,
    size: int | None = None,
    groups: Any = None,
    disjoint: bool = False,
    average: bool = False,
    randomness: str = TIER_FAST,
    account: AccountName = None,
    out: str | Path | None = None,
    device: torch.device | str | None = None,
) -> PrivateAccuracy:
    """The accuracy of ``model`` on private ``data``, by a noised count of right answers.

    ``model`` is a module, or a `Run`, whose claim is then composed with this one. ``size`` is the declared
    number of units of the hold-out, the divisor; left out, it is read from the data, and the claim is for the
    zero-out relation. ``groups`` says whose rows they are: each person has one vote, the share of right answers
    in their rows. ``disjoint`` declares that no unit of the hold-out was trained on, *and* that no unit's side
    was decided by looking at other units (a file of its own, a coin or a hash for each unit; not a shuffle and
    a cut). Without it, training and evaluation add up. ``average`` takes the averaged weights of a run.
    ``account`` is charged in any case. The record goes into ``out``, or the run's own folder.

    Guarantees: (ε, δ) for every unit of ``data``. The release is on record before its noise is drawn.

    Reference: Dwork et al. 2006; the analytic Gaussian mechanism of Balle and Wang 2018, here by PLD.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> plan = sf.plans.dp_sgd(epsilon=8, delta=1e-4, population=1437, batch_size=256, steps=3)
    >>> run = sf.fit(sf.models.build("mlp"), rows.train, plan, progress=False)
    >>> found = sf.evaluate_privately(run, rows.test, epsilon=0.5, delta=1e-5, size=360)
    >>> found.epsilon <= 0.5, round(found.total_epsilon, 1), 0 <= found.accuracy <= 1
    (True, 8.5, True)
    """
    check_alone("evaluate_privately")  # every rank would release a count of its own
    run = model if isinstance(model, Run) else None
    module = run.model if run is not None else model
    if not isinstance(module, nn.Module):
        raise InputError("model", module, "a torch.nn.Module, or a Run")
    if average and (run is None or run.average is None):
        raise InputError(
            "average", True, "a run whose plan averages", problem="is asked for, but nothing was averaged"
        )
    if run is not None and run.folder is not None and out is not None:
        raise InputError(
            "out", str(out), "no folder, because the run has its own", problem="is given beside a run",
            cure=f"All evaluations of this run are recorded in {run.folder}.",
        )  # fmt: skip
    if run is None and out is not None and (Path(out) / "plan.json").exists():
        raise InputError(
            "out", str(out), "another folder, or none", problem="is the folder of a run, and a bare module is given",
            cure=f"Evaluate the run: sf.Run.load({str(out)!r}).",
        )  # fmt: skip
    check_tier(randomness)
    if size is not None:
        check_count("size", size)
    source = _units(data, groups, run)
    budget = _claim(epsilon, delta, size, source, run)
    declared = len(source) if size is None else size
    sigma = least_scale(lambda scale: [SampledGaussian(scale, 1.0, 1)], epsilon, delta)
    event = SampledGaussian(sigma, 1.0, 1)
    charge = Charge((event,), cost_of([event], delta), delta, budget.relation, budget.unit, what="evaluation")
    charged = opened(account)
    if charged is not None:
        charged.check([charge], "This evaluation")
    own = next((p.device for p in module.parameters()), "cpu")
    where = torch.device(own if device is None else device)
    with evaluating(module.to(where)), with_weights(module, run.average if average and run else None):
        _check_model(module, source, where)
        at_once = 1 if randomness == TIER_EXACT else BATCH  # there, every unit is asked by itself
        total = centred_sum(right_answers(module, source, where, at_once=at_once))
    _say_what_differs(data, source, declared)
    folder = Path(out) if out is not None else None if run is None else run.folder
    facts = {
        "epsilon": charge.epsilon, "delta": delta, "size": declared, "relation": budget.relation,
        "unit": budget.unit, "disjoint": disjoint, "randomness": randomness,
        "weights_sha256": _weights_hash(run, average),
    }  # fmt: skip
    with _record(folder, run) as ledger:
        reservation = None if charged is None else reserve(charged, charge, ledger, folder)
        ledger.record("evaluation", **entry_of(facts | {"reservation": reservation}, event))
        released = noised_count(total, sigma, Randomness.fresh(where, randomness))
        spent = spent_on_evaluations(ledger)
        accuracy, interval = _accuracy(released, sigma, declared)
        ledger.record("result", accuracy=accuracy, interval=list(interval))
    training = None if run is None else (run.epsilon, run.plan.budget.delta)
    total_epsilon, total_delta = composed(spent, training or (0.0, 0.0))
    return PrivateAccuracy(
        accuracy, interval, charge.epsilon, delta, sigma, declared, budget.relation, budget.unit, disjoint,
        randomness, int(spent["evaluations"]), total_epsilon, total_delta, training is not None,
        None if charged is None else charged.name, reservation, None if folder is None else str(folder / FILE),
    )  # fmt: skip


def _units(data: Any, groups: Any, run: Run | None) -> Source:
    """Rows, or people or clients by the ids of their rows. A run and its evaluation protect the same unit."""
    source = as_source(data)
    ids = groups if groups is not None else getattr(source, "groups", None)
    wanted = None if run is None else run.plan.budget.unit
    if wanted in ("person", "client") and ids is None:
        raise InputError(
            "groups", None, f"an id for each row, because the run protects a {wanted}", problem="is missing"
        )
    if wanted == "example" and groups is not None:
        raise InputError("groups", groups, "no groups, because the run protects single rows")
    return source if ids is None or wanted == "example" else People(source, ids)


def _claim(epsilon: float, delta: float, size: int | None, source: Source, run: Run | None) -> Budget:
    relation: Relation = "zero-out" if size is None else "add-remove"
    unit: Unit = "person" if isinstance(source, People) else "example"
    if run is not None:
        unit = run.plan.budget.unit
    budget = Budget(epsilon, delta, relation, unit)
    if math.isinf(epsilon):
        raise InputError(
            "epsilon", epsilon, "a finite epsilon > 0", cure="fit(evaluate=...) measures without noise."
        )
    if run is not None and run.plan.budget.relation != relation:
        if size is None:
            raise InputError(
                "size", None, "the declared number of units of the hold-out",
                problem="is missing, and the run keeps the number of its units secret",
                cure="Declare it without counting the private rows.",
            )  # fmt: skip
        return replace(budget, relation="zero-out")  # a declared number may be public all the same
    return budget


@torch.no_grad()
def _check_model(model: nn.Module, source: Source, device: torch.device) -> None:
    """A few rows, before anything is spent: classes in, classes out, and no row answers for another."""
    inputs, targets = source.fetch(torch.arange(min(3, len(source))))
    inputs = map_tensors(lambda t: t.to(device), inputs)
    try:
        logits = logits_of(call_model(model, inputs))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            "data", "the hold-out", "rows of the form that the model was trained on",
            problem=f"failed on the first rows: {error}",
        ) from error  # fmt: skip
    if not tells_classes(logits, targets):
        raise InputError(
            "data", "the hold-out", "whole numbers as targets, and a model with one output a class",
            problem="has no accuracy to speak of",
        )  # fmt: skip
    classes = getattr(source, "num_classes", None)
    if classes is not None and classes != logits.shape[1]:
        raise InputError(
            "data", "the hold-out", f"the {logits.shape[1]} classes of the model",
            problem=f"has {classes} classes", cure="Load it with the classes that were trained on.",
        )  # fmt: skip
    refuse_if_mixed(model, inputs)


def _say_what_differs(data: Any, source: Source, declared: int) -> None:
    check_provenance(data, "this")
    if len(source) != declared:
        warnings.warn(
            f"The hold-out has {len(source)} units and size={declared} is declared. The count is divided by the "
            "declared one; the guarantee holds. This is said here and stored nowhere.",
            PrivacyWarning, stacklevel=3,
        )  # fmt: skip


def _accuracy(released: float, sigma: float, size: int) -> tuple[float, tuple[float, float]]:
    """From the centred count to an accuracy between 0 and 1, and what the noise leaves open."""
    middle = released / size + 0.5
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * sigma * SENSITIVITY / size
    within = [min(max(value, 0.0), 1.0) for value in (middle, middle - reach, middle + reach)]
    return within[0], (within[1], within[2])


def _weights_hash(run: Run | None, average: bool) -> str | None:
    if run is None:
        return None
    found = run.certificate.data.get("files", {}).get(f"{'average' if average else 'weights'}.safetensors")
    return None if found is None else str(found)


@contextmanager
def _record(folder: Path | None, run: Run | None) -> Iterator[Ledger]:
    """The record of a folder's evaluations, held for this process inside the block; in memory without a folder."""
    plan_hash = None if run is None else run.plan.hash
    if folder is None:
        yield evaluations_in(None, plan_hash, None if run is None else run.evaluations)
        return
    folder.mkdir(parents=True, exist_ok=True)
    held = RunFolder(folder)
    held.hold()
    try:
        with closing(evaluations_in(folder, plan_hash)) as ledger:
            yield ledger
    finally:
        held.let_go()
