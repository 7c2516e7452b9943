"""What must hold before anything is spent, for rows and for clients alike."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.people import People
from saltflat.data.source import Examples, Source, Surveyed, as_source
from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError, PrivacyWarning, check_arguments
from saltflat.mechanism.randomness import check_tier
from saltflat.plan import Plan
from saltflat.ranks.group import several
from saltflat.training.build import trainable
from saltflat.training.evaluate import evaluate
from saltflat.training.keep import EVERY, check_every
from saltflat.training.losses import check_targets, default_loss


def check_settings(settings: Any, known: Any) -> None:
    """Refuse arguments that ``known`` (a TypedDict) has not, and values of those that all runs share."""
    check_arguments(settings, known)
    out, resume = settings.get("out"), settings.get("resume")
    if out is not None and resume is not None:
        raise InputError(
            "resume", str(resume), "out for a new run, or resume for one that was cut off",
            problem=f"is given beside out={str(out)!r}",
        )  # fmt: skip
    check_seed(settings.get("seed"))
    if settings.get("randomness") is not None:
        check_tier(settings["randomness"])
    check_every(settings.get("checkpoint_every", EVERY))


def check_solved(plan: Plan) -> None:
    """Refuse a plan whose noise is not known yet."""
    if not plan.is_solved:
        raise InputError(
            "plan", "unsolved", "a plan whose noise is known", cure="Use plan.calibrated_to(budget)."
        )


def check_survey(plan: Plan, source: Source, resume: object) -> None:
    """Refuse a plan with a survey on data that has no histograms, and to go on with such a run."""
    survey = plan.survey
    if survey is None:
        return
    check_alone("survey")  # every rank would count its own rows only
    if resume is not None:
        raise InputError(
            "resume", str(resume), "a run without a survey",
            problem="cannot go on: what its survey found is kept in memory only",
            cure="Start anew in another folder; what this run has spent stays spent.",
        )  # fmt: skip
    if not isinstance(source, Surveyed) or source.columns != survey.columns:
        raise InputError(
            "survey", str(survey), "data that can be surveyed in as many columns",
            problem="is in the plan, and the data has no such histograms",
            cure="sf.PrivateClassifier and sf.PrivateRegressor make plan and data together.",
        )  # fmt: skip


def check_alone(what: str) -> None:
    """Refuse to be one of several ranks where only one process is foreseen: each would do all of it."""
    if several():
        raise InputError(
            what, f"one of {torch.distributed.get_world_size()} ranks", "a single process",
            problem="is not for several ranks",
            cure="Several ranks train one model with sf.fit or sf.steps; anything else needs one process.",
        )  # fmt: skip


def check_seed(seed: int | None) -> None:
    """Refuse a seed that is none."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**62):
        raise InputError("seed", seed, "a whole number 0 <= seed < 2**62, or none for a private run")


def placed(model: nn.Module, device: torch.device | str | None) -> torch.device:
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


def check_evaluation(
    model: nn.Module, test: Any, loss: LossFunction, device: torch.device, argument: str = "evaluate"
) -> None:
    """Evaluate a few rows and throw the figures away."""
    source = as_source(test)
    some = source.fetch(torch.arange(min(2, len(source))))
    try:
        evaluate(model, some, device, loss)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            argument, test, "data of the same form as the training data",
            problem=f"failed on the first rows: {error}",
        ) from error  # fmt: skip


def check_provenance(data: Any, spender: str = "the plan") -> None:
    """Say that rows are not private, where a budget is spent on them."""
    if isinstance(data, Examples) and data.provenance != "private":
        warnings.warn(
            f"This data is marked {data.provenance}: it needs no budget, and {spender} spends one on it.",
            PrivacyWarning,
            stacklevel=4,
        )


def check_classes(plan: Plan, data: Any) -> None:
    """Say that a claim keeps the classes secret, and they were read from the rows."""
    if isinstance(data, Examples) and not data.classes_declared and plan.budget.relation == "add-remove":
        warnings.warn(
            "The classes of this data were read from its rows, and this plan's relation, add-remove, takes them for "
            "secret. Declare them (load(..., classes=[...])), or make the plan with relation='zero-out'.",
            PrivacyWarning,
            stacklevel=4,
        )


def check_population(count: int, what: str, declared: int) -> None:
    """Say that there are more or fewer units than declared: it must change nothing, and is kept out of all files."""
    if count != declared:
        warnings.warn(
            f"The data has {count} {what} and the plan declares population={declared}. Rate, divisor and steps stay "
            "as declared; the guarantee holds. This is said here and stored nowhere.",
            PrivacyWarning,
            stacklevel=4,
        )


def units_in(source: Source, groups: Any, unit: str) -> Source:
    """People as units where the plan protects people; a plan and data that disagree are refused."""
    ids = groups if groups is not None else getattr(source, "groups", None)
    if unit == "person":
        if ids is None:
            raise InputError(
                "groups", None, "an id for each row, because the plan protects a person",
                problem="is missing",
                cure="Pass fit(groups=ids), or make a plan with unit='example'.",
            )  # fmt: skip
        return People(source, ids)
    if unit == "client":
        raise InputError(
            "unit", "client", "unit='example' or unit='person' in fit",
            problem="would claim more than training on rows protects",
            cure="Train clients with sf.federate; or pass their ids as groups and protect them with unit='person'.",
        )  # fmt: skip
    if groups is not None:
        raise InputError(
            "unit", unit, "unit='person' in the plan, because groups are given",
            problem="would protect single rows only",
        )  # fmt: skip
    if ids is not None:
        warnings.warn(
            "The data says whose rows they are, and the plan protects single rows: a person with several rows "
            "is protected less. Make the plan with unit='person'.",
            PrivacyWarning,
            stacklevel=4,
        )
    return source


def held_targets(source: Source) -> Tensor | None:
    """All targets, where they lie in one tensor."""
    held = source.source if isinstance(source, People) else source
    return held.targets if isinstance(held, Examples) else None


def checked_loss(
    source: Source, loss_fn: LossFunction | None, classes: int | None, first: int = 0
) -> LossFunction:
    """The caller's loss, or the usual one for these targets, which must suit it. ``first`` is a row to look at."""
    targets = held_targets(source)
    if targets is None:
        targets = source.fetch(torch.tensor([first]))[1]
    check_targets(targets, classes, loss_fn)
    return loss_fn if loss_fn is not None else default_loss(targets)


def cannot_take(model: nn.Module, what: str, tried: str, error: Exception) -> InputError:
    """The error of a model that failed on rows it was tried on."""
    return InputError(
        "model", model, f"a model that accepts {what}, and a loss that accepts its output",
        problem=f"failed on {tried}: {error}",
        cure="Call loss_fn(model(inputs), targets) on a small batch to see where.",
    )  # fmt: skip
