"""``--recipe``: one word for a model, a plan and fixed features that were chosen on other data."""

from __future__ import annotations

from typing import Any

import click

from saltflat.errors import InputError

BESIDE = ("recipe", "data", "epsilon", "delta", "population", "randomness", "seed", "account")
"""What may be said beside a recipe, of all that makes a run what it is. The rest is what a recipe decides."""

recipe_option = click.option(
    "--recipe", type=click.Choice(["best"]),
    help="Model, features and plan for this data set and budget, chosen on other data; see docs/recipes.md.",
)  # fmt: skip


def with_recipe(options: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options, filled in from the recipe that they name. What a recipe decides cannot be said beside it."""
    from saltflat.cli.training_run import STARTED_WITH, recipe_of

    for word in STARTED_WITH:
        if word in given and word not in BESIDE:
            raise InputError(
                word, given[word], f"no --{word.replace('_', '-')} beside --recipe {options['recipe']}",
                problem="is what a recipe decides", cure="Leave one of the two out.",
            )  # fmt: skip
    options = options | {"epsilon": 3.0 if options["epsilon"] is None else options["epsilon"]}
    recipe = recipe_of(options)
    assert recipe is not None
    return options | recipe.words
