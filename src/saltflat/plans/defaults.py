"""Good defaults when the user says nothing, each with the measurement behind it."""

from __future__ import annotations

import math

SMALL_MODEL = 100_000


def choose_epochs(epsilon: float, population: int, parameters: int | None) -> tuple[float, str]:
    """Over how many epochs to spend a budget, and why.

    A tight budget is better spent in few steps: with the noise that many steps ask for, later steps undo what
    earlier ones learned. A looser one pays for a few more. Noise has the dimension of the model, so a larger
    model wants fewer. Measured on MNIST with a small model, and on CIFAR-10 with 550,570 parameters; see
    docs/defaults.md.

    >>> choose_epochs(1.0, 60_000, None)[0], choose_epochs(1.0, 50_000, 550_570)[0]
    (30.0, 11.0)
    """
    if math.isinf(epsilon):
        return 30.0, "30 epochs: no budget limits their number"
    size = max(parameters or 0, SMALL_MODEL)
    epochs = 30.0 * math.sqrt(epsilon) * (SMALL_MODEL / size) ** 0.6
    if population < 5_000:  # few rows: an epoch is only a handful of steps
        epochs *= 2
    epochs = float(round(min(60.0, max(5.0, epochs))))
    model = "" if parameters is None else f", {parameters:,} parameters"
    why = f"{epochs:g} epochs chosen for ε = {epsilon:g}, {population:,} rows{model}; epochs= or steps= overrides it"
    return epochs, why
