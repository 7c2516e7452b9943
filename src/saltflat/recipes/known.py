"""The recipes, as values: for each data set and budget, the most accurate features, model and plan that other data
chose.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from saltflat.accounting import Relation
from saltflat.data import DataSet
from saltflat.errors import InputError, check_known, is_number
from saltflat.models import build, centring_loss
from saltflat.plan import Plan
from saltflat.plans import by_name
from saltflat.recipes.features import Features
from saltflat.recipes.metric import Metric
from saltflat.recipes.patches import Patches
from saltflat.recipes.rows import LENGTH

LEAST, MOST = 0.5, 8.0
MOMENTUM = 0.9
STAIRS = 6
PACE = 0.5  # the share of its distance that the estimate of the mean covers in ten steps of momentum


@dataclass(frozen=True)
class Recipe:
    """Fixed features, a model on them, and a plan: all that `saltflat.fit` needs but the data.

    Guarantees: nothing here was read from the rows it is for. Features are fixed; settings were chosen on the data
    sets that ``chosen_on`` names; the plan's rate, divisor and steps come from its declared population.

    >>> from saltflat import recipes
    >>> recipe = recipes.best("fashion-mnist", epsilon=1.0)
    >>> round(recipe.plan.epsilon, 2), "fashion-mnist" in recipe.chosen_on
    (1.0, False)
    """

    name: str
    data: str
    features: Features
    overrides: dict[str, Any]
    plan: Plan
    words: dict[str, Any]
    chosen_on: tuple[str, ...]

    loss_fn = staticmethod(centring_loss)

    @property
    def schedule(self) -> str:
        """Of the learning rate."""
        return str(self.words["schedule"])

    def model(self) -> nn.Module:
        """The model, with all weights at zero."""
        return self.named_model()[0]

    def named_model(self) -> tuple[nn.Module, str]:
        """The model and its name."""
        name: str = self.words["model"]
        return build(name, **self.overrides), name

    def rows(
        self,
        data: DataSet,
        cache_dir: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> DataSet:
        """The data set with features in place of images."""
        train, test, public = (
            None if part is None else replace(part, inputs=self.features(part.inputs, cache_dir, progress))
            for part in (data.train, data.test, data.public)
        )
        assert train is not None
        return replace(data, train=train, test=test, public=public)


def between(epsilon: float, anchors: dict[float, float]) -> float:
    """A setting at ε, on straight lines between measured ones in logarithms; beyond them, the nearest.

    >>> between(2.0, {1.0: 10.0, 4.0: 40.0}), between(9.0, {1.0: 10.0, 4.0: 40.0})
    (20.0, 40.0)
    """
    known = sorted(anchors)
    if epsilon <= known[0] or epsilon >= known[-1]:
        return anchors[known[0] if epsilon <= known[0] else known[-1]]
    above = next(one for one in known if one >= epsilon)
    below = known[known.index(above) - 1]
    share = math.log(epsilon / below) / math.log(above / below)
    return float(f"{anchors[below] ** (1 - share) * anchors[above] ** share:.3g}")


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
    tapered: bool = True

    def words(self, epsilon: float) -> dict[str, Any]:
        """The plan's settings in the words of plans and of the command line, for features of their real length.

        The rate falls to zero in any case: in stairs, with noise that grows, or in a line.
        """
        rate = between(epsilon, self.rate)
        falling = {"method": "dp-sgd-tapered", "stairs": STAIRS, "taper": 0.5, "schedule": "constant"}
        return (falling if self.tapered else {"method": "dp-sgd", "schedule": "linear"}) | {
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
    "fashion-mnist": Chosen(
        60_000, 3969, Features(metric=Metric(floor=0.1)), ("mnist", "cifar10"), {1.0: 3.0}, 2048, 48.0
    ),
    "mnist": Chosen(
        60_000, 6017, Features(metric=Metric(), patches=Patches()), ("fashion-mnist",), {1.0: 4.0}, 2048, 48.0
    ),
    # no other data set of colours could judge a metric for them
    "cifar10": Chosen(
        50_000,
        21_696,
        Features(patches=Patches()),
        ("fashion-mnist",),
        {1.0: 25.0},
        2048,
        12.0,
        tapered=False,
    ),
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
    of_plan = {word: value for word, value in settings.items() if word not in ("method", "schedule")}
    plan = by_name(
        settings["method"], epsilon=epsilon, delta=delta, population=rows, relation=relation, **of_plan
    )
    words = {"model": "centred-linear"} | settings
    return Recipe("best", name, chosen.features, chosen.overrides(epsilon), plan, words, chosen.chosen_on)


def _chosen(name: str) -> Chosen:
    check_known("name", name, names(), "a data set with a recipe", problem="has no recipe")
    return RECIPES[name]


def _short(value: float) -> float:
    """Without the digits that rounding left behind."""
    return float(f"{value:.4g}")
