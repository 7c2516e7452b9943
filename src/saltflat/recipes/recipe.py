"""What a recipe is: features, model and plan for one data set and one budget, as values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from saltflat.data import DataSet
from saltflat.models import build, centring_loss
from saltflat.plan import Plan
from saltflat.recipes.features import Features


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
