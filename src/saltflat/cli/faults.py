"""Every fault of a request at once, where training would stop at the first one.

Asked only when something is wrong. Each option is tried alone, beside values that are right, with the checks
that the plan itself makes: there is no second list of rules.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from saltflat import plans
from saltflat.cli.run_options import listed, said
from saltflat.errors import InputError, SaltflatError
from saltflat.plan import Budget, Multiplicity

# options that are judged together
TOGETHER = (
    ("delta",), ("population", "batch_size"), ("epochs", "steps"), ("clip_norm",), ("learning_rate",),
    ("optimizer", "momentum"),
)  # fmt: skip
# no noise, so that nothing is calibrated or composed: that would take its time
RIGHT: dict[str, Any] = {"population": 1000, "batch_size": 10, "steps": 1_000_000, "epsilon": math.inf}


class FaultsError(SaltflatError, ValueError):
    """Several faults of one request; the message lists them all.

    >>> print(FaultsError(["delta=2 is not valid.", "steps=0 is not valid."]))
    2 faults:
      - delta=2 is not valid.
      - steps=0 is not valid.
    """

    def __init__(self, faults: list[str], where: str = "") -> None:
        count = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}{where and f' in {where}'}"
        lines = [fault.replace("\n", "\n  ") for fault in faults]
        super().__init__(f"{count}:\n" + "\n".join(f"  - {line}" for line in lines))


@contextmanager
def all_faults(options: dict[str, Any]) -> Iterator[None]:
    """Let an input error out, together with whatever else is wrong with the options."""
    try:
        yield
    except InputError as error:
        others = [fault for fault in faults_of(options) if fault.partition("=")[0] != error.argument]
        if not others:
            raise
        raise FaultsError([str(error), *others]) from error


def faults_of(options: dict[str, Any]) -> list[str]:
    """What is wrong with the options, each fault once. Reads no data.

    >>> [fault.partition(" ")[0] for fault in faults_of({"method": "dp-stg", "delta": 2.0, "epsilon": 1.0})]
    ["method='dp-stg'", 'delta=2.0']
    """
    found: dict[str, None] = {}
    for check in _checks(said(options, options)):
        try:
            with warnings.catch_warnings(action="ignore"):
                check()
        except SaltflatError as error:
            found[str(error)] = None
        except (ValueError, TypeError, ArithmeticError):
            continue  # no sentence for a user: the run itself will say what it is
    return list(found)


def _checks(given: dict[str, Any]) -> Iterator[Callable[[], object]]:
    from saltflat.cli.plan_settings import METHOD_WORDS, check_own_settings
    from saltflat.cli.run_data import check_test_fraction
    from saltflat.methods.optimizers import check_name
    from saltflat.training.checks import check_seed

    methods = listed(str(given.get("method") or given.get("methods", "")))
    if "data" in given:
        yield partial(_check_data, str(given["data"]))
    if "model" in given:
        yield partial(_check_model, given["model"])
    for name in methods:
        yield partial(plans.by_name, name, **RIGHT)
    known = [name for name in methods if name.split("+")[0] in plans.METHODS]
    own = {word: given[word] for word in METHOD_WORDS if word in given}
    if own and len(known) == len(methods) == 1:  # a comparison gives each method those that it knows
        yield partial(check_own_settings, known[0], own)
        for word in ("rho", "switch", "noise_ratio"):
            if word in own:
                yield partial(plans.by_name, known[0].split("+")[0], **(RIGHT | {word: own[word]}))
    yield partial(_check_noise, given)
    for words in TOGETHER:
        if some := {word: given[word] for word in words if word in given}:
            yield partial(plans.by_name, "dp-sgd", **_beside(some))
    if "optimizer" in given:
        yield partial(check_name, given["optimizer"])
    if "views" in given or "augmentations" in given:
        yield partial(Multiplicity, given.get("views", 1), listed(given.get("augmentations", "")))
    yield partial(check_test_fraction, given)
    yield partial(check_seed, given.get("seed"))


def _beside(some: dict[str, Any]) -> dict[str, Any]:
    """A right plan but for these settings."""
    right = dict(RIGHT)
    if "population" in some and "batch_size" not in some:
        right["batch_size"] = min(10, max(1, some["population"]))
    if "batch_size" in some and "population" not in some:
        right["population"] = max(1000, math.ceil(some["batch_size"]))
    if "epochs" in some:
        del right["steps"]
    return right | some


def _check_noise(given: dict[str, Any]) -> None:
    epsilon, noise = given.get("epsilon"), given.get("noise_multiplier")
    if epsilon is not None and noise is not None:
        raise InputError(
            "epsilon", epsilon, "exactly one of epsilon and noise_multiplier",
            problem="and noise_multiplier: both are given",
        )  # fmt: skip
    if epsilon is not None:
        Budget(epsilon, 1e-5)
    if noise is not None:
        plans.dp_sgd(population=1000, batch_size=10, steps=1, noise_multiplier=noise)


@contextmanager
def names_of(option: str) -> Iterator[None]:
    """What is called ``name`` inside is this option here: a complaint about it says so."""
    try:
        yield
    except InputError as error:
        if error.argument != "name":
            raise
        raise InputError(
            option, error.value, error.expected, problem=error.problem, cure=error.cure
        ) from error


def _check_model(name: str) -> None:
    from saltflat.models import describe

    with names_of("model"):
        describe(name)


def _check_data(name: str) -> None:
    from saltflat.data.catalogue import known
    from saltflat.data.places import check_there

    with names_of("data"):
        if known(name) is None:
            check_there(Path(name).expanduser())
