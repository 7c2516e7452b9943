"""Good defaults when the user says nothing, each with the measurement behind it."""

from __future__ import annotations

import math


def choose_epochs(epsilon: float, population: int, parameters: int | None) -> tuple[float, str]:
    """Over how many epochs to spend a budget, and why.

    A tight budget is better spent in few steps: with the noise that many steps ask for, later steps undo
    what earlier ones learned. A looser one pays for more. Chosen on MNIST; see docs/defaults.md.

    >>> choose_epochs(1.0, 60_000, None)[0]
    10.0
    """
    if math.isinf(epsilon):
        return 30.0, "30 epochs: no budget limits their number"
    epochs = min(40.0, max(5.0, 10.0 * epsilon**0.75))
    if population < 5_000:  # few rows: an epoch is only a handful of steps
        epochs *= 2
    epochs = float(round(epochs))
    chosen = f"{epochs:g} epochs chosen for ε = {epsilon:g} and {population:,} rows"
    return epochs, f"{chosen}; epochs= or steps= overrides it"
