"""The recipes: for each data set and budget, the most accurate features, model and plan that other data chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saltflat.accounting import Relation
from saltflat.errors import InputError, check_known, is_number
from saltflat.plans import dp_sgd
from saltflat.recipes.features import LENGTH, Features
from saltflat.recipes.recipe import Recipe, between

LEAST, MOST = 0.5, 8.0
MOMENTUM = 0.9
PACE = 0.5  # the share of its distance that the estimate of the mean covers in ten steps of momentum


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a data set, and on which others. ``rate`` is by ε, where it was measured.

    For features of length one: ``rate`` is learning rate times clip norm, ``clip`` the clip norm, and ``mean`` the
    length of the part of a gradient that estimates the mean of the features.
    """

    population: int
    width: int
    features: Features
    chosen_on: tuple[str, ...]
    rate: dict[float, float]
    batch_size: int
    epochs: float
    clip: float = 0.02
    mean: float = 0.1
    classes: int = 10
    schedule: str = "linear"

    def words(self, epsilon: float) -> dict[str, Any]:
        """The plan's settings in the words of plans and of the command line, for features of their real length."""
        rate = between(epsilon, self.rate)
        return {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "clip_norm": _short(self.clip * LENGTH),
            "learning_rate": _short(rate / (self.clip * LENGTH**2)),
            "momentum": MOMENTUM,
        }

    def overrides(self, epsilon: float) -> dict[str, Any]:
        """Those of the model `centred-linear`."""
        longest = max(self.clip, self.mean) / self.mean
        unit = PACE * (1 - MOMENTUM) * longest * LENGTH**2 / between(epsilon, self.rate)
        return {"in_features": self.width, "classes": self.classes, "share": self.mean, "unit": _short(unit)}


RECIPES = {
    "fashion-mnist": Chosen(60_000, 3969, Features(), ("mnist",), {1.0: 10.0}, 2048, 24.0, mean=0.03),
    "mnist": Chosen(60_000, 3969, Features(), ("fashion-mnist",), {1.0: 25.0}, 2048, 12.0),
    "cifar10": Chosen(50_000, 15552, Features(), ("fashion-mnist",), {1.0: 25.0}, 2048, 12.0),
}


def names() -> list[str]:
    """The data sets that there are recipes for."""
    return sorted(RECIPES)


def features_for(name: str) -> Features:
    """The fixed features of a data set's recipe, at any budget."""
    return _chosen(name).features


def best(
    name: str,
    *,
    epsilon: float,
    delta: float = 1e-5,
    population: int | None = None,
    relation: Relation = "add-remove",
) -> Recipe:
    """The best recipe that is known for a data set at a budget: features, model, plan, schedule.

    ``population`` is declared, and public; left out, it is the number of training rows that the data set is
    published with. Between budgets that were measured, settings are interpolated.

    >>> round(best("mnist", epsilon=2.0).plan.epsilon, 2)
    2.0
    """
    chosen = _chosen(name)
    if not is_number(epsilon) or not LEAST <= epsilon <= MOST:
        raise InputError(
            "epsilon", epsilon, f"{LEAST:g} <= epsilon <= {MOST:g}", problem="is a budget without a recipe",
            cure="For other budgets, name a method and its settings instead.",
        )  # fmt: skip
    rows, settings = chosen.population if population is None else population, chosen.words(epsilon)
    plan = dp_sgd(epsilon=epsilon, delta=delta, population=rows, relation=relation, **settings)
    words = {"method": "dp-sgd", "model": "centred-linear", "schedule": chosen.schedule} | settings
    return Recipe("best", name, chosen.features, chosen.overrides(epsilon), plan, words, chosen.chosen_on)


def _chosen(name: str) -> Chosen:
    check_known("name", name, names(), "a data set with a recipe", problem="has no recipe")
    return RECIPES[name]


def _short(value: float) -> float:
    """Without the digits that rounding left behind."""
    return float(f"{value:.4g}")
