"""The geometry of a run as plain data: what ``geometry.json`` and ``interpolation.json`` hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from saltflat.errors import InputError, check_count, check_known, check_positive
from saltflat.geometry.gradients import gradient_norms, variance_of_last
from saltflat.geometry.lanczos import Progress, quiet
from saltflat.geometry.landscape import (
    PRECISIONS,
    Wideness,
    interpolation,
    landscape,
    wideness,
    wideness_gain,
)
from saltflat.geometry.loss import Loss
from saltflat.geometry.spectrum import TOLERANCE, eigenvalues, hessian_density, hessian_trace, ratio

FORMAT = 1
PARTS = ("spectrum", "density", "landscape", "wideness", "gradients")
USUAL = ("spectrum", "landscape", "wideness")
LAST = 10  # evaluations of a run over which its accuracy is said to vary


@dataclass(frozen=True)
class Settings:
    """What to measure and how finely. Without a ``reach``, rays go half as far as the weights are long.

    ``precision`` is that of the landscape, see there.
    """

    parts: tuple[str, ...] = USUAL
    top: int = 5
    tolerance: float = TOLERANCE
    probes: int = 10
    points: int = 21
    span: float = 1.0
    rays: int = 10
    reach: float | None = None
    seed: int = 0
    precision: str | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            check_known("parts", part, PARTS, "parts of a geometry")
        if self.precision not in PRECISIONS:
            raise InputError("precision", self.precision, "'float32' or 'bfloat16'")
        check_count("top", self.top)
        check_count("probes", self.probes, 2)
        check_count("points", self.points, 2)
        check_count("rays", self.rays)
        check_count("seed", self.seed, 0)
        for word, value in (("tolerance", self.tolerance), ("span", self.span), ("reach", self.reach)):
            if value is not None:
                check_positive(word, value)


def measure(
    loss: Loss,
    settings: Settings | None = None,
    *,
    run: str = "",
    weights: str = "last",
    clip_norm: float = 1.0,
    history: Sequence[Mapping[str, Any]] = (),
    progress: Progress = quiet,
) -> dict[str, Any]:
    """The parts that ``settings`` ask for, as plain data; the others are None.

    ``run`` and ``weights`` are names to be stored. ``clip_norm`` is where `gradient_norms` draws its line, and
    ``history`` the evaluations of a run, for the variance over its last iterates.

    >>> import saltflat as sf
    >>> loss = Loss(sf.models.build("mlp"), sf.data.load("digits").test, rows=20)
    >>> found = measure(loss, Settings(parts=("gradients",)))
    >>> found["data"]["rows"], found["eigenvalues"], found["gradient_norms"]["clip_norm"]
    (20, None, 1.0)
    """
    chosen = settings or Settings()
    here = loss.measure()
    found: dict[str, Any] = {
        "format": FORMAT, "run": run, "weights": weights, "data": loss.rows.facts(len(loss)),
        "loss": here.loss, "accuracy": here.accuracy,
        "eigenvalues": None, "eigenvalue_errors": None, "converged": None, "tolerance": None,
        "lambda_max": None, "lambda_ratio": None, "trace": None, "density": None,
        "landscape": None, "wideness": None, "gradient_norms": None,
        "last_iterates": _last_iterates(history), "seed": chosen.seed,
    }  # fmt: skip
    common: dict[str, Any] = {"seed": chosen.seed, "progress": progress}
    if "spectrum" in chosen.parts:
        top = eigenvalues(loss, chosen.top, tolerance=chosen.tolerance, **common)
        found |= {
            "eigenvalues": top.values.tolist(), "eigenvalue_errors": top.errors.tolist(),
            "converged": top.converged, "tolerance": top.tolerance, "lambda_max": float(top.values[0]),
            "lambda_ratio": ratio(top.values), "trace": asdict(hessian_trace(loss, chosen.probes, **common)),
        }  # fmt: skip
    if "density" in chosen.parts:
        curve = hessian_density(loss, **common)
        found["density"] = {"eigenvalue": curve.eigenvalue.tolist(), "density": curve.density.tolist()}
    if "landscape" in chosen.parts:
        plane = landscape(loss, chosen.points, span=chosen.span, precision=chosen.precision, **common)
        found["landscape"] = asdict(plane)
    if "wideness" in chosen.parts:
        found["wideness"] = asdict(wideness(loss, rays=chosen.rays, reach=chosen.reach, **common))
    if "gradients" in chosen.parts:
        found["gradient_norms"] = asdict(gradient_norms(loss, clip_norm))
    return _finite(found)


def compare(
    first: Loss,
    second: Loss,
    settings: Settings | None = None,
    *,
    runs: tuple[str, str] = ("", ""),
    train: Loss | None = None,
    wides: tuple[dict[str, Any], dict[str, Any]] | None = None,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """The line through two models, and how much wider the second is than the first, as plain data.

    Both losses must be on the same rows. ``train`` is the loss of either model on private training rows, where
    that was asked for. ``wides`` are the wideness of both, if already measured over the same rays.
    """
    chosen = settings or Settings()
    if first.shapes != second.shapes:
        raise InputError(
            "runs", " and ".join(runs), "two models of one architecture", problem="have different weights",
            cure="Without a line between them they can still be measured one by one.",
        )  # fmt: skip
    line = interpolation(first, first.weights, second.weights, progress=progress)
    private = None
    if train is not None:
        private = interpolation(train, first.weights, second.weights, progress=progress)
    if wides is None:
        reach = same_reach(chosen, first).reach
        one, two = (
            wideness(loss, rays=chosen.rays, reach=reach, seed=chosen.seed, progress=progress)
            for loss in (first, second)
        )
    else:
        one, two = Wideness(**wides[0]), Wideness(**wides[1])
    return _finite(
        {
            "format": FORMAT,
            "runs": list(runs),
            "data": first.rows.facts(len(first)),
            "alpha": line.at,
            "test": {"loss": line.loss, "accuracy": line.accuracy},
            "train": None if private is None else {"loss": private.loss, "accuracy": private.accuracy},
            "train_data": None if train is None else train.rows.facts(len(train)),
            "wideness_gain": wideness_gain(one, two),
        }
    )


def same_reach(settings: Settings, loss: Loss) -> Settings:
    """The settings with the reach that this model would choose: for models that are to be compared."""
    return settings if settings.reach else replace(settings, reach=float(loss.weights.norm()) / 2)


def _last_iterates(history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The variance of accuracy over the last evaluations of a run, of its iterates and of their average."""
    found: dict[str, Any] = {}
    for word in ("accuracy", "average_accuracy"):
        values = [row[word] for row in history if isinstance(row.get(word), float)]
        found[f"{word}_variance"] = variance_of_last(values, LAST)
    if found["accuracy_variance"] is None:
        return None
    return {"evaluations": min(LAST, sum("accuracy" in row for row in history)), **found}


def _finite(value: Any) -> Any:
    """JSON has no word for infinity or not-a-number: such a figure is None."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
