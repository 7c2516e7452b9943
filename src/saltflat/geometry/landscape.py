"""The loss around a model: on a plane, between two models, and along random rays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.errors import InputError, check_count, check_positive
from saltflat.geometry.lanczos import Progress, quiet
from saltflat.geometry.loss import Loss, Measured, flat

PRECISIONS = (None, "float32", "bfloat16")
LARGE = 100_000
"""Rows times points from which on a landscape is worth less precision."""


@dataclass(frozen=True)
class Landscape:
    """``loss[i][j]`` is the mean loss at weights + alpha[i] · first + beta[j] · second direction."""

    alpha: list[float]
    beta: list[float]
    loss: list[list[float]]
    precision: str = "float32"


@dataclass(frozen=True)
class Curve:
    """Loss and accuracy along a line or at distances; accuracies are None where targets are no classes."""

    at: list[float]
    loss: list[float]
    accuracy: list[float | None]


@dataclass(frozen=True)
class Wideness:
    """Loss and accuracy at distances from a model: means over random rays, and the deviation between rays."""

    distance: list[float]
    loss: list[float]
    spread: list[float]
    accuracy: list[float] | None
    accuracy_spread: list[float] | None

    @property
    def mean_accuracy(self) -> float | None:
        """Over all rays and distances: larger is wider."""
        return None if self.accuracy is None else sum(self.accuracy) / len(self.accuracy)

    @property
    def mean_loss(self) -> float:
        """Over all rays and distances: smaller is wider."""
        return sum(self.loss) / len(self.loss)


def filter_normalised(loss: Loss, seed: int) -> Tensor:
    """A random direction in which every filter is as long as the model's own; biases and norms stay.

    Layers that undo a scaling make a direction of fixed length meaningless; this one is not touched by it.

    Reference: Li, Xu, Taylor, Studer and Goldstein, Visualizing the loss landscape of neural nets, 2018.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for weight in loss.named(loss.weights).values():
        drawn = torch.randn(weight.shape, generator=generator).to(weight)
        if weight.dim() < 2:
            parts.append(torch.zeros_like(weight))
            continue
        long, short = weight.flatten(1).norm(dim=1), drawn.flatten(1).norm(dim=1)
        parts.append(drawn * (long / short.clamp_min(1e-12)).view(-1, *[1] * (weight.dim() - 1)))
    return flat(parts)


def landscape(
    loss: Loss,
    points: int = 21,
    *,
    span: float = 1.0,
    seed: int = 0,
    precision: str | None = None,
    progress: Progress = quiet,
) -> Landscape:
    """The loss on a grid of ``points`` x ``points``, from −span to span in two filter-normalised directions.

    ``precision`` is ``"float32"`` or ``"bfloat16"``. Left out, a large grid is computed in bfloat16 where the
    processor multiplies it and the loss at the centre agrees to a hundredth: enough for a picture.

    >>> import saltflat as sf
    >>> loss = Loss(sf.models.build("mlp"), sf.data.load("digits").test, rows=20)
    >>> plane = landscape(loss, 3)
    >>> plane.alpha, len(plane.loss), abs(plane.loss[1][1] - loss.measure().loss) < 1e-6
    ([-1.0, 0.0, 1.0], 3, True)
    """
    check_count("points", points, 2)
    check_positive("span", span)
    first, second = filter_normalised(loss, 2 * seed), filter_normalised(loss, 2 * seed + 1)
    steps = torch.linspace(-span, span, points, dtype=torch.float64).tolist()
    found: list[list[float]] = []
    asked = _asked(loss, points, precision)
    for i, alpha in enumerate(steps):
        found.append([])
        for j, beta in enumerate(steps):
            moved = loss.weights + alpha * first + beta * second
            found[-1].append(asked.measure(moved).loss)
            progress("landscape", i * points + j + 1, points * points)
    return Landscape(steps, steps, found, "float32" if asked is loss else "bfloat16")


def _asked(loss: Loss, points: int, precision: str | None) -> Loss:
    """The loss in the precision that was asked for, or that is enough."""
    if precision not in PRECISIONS:
        raise InputError("precision", precision, "'float32' or 'bfloat16'")
    if precision is not None:
        return loss if precision == "float32" else loss.in_bfloat16()
    able: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    native = able.get("avx512_bf16") or able.get("amx_bf16")
    plain = loss.weights.device.type == "cpu" and loss.weights.dtype is torch.float32
    if not native or not plain or len(loss) * points**2 < LARGE:
        return loss
    try:
        short = loss.in_bfloat16()
        exact, rounded = loss.measure().loss, short.measure().loss
    except RuntimeError:  # an operation that does not take bfloat16
        return loss
    return short if abs(rounded - exact) <= 0.01 * abs(exact) else loss


def interpolation(loss: Loss, first: Tensor, second: Tensor, *, progress: Progress = quiet) -> Curve:
    """Loss and accuracy on the line through two models: the first at 0, the second at 1, from −0.5 to 1.5.

    Reference: Goodfellow, Vinyals and Saxe 2015; between DP-SGD and DP-SWA, Indri, Drucks and Gärtner 2023.
    """
    steps = [round(i / 20 - 0.5, 10) for i in range(41)]
    if first.shape != second.shape or first.shape != loss.weights.shape:
        raise InputError(
            "second", str(tuple(second.shape)), f"as many weights as the first model, {tuple(first.shape)}",
            problem="is the shape of the second model's weights",
        )  # fmt: skip
    found: list[Measured] = []
    for number, alpha in enumerate(steps):
        found.append(loss.measure((1 - alpha) * first + alpha * second))
        progress("interpolation", number + 1, len(steps))
    return Curve(steps, [m.loss for m in found], [m.accuracy for m in found])


def wideness(
    loss: Loss,
    *,
    rays: int = 10,
    points: int = 11,
    reach: float | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Wideness:
    """Loss and accuracy while moving away along random rays, up to a distance of ``reach``.

    Rays are uniform on the sphere over all trainable weights; ``reach`` is half the length of the weights unless
    given. Two models are compared over the same rays and distances, see `wideness_gain`.

    Reference: Indri, Drucks and Gärtner, Can stochastic weight averaging improve generalization in private
    learning?, 2023: the average accuracy along ten rays.
    """
    check_count("rays", rays)
    check_count("points", points, 2)
    reach = float(loss.weights.norm()) / 2 if reach is None else reach
    check_positive("reach", reach)
    distances = torch.linspace(0, reach, points, dtype=torch.float64).tolist()
    here = loss.measure()
    found: list[list[Measured]] = []
    for ray in range(rays):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + ray)
        direction = torch.randn(loss.dimension, generator=generator, dtype=torch.float64)
        direction = (direction / direction.norm()).to(loss.weights)
        found.append([here])
        for number, distance in enumerate(distances[1:], start=1):
            found[-1].append(loss.measure(loss.weights + distance * direction))
            progress("wideness", ray * (points - 1) + number, rays * (points - 1))
    losses = _mean_and_deviation([[m.loss for m in ray] for ray in found])
    if here.accuracy is None:
        return Wideness(distances, *losses, None, None)
    right = _mean_and_deviation([[m.accuracy or 0.0 for m in ray] for ray in found])
    return Wideness(distances, *losses, *right)


def wideness_gain(first: Wideness, second: Wideness) -> float:
    """By how many percent the second model is wider than the first; below zero if it is narrower.

    The gain in mean accuracy over rays and distances; without classes, the relative drop of the mean loss.

    >>> flat_one = Wideness([0, 1], [0.1, 0.2], [0, 0], [0.9, 0.8], [0, 0])
    >>> sharp_one = Wideness([0, 1], [0.1, 0.9], [0, 0], [0.9, 0.5], [0, 0])
    >>> round(wideness_gain(sharp_one, flat_one), 2)
    21.43
    """
    if first.distance != second.distance:
        raise InputError("second", "other distances", "two models at the same distances")
    if first.mean_accuracy is not None and second.mean_accuracy is not None:
        return 100 * (second.mean_accuracy - first.mean_accuracy) / max(first.mean_accuracy, 1e-12)
    return 100 * (first.mean_loss - second.mean_loss) / max(abs(first.mean_loss), 1e-12)


def _mean_and_deviation(rays: list[list[float]]) -> tuple[list[float], list[float]]:
    values = torch.tensor(rays, dtype=torch.float64)
    return values.mean(0).tolist(), values.std(0, correction=1 if len(rays) > 1 else 0).tolist()
