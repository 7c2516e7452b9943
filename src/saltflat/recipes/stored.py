"""Features as a run folder keeps them: rows that come later are made as those that the run was trained on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from saltflat.errors import InputError
from saltflat.recipes import figures
from saltflat.recipes.features import VERSION, Features
from saltflat.recipes.metric import Metric
from saltflat.recipes.patches import Patches

NUMBERS = [VERSION, figures.VERSION]
"""Raised whenever the same settings give other numbers."""


def to_dict(features: Features) -> dict[str, Any]:
    """Settings, and the version of the numbers that they give.

    >>> from_dict(to_dict(Features(mirrored=True))) == Features(mirrored=True)
    True
    """
    return {"version": NUMBERS, **asdict(features)}


def from_dict(stored: Any) -> Features:
    """The features that were stored.

    A `saltflat.InputError` tells of what is none, and of features whose numbers are others now.
    """
    try:
        settings = dict(stored)
        version = settings.pop("version")
        made: dict[str, Any] = {"scales": tuple(settings["scales"])}
        for name, kind in (("metric", Metric), ("patches", Patches)):
            made[name] = None if settings[name] is None else kind(**settings[name])
        features = Features(**(settings | made))
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(
            "features", stored, "what a recipe of saltflat stores", problem="are no features",
            cure="The file is damaged.",
        ) from error  # fmt: skip
    if version != NUMBERS:
        raise InputError(
            "features", str(version), f"version {NUMBERS}", problem="is the version of the features that this run saw",
            cure="Use the saltflat that trained it: the same rows have other features here.",
        )  # fmt: skip
    return features
