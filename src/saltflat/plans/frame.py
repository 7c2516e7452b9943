"""What all methods share: sampling, budget, steps, optimizer, read once and checked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Required, TypedDict

from saltflat.accounting import Relation
from saltflat.errors import InputError, check_arguments, check_count, check_positive, check_share, nearest
from saltflat.plan import (
    Averaging,
    Budget,
    Clipping,
    Federation,
    FlatClipping,
    Multiplicity,
    NoAveraging,
    NoPublicGradient,
    Optimizer,
    Phase,
    Plan,
    Poisson,
    PublicGradient,
    Sampling,
    Survey,
    TruncatedPoisson,
    Unit,
)
from saltflat.plan.averagings import AVERAGINGS
from saltflat.plans.defaults import choose_epochs


class Common(TypedDict, total=False):
    """The arguments that every method takes.

    Declared, public numbers: ``population``, ``batch_size`` (expected; or ``rate``), ``epochs`` or ``steps``
    (left out, the number of steps is chosen from the budget). What to spend: ``epsilon`` and ``delta``, or
    ``noise_multiplier``. What is protected: ``unit`` and ``relation``. What to compose: ``optimizer``,
    ``learning_rate``, ``momentum``, ``averaging``, ``clipping``, ``multiplicity``, ``public_gradient``; and a
    ``survey`` that comes before the first step, within the same budget.
    ``preset="paper"`` takes the settings that the method's paper reports for ``model``.
    """

    population: Required[int]
    batch_size: float
    rate: float
    epochs: float
    steps: int
    epsilon: float
    delta: float
    noise_multiplier: float
    clip_norm: float
    learning_rate: float
    optimizer: str | Optimizer
    momentum: float
    averaging: Averaging
    clipping: Clipping
    multiplicity: Multiplicity
    public_gradient: PublicGradient
    survey: Survey
    sampling: Literal["poisson", "truncated-poisson"]
    cap: int
    unit: Unit
    relation: Relation
    preset: Literal["paper"]
    model: str
    parameters: int


Method = Callable[..., Plan]
Suffix = Callable[[dict[str, Any]], dict[str, Any]]
"""What a suffix behind a method's name adds to the arguments that were given."""


def _averaging_suffix(kind: str) -> Suffix:
    return lambda given: {"averaging": AVERAGINGS[kind]()}


AVERAGING_SUFFIXES = {kind: _averaging_suffix(kind) for kind in AVERAGINGS if kind != "none"}

UNKNOWN = "is not an argument of this plan"
DEFAULT_DELTA = 1e-5
DEFAULT_CLIP_NORM = 1.0


def read_name(
    name: str, methods: Mapping[str, Method], suffixes: Mapping[str, Suffix], given: dict[str, Any]
) -> tuple[Method, dict[str, Any]]:
    """The method that a name begins with, and what the suffixes behind it add to the arguments; two that say the
    same are refused.
    """
    base, *behind = name.split("+")
    if base not in methods:
        raise InputError(
            "method", name, "a method's name", problem="is not known", cure=nearest(base, list(methods))
        )
    added: dict[str, Any] = {}
    for suffix in behind:
        if suffix not in suffixes:
            raise InputError(
                "method", name, "known suffixes", problem=f"has an unknown suffix {suffix!r}",
                cure=nearest(suffix, list(suffixes)),
            )  # fmt: skip
        settings = suffixes[suffix](given)
        if settings.keys() & added.keys():
            kinds = "one averaging, one optimizer, one use of public gradients"
            raise InputError("method", name, kinds, problem="has two of a kind")
        added |= settings
    return methods[base], added


class Frame:
    """The common arguments of one call, turned into the parts of a plan."""

    def __init__(self, given: Common) -> None:
        self.given = dict(given)
        check_arguments(self.given, Common, UNKNOWN)
        self.notes: list[str] = []
        self.sampling = self._sampling()
        self.budget = self._budget()
        self.steps = self._steps()
        self.clip_norm: float = self.get("clip_norm", DEFAULT_CLIP_NORM)
        self.noise_multiplier: float | None = self.get("noise_multiplier")
        if math.isinf(self.budget.epsilon) and self.noise_multiplier is None:
            self.noise_multiplier = 0.0
        self.learning_rate: float | None = self.get("learning_rate")
        self.optimizer = self._optimizer()

    def plan(self, method: str, *phases: Phase | None, federation: Federation | None = None) -> Plan:
        """The plan of these phases, calibrated if a budget was given, accounted if the noise was."""
        plan = self.draft(method, *phases, federation=federation)
        if not plan.is_solved:
            return plan.calibrated_to(self.budget)
        if self.get("noise_multiplier") is None and not math.isinf(self.budget.epsilon):
            return plan  # a method that solved its phases itself
        # So much noise that ε is zero to the last digit is still a budget.
        spent = max(plan.epsilon, sys.float_info.min)
        return plan.changed(budget=replace(self.budget, epsilon=spent))

    def draft(self, method: str, *phases: Phase | None, federation: Federation | None = None) -> Plan:
        """The plan of these phases as they are, solved or not."""
        return Plan(
            self.sampling,
            tuple(phase for phase in phases if phase is not None),
            self.budget,
            self.optimizer,
            self.get("averaging", NoAveraging()),
            self.get("clipping", FlatClipping()),
            self.get("multiplicity", Multiplicity()),
            method,
            tuple(self.notes),
            self.get("public_gradient", NoPublicGradient()),
            federation,
            self.get("survey"),
        )

    def phase(self, steps: int, name: str, **changes: Any) -> Phase | None:
        """A phase with the common clip norm, noise and learning rate, but for the changes; None without steps."""
        if steps == 0:
            return None
        settings: dict[str, Any] = {
            "clip_norm": self.clip_norm, "noise_multiplier": self.noise_multiplier,
            "learning_rate": self.learning_rate,
        } | changes  # fmt: skip
        if settings["clip_norm"] == math.inf and self.noise_multiplier is None:
            settings["noise_multiplier"] = 0.0  # noise is scaled by the clip norm
        return Phase(steps, name=name, **settings)

    def get(self, key: str, default: Any = None) -> Any:
        """An argument, or the default where it was not given."""
        value = self.given.get(key)
        return default if value is None else value

    def _one_of(self, first: str, second: str) -> None:
        present = [key for key in (first, second) if self.get(key) is not None]
        if len(present) != 1:
            said = "both are given" if present else "neither is given"
            raise InputError(
                first, self.get(first), f"exactly one of {first} and {second}", problem=f"and {second}: {said}"
            )  # fmt: skip

    def _sampling(self) -> Sampling:
        population = self.get("population")
        if population is None:
            raise InputError(
                "population", None, "the declared number of rows (or people)", problem="is missing",
                cure="It is public and need not be exact: rate, divisor and steps come from it alone.",
            )  # fmt: skip
        self._one_of("batch_size", "rate")
        rate = self.get("rate")
        if rate is not None:
            check_share("rate", rate, one=True)
        check_count("population", population)
        batch_size = self.get("batch_size") if rate is None else rate * population
        kind = self.get("sampling", "poisson")
        if kind == "poisson":
            if self.get("cap") is not None:
                raise InputError("cap", self.get("cap"), "sampling='truncated-poisson' beside it")
            return Poisson(population, batch_size)
        if kind == "truncated-poisson":
            return TruncatedPoisson(population, batch_size, self.get("cap", 0))
        raise InputError("sampling", kind, "'poisson' or 'truncated-poisson'")

    def _budget(self) -> Budget:
        self._one_of("epsilon", "noise_multiplier")
        # With the noise given, ε follows from the plan: the placeholder is replaced when it is known.
        return Budget(
            self.get("epsilon", math.inf),
            self.get("delta", DEFAULT_DELTA),
            self.get("relation", "add-remove"),
            self.get("unit", "example"),
        )

    def _steps(self) -> int:
        steps, epochs = self.get("steps"), self.get("epochs")
        if steps is not None and epochs is not None:
            raise InputError("epochs", epochs, "epochs or steps, not both", problem="is given beside steps")
        if steps is not None:
            check_count("steps", steps)
            return int(steps)
        if epochs is None:
            epochs, why = choose_epochs(self.budget.epsilon, self.sampling.population, self.get("parameters"))
            self.notes.append(why)
        check_positive("epochs", epochs)
        return max(1, round(epochs * self.sampling.population / self.sampling.batch_size))

    def _optimizer(self) -> Optimizer | None:
        named, momentum = self.get("optimizer"), self.get("momentum")
        if momentum is not None:
            check_share("momentum", momentum, zero=True)
        if momentum is not None and named not in (None, "sgd"):
            raise InputError(
                "momentum", momentum, "optimizer='sgd' beside it",
                problem="is not a setting of this optimizer",
                cure="Other settings go into saltflat.plan.Optimizer(name, {...}).",
            )  # fmt: skip
        if isinstance(named, Optimizer):
            return named
        if named is None and momentum is None and self.learning_rate is None:
            return None
        name = named or "sgd"
        return Optimizer(name, {"momentum": 0.9 if momentum is None else momentum} if name == "sgd" else {})
