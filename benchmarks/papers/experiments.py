"""Cells that no ``saltflat train`` command gives: functions of their settings, named in the registry.

Each takes a `Place` (a run folder that may hold a run that was cut off, the number of the repetition, where data
lies) and returns plain data for the result file. What trains privately goes through `saltflat.fit` with a run folder,
so it is checkpointed and goes on; what looks at private rows without noise says so by ``"private": False``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saltflat as sf
from papers.watching import KeptFlatness, SideAverages
from saltflat.bench.private_loop import against_dp_sgd
from saltflat.cli.training_run import model_for
from saltflat.data import DataSet, Examples
from saltflat.geometry import Flatness, variance_of_last
from saltflat.plan import Plan, Swa
from saltflat.record.folder import RunFolder
from saltflat.training.evaluate import evaluate
from saltflat.training.losses import cross_entropy


@dataclass(frozen=True)
class Place:
    """Where a run happens, and which repetition it is."""

    folder: Path
    number: int = 1
    data_dir: str | None = None

    @property
    def begun(self) -> bool:
        """Whether a run was cut off here and can go on, or has ended."""
        opened = RunFolder(self.folder)
        return opened.file("plan.json").exists() and (
            opened.checkpoints.exist() or opened.read_certificate() is not None
        )

    def fit(self, model: nn.Module, rows: Any, plan: Callable[[], Plan], **settings: Any) -> sf.Run:
        """`saltflat.fit` in this folder, begun or resumed."""
        settings |= {"progress": False}
        if self.begun:
            return sf.fit(model, rows, resume=self.folder, **settings)
        return sf.fit(model, rows, plan(), out=self.folder, **settings)


# --- DP-SWA: linear regression ----------------------------------------------------------------------


def squared_residual(outputs: Any, targets: Tensor) -> Tensor:
    """The squared error of each example, as the paper's loss has it."""
    return (outputs.reshape(-1) - targets.reshape(-1)).square()


def linear_data(number: int, dimension: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """x and label noise from N(0, 1), generating weights from U[0, 1]: inputs, labels, generating weights."""
    draw = torch.Generator().manual_seed(number)
    truth = torch.rand(dimension, generator=draw)
    inputs = torch.randn(rows, dimension, generator=draw)
    return inputs, inputs @ truth + torch.randn(rows, generator=draw), truth


def linear_regression(
    place: Place,
    *,
    epsilon: float,
    epochs: float,
    dimension: int = 256,
    rows: int = 4096,
    learning_rate: float = 1e-4,
    clip_norm: float = 1.0,
    start: float = 0.2,
    cycles: list[int],
) -> dict[str, Any]:
    """DP-SWA's linear regression: squared distances to the generating weights, of the last iterate and of averages.

    The repetition's number draws the data. Distances come out of the ordinary evaluation: on the unit vectors, the
    summed squared error of a linear model is its squared distance to the targets.
    """
    inputs, labels, truth = linear_data(place.number, dimension, rows)
    unit_vectors = Examples(torch.eye(dimension), truth, "public")
    model = sf.models.build("linear", in_features=dimension)

    def plan() -> Plan:
        return sf.plans.dp_sgd(
            epsilon=epsilon, delta=1 / rows**2, population=rows, batch_size=1, epochs=epochs, clip_norm=clip_norm,
            learning_rate=learning_rate, momentum=0.0, averaging=Swa(start),
        )  # fmt: skip

    steps = max(1, round(epochs * rows))
    side = SideAverages(model, cycles, int(start * steps), _beside(place))
    run = place.fit(
        model, (inputs, labels), plan, loss_fn=squared_residual, evaluate=unit_vectors, callbacks=[side]
    )
    iterates = [dimension * row["loss"] for row in run.history]
    averages = [
        (row["step"], dimension * row["average_loss"]) for row in run.history if "average_loss" in row
    ]

    def distance() -> float:
        return dimension * evaluate(model, unit_vectors, loss_fn=squared_residual)["loss"]

    return facts_of(run) | {
        "distance": iterates[-1], "average_distance": averages[-1][1],
        "last_variance": variance_of_last(iterates),
        "average_last_variance": variance_of_last([value for _, value in averages]),
        "rate": rate_of(averages, int(start * steps)),
        "by_cycle": side.measured(model, distance), "missed": side.missed,
    }  # fmt: skip


def rate_of(averages: list[tuple[int, float]], first: int) -> float | None:
    """The slope of log distance against log of the number of averaged iterates, over the last three quarters.

    −1 is the rate 1/T. None where there are too few points.

    >>> round(rate_of([(t, 5 / t) for t in range(10, 100, 10)], 0), 6)
    -1.0
    """
    points = [(math.log(step - first), math.log(value)) for step, value in averages if value > 0]
    points = points[len(points) // 4 :]
    if len(points) < 3:
        return None
    x = torch.tensor(points, dtype=torch.float64)
    centred = x - x.mean(0)
    return float((centred[:, 0] * centred[:, 1]).sum() / centred[:, 0].square().sum())


# --- classifiers by a plan of any settings ----------------------------------------------------------


def classifier(
    place: Place,
    *,
    data: str,
    model: str,
    method: str,
    batch_size: int = 2048,
    delta: float = 1e-5,
    swa: float | None = None,
    cycles: list[int] | None = None,
    flatness_rows: int = 0,
    **plan_settings: Any,
) -> dict[str, Any]:
    """A private run with settings that the command line has no words for.

    ``swa`` is where averaging starts; ``cycles`` adds averages of other cycle lengths; ``flatness_rows`` > 0 measures
    sharpness after every epoch, on so many test rows.
    """
    loaded = sf.data.load(data, data_dir=place.data_dir)
    built, _ = model_for(loaded, model)
    count = len(loaded.train)

    def plan() -> Plan:
        return classifier_plan(count, method, batch_size, delta, swa, plan_settings)

    callbacks: list[Any] = []
    side = flatness = None
    if cycles is not None and swa is not None:
        steps = max(1, round(plan_settings["epochs"] * count / batch_size))
        side = SideAverages(built, cycles, int(swa * steps), _beside(place))
        callbacks.append(side)
    if flatness_rows:
        measuring = Flatness(built, loaded.test, rows=flatness_rows, tolerance=0.02)
        flatness = KeptFlatness(measuring, _beside(place, "flatness.jsonl"))
        callbacks.append(flatness)
    run = place.fit(built, loaded.train, plan, evaluate=loaded.test, callbacks=callbacks)
    found = facts_of(run)
    for kind in ("", "average_"):
        points = [100 * row[f"{kind}accuracy"] for row in run.history if f"{kind}accuracy" in row]
        found[f"{kind}last_variance"] = variance_of_last(points) if points else None
    if side is not None:
        found |= {"by_cycle": side.measured(built, lambda: _accuracy(built, loaded)), "missed": side.missed}
    return found if flatness is None else found | sharpness_of(flatness.rows)


def classifier_plan(
    population: int, method: str, batch_size: int, delta: float, swa: float | None, given: dict[str, Any]
) -> Plan:
    """The plan of `classifier`: TOML has no pairs, and its infinity is a word here as in JSON."""
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if settings.get("epsilon") == "inf":
        settings["epsilon"] = math.inf
    if swa is not None:
        settings["averaging"] = Swa(swa)
    return sf.plans.by_name(
        method, population=population, relation="zero-out", batch_size=batch_size, delta=delta, **settings
    )


def sharpness_of(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Where sharpness was least, as a share of the epochs, and how far it rose from there to the end.

    >>> found = sharpness_of([{"epoch": e, "sharpness": s} for e, s in ((1, 4.0), (2, 2.0), (4, 3.0))])
    >>> found["least_at"], found["rise"], found["least_sharpness"]
    (0.5, 1.5, 2.0)
    """
    least = min(history, key=lambda row: row["sharpness"])
    return {
        "sharpness": history, "least_sharpness": least["sharpness"], "last_sharpness": history[-1]["sharpness"],
        "least_at": least["epoch"] / history[-1]["epoch"], "rise": history[-1]["sharpness"] / least["sharpness"],
    }  # fmt: skip


# --- DP-SAT: cosines of sums before the noise, and speed --------------------------------------------


def cosines(
    place: Place,
    *,
    data: str,
    model: str,
    epochs: float,
    epsilon: float,
    clip_norm: float,
    batch_size: int,
    learning_rate: float,
    momentum: float = 0.9,
    delta: float = 1e-5,
) -> dict[str, Any]:
    """The mean cosine of successive sums of clipped gradients *before* the noise, during DP-SGD.

    A sum before its noise is private, so this is a loop of its own and no run of saltflat: not private, whatever ε
    the noise would be worth.
    """
    loaded = sf.data.load(data, data_dir=place.data_dir)
    rows, count = loaded.train, len(loaded.train)
    built, _ = model_for(loaded, model)
    plan = sf.plans.dp_sgd(
        epsilon=epsilon,
        delta=delta,
        population=count,
        batch_size=batch_size,
        epochs=epochs,
        clip_norm=clip_norm,
    )
    optimizer = torch.optim.SGD(built.parameters(), lr=learning_rate, momentum=momentum)
    sigma, found, before = plan.phases[0].sigma, [], None
    started = time.perf_counter()
    for _ in range(plan.steps):
        batch = (torch.rand(count) < plan.sampling.rate).nonzero().flatten()
        if not len(batch):
            continue
        total = sf.clipped_sum(built, cross_entropy, rows.inputs[batch], rows.targets[batch], clip_norm).grads
        if before is not None and (lengths := _length(total) * _length(before)):
            found.append(sum(float((total[name] * before[name]).sum()) for name in total) / lengths)
        before = total
        for name, weight in built.named_parameters():
            weight.grad = (total[name] + sigma * clip_norm * torch.randn_like(weight)) / batch_size
        optimizer.step()
    return {
        "plan": plan, "private": False, "accuracy": _accuracy(built, loaded), "average_accuracy": None,
        "cosine": sum(found) / len(found), "late_cosine": sum(found[len(found) // 2 :]) / len(found[len(found) // 2 :]),
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def speed(
    place: Place, *, model: str, method: str, batch_size: int = 2048, rounds: int = 9
) -> dict[str, Any]:
    """How long a step of a method takes, as a share of one of DP-SGD: pairs of steps that take turns."""
    started = time.perf_counter()
    found = against_dp_sgd(method, model, batch_size, rounds)
    return {"ratio": found["ratio"]["median"], "pairs": found, "seconds": time.perf_counter() - started}


EXPERIMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "linear_regression": linear_regression,
    "classifier": classifier,
    "cosines": cosines,
    "speed": speed,
}


def facts_of(run: sf.Run) -> dict[str, Any]:
    """What every private run tells."""
    return {
        "plan": run.plan, "private": run.certificate.is_private, "accuracy": run.accuracy,
        "average_accuracy": run.average_accuracy, "history": run.history, "seconds": round(run.seconds, 2),
    }  # fmt: skip


def _accuracy(model: nn.Module, data: DataSet) -> float:
    return evaluate(model, data.test)["accuracy"]


def _beside(place: Place, name: str = "averages.safetensors") -> Path:
    """A file beside the run folder, which holds only what its certificate knows."""
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    return place.folder.with_name(f"{place.folder.name}.{name}")


def _length(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.square().sum()) for value in tensors.values()))
