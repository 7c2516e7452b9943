"""From options to a plan: what they say, what is filled in, and which settings a method does not have."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from saltflat import plans
from saltflat.cli.run_options import listed, said
from saltflat.data import DataSet
from saltflat.errors import InputError, PrivacyWarning, check_count
from saltflat.methods.optimizers import DEFAULT
from saltflat.plan import (
    AutomaticClipping,
    Clipping,
    FlatClipping,
    Multiplicity,
    PerLayerClipping,
    Plan,
    QuantileClipping,
)

PLAN_WORDS = (
    "epsilon", "delta", "noise_multiplier", "population", "batch_size", "epochs", "steps", "clip_norm",
    "learning_rate", "optimizer", "momentum", "preset",
)  # fmt: skip
METHOD_WORDS = ("rho", "switch", "noise_ratio", "split", "portion", "stairs", "taper", "public_batch")

CLIPPINGS: dict[str, Callable[[float], Clipping]] = {
    "flat": lambda batch: FlatClipping(),
    "automatic": lambda batch: AutomaticClipping(),
    "per-layer": lambda batch: PerLayerClipping(),
    "quantile": lambda batch: QuantileClipping(count_noise=batch / 20),  # as Andrew et al. advise
}


def plan_for(data: DataSet, options: dict[str, Any], model: nn.Module | None = None) -> Plan:
    """The plan that the options describe; what is missing is filled in, and said in the plan's notes."""
    given = plan_settings(data, options, model)
    with warnings.catch_warnings(action="default", category=PrivacyWarning):
        return said_in_full(plans.by_name(options["method"], **given))


def said_in_full(plan: Plan) -> Plan:
    """The plan with the optimizer and the rate that are taken where none is named: no command is given others."""
    chosen, first = plan.optimizer or DEFAULT, plan.phases[0]
    rate = first.learning_rate or chosen.default_learning_rate(first.clip_norm)
    phases = [replace(p, learning_rate=rate) if p.learning_rate is None else p for p in plan.phases]
    return plan.changed(optimizer=chosen, phases=tuple(phases))


def plan_settings(
    data: DataSet, options: dict[str, Any], model: nn.Module | None = None, elsewhere: Iterable[str] = ()
) -> dict[str, Any]:
    """The plan's arguments that the options describe, but for those that are said ``elsewhere``."""
    given, own = said(options, PLAN_WORDS), said(options, METHOD_WORDS)
    if options.get("methods"):  # a comparison gives each method those that it knows
        own = {word: value for word, value in own.items() if word in _own_words(options["method"])}
    check_own_settings(options["method"], own)
    given |= own
    people = data.train.groups
    if "population" not in given:
        count = len(data.train) if people is None else len(people.unique())
        given |= {"population": count, "relation": "zero-out"}
    elif not data.classes_declared:
        given["relation"] = "zero-out"
    if people is not None:
        given["unit"] = "person"
    if "epsilon" not in given and "noise_multiplier" not in given:
        given["epsilon"] = 3.0
    if given.get("preset"):
        given["model"] = options["model"]
    elif "batch_size" not in {*given, *elsewhere}:
        given["batch_size"] = default_batch_size(given["population"])
    if model is not None:
        given["parameters"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if options.get("clipping"):
        given["clipping"] = CLIPPINGS[options["clipping"]](given.get("batch_size", 2048))
    if options.get("views") is not None or options.get("augmentations"):
        usual = 16 if options["method"].startswith("weight-multiplicity") else 1
        views = options.get("views")
        names = listed(options.get("augmentations") or "")
        given["multiplicity"] = Multiplicity(usual if views is None else views, names)
    return given


def check_own_settings(method: str, own: dict[str, Any]) -> None:
    """Refuse a setting that the method does not have, instead of ignoring it."""
    refuse_other_settings(method, own, _own_words(method))


def refuse_other_settings(method: str, own: dict[str, Any], accepted: Iterable[str]) -> None:
    """Refuse the first of a method's settings that it does not accept."""
    for word in own.keys() - set(accepted):
        raise InputError(
            word, own[word], f"a setting of {method}", problem="is not one",
            cure=f"Leave --{word.replace('_', '-')} out, or choose a method that has it.",
        )  # fmt: skip


def _own_words(method: str) -> set[str]:
    base = method.split("+")[0]
    known = METHOD_WORDS if base not in plans.METHODS else inspect.signature(plans.METHODS[base]).parameters
    return set(known)  # a method that is not known is refused by its name


def default_batch_size(population: int) -> int:
    """A power of two near 4.5 n^0.56: 256 of 1,437 rows, 2,048 of 60,000.

    >>> default_batch_size(1437), default_batch_size(60_000)
    (256, 2048)
    """
    check_count("population", population)
    return int(min(population, max(16, 2 ** round(math.log2(4.5 * population**0.557)))))
