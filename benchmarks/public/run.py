"""Training with public data, row by row of the paper's Table 1; its Table 4 and the time of weight multiplicity.

    python benchmarks/public/run.py --data-dir DIR --samples mnist=MNIST.npz --samples digits=DIGITS.npz
    python benchmarks/public/run.py --only digits --samples digits=DIGITS.npz
    python benchmarks/public/run.py --table

Give the same command again to go on: every finished task adds one JSON file to ``benchmarks/public/results``, and
one that is there is not made again. Cheapest tasks come first; all of them take about an hour of one core. Samples
come from ``saltflat synthesize`` with the public split of this benchmark (4 % of MNIST or Fashion-MNIST, 20 % of
digits, public seed 0); without them the rows that need samples are left out, and said so.

Settings are the paper's where it has them, and nothing was searched for here. They are not the same for all rows:
`row_task` and `Bench.warmed` say which differ, and so does the page. Noise is drawn afresh in every run; a number in
a task's name fixes initial weights and warm-up. Public split, diffusion model and samples are the same in all runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import saltflat as sf
from saltflat import geometry
from saltflat.data import DataSet, Examples
from saltflat.plan import Ema, Multiplicity
from saltflat.public import WarmUp, apart, joined, read_samples, warm_up
from saltflat.training.evaluate import evaluate

RESULTS = Path(__file__).parent / "results"
VIEWS = 4
ROWS = ("cold", "warm", "warm-syn", "augmentation", "sam", "weight-multiplicity")
MORE = ("dope-sgd", "mirror-descent", "ada-dps")
TITLES = {
    "cold": "Cold",
    "warm": "Warm: warm-up on public rows",
    "warm-syn": "WarmSyn: and on samples",
    "augmentation": "+ augmentation (crop, cutout)",
    "sam": "+ SAM in the warm-up",
    "weight-multiplicity": "+ weight multiplicity",
    "dope-sgd": "DOPE-SGD instead",
    "mirror-descent": "mirror descent instead",
    "ada-dps": "AdaDPS instead",
}


@dataclass(frozen=True)
class Setting:
    """A data set of the benchmark, and how long it is trained on."""

    name: str
    public_fraction: float
    delta: float
    batch_size: int
    epochs: float
    warm_epochs: int
    syn_epochs: int
    seeds: int
    rows: tuple[str, ...]


SETTINGS = {
    "digits": Setting("digits", 0.2, 1e-4, 256, 30, 60, 20, 3, (*ROWS, *MORE)),
    "mnist": Setting("mnist", 0.04, 1e-5, 1024, 4, 30, 8, 3, ROWS),
    "fashion-mnist": Setting("fashion-mnist", 0.04, 1e-5, 1024, 5, 30, 8, 3, ROWS),
}
EPSILONS = (1, 2)


def small_cnn(side: int) -> nn.Module:
    """Two convolutions and two linear layers: 26,010 weights for 28 x 28 pixels, 7,562 for 8 x 8."""
    if side == 28:
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 20), nn.Tanh(), nn.Linear(20, 10),
    )  # fmt: skip


class Bench:
    """Data, samples and warmed-up weights, each made once."""

    def __init__(self, data_dir: str | None, samples: dict[str, str]) -> None:
        self.data_dir, self.files = data_dir, samples

    @lru_cache(maxsize=2)  # noqa: B019  # one bench a process
    def data(self, name: str) -> DataSet:
        setting = SETTINGS[name]
        return sf.data.load(name, data_dir=self.data_dir, public_fraction=setting.public_fraction)

    @lru_cache(maxsize=2)  # noqa: B019
    def private(self, name: str) -> Examples:
        data = self.data(name)
        return apart(data.train, data.public)

    @lru_cache(maxsize=2)  # noqa: B019
    def samples(self, name: str) -> Examples:
        data = self.data(name)
        return read_samples(self.files[name], data.train, data.public)

    def model(self, name: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return small_cnn(self.data(name).train.inputs.shape[-1])

    @lru_cache(maxsize=8)  # noqa: B019
    def warmed(self, name: str, row: str, seed: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Weights after the warm-up of a row, and what is known of it."""
        setting, model, public = SETTINGS[name], self.model(name, seed), self.data(name).public
        if row == "cold":
            return model.state_dict(), {}
        shown = [public] if row == "warm" else [public, self.samples(name)]
        names = () if row in ("warm", "warm-syn") else ("crop", "cutout")
        optimizer: Any = "sgd" if row in ("warm", "warm-syn", "augmentation") else "sam"
        epochs = setting.warm_epochs if row == "warm" else setting.syn_epochs
        settings = WarmUp(optimizer, epochs, augmentations=names, seed=seed)
        done = warm_up(model, *shown, settings=settings)
        found = {
            "warm_up": settings.to_dict(), "warm_up_loss": done.losses[-1], "warm_up_seconds": round(done.seconds, 2),
            "warm_up_accuracy": evaluate(model, self.data(name).test)["accuracy"],
        }  # fmt: skip
        return model.state_dict(), found


def row_task(bench: Bench, name: str, row: str, epsilon: int, seed: int) -> dict[str, Any]:
    """One private run: the last iterate and the average, on the test rows of the data set."""
    setting, data, private = SETTINGS[name], bench.data(name), bench.private(name)
    warm = "sam" if row in ("weight-multiplicity", *MORE) else row
    weights, facts = bench.warmed(name, warm, seed)
    model = bench.model(name, seed)
    model.load_state_dict(weights)
    method = row if row in ("weight-multiplicity", *MORE) else "dp-sgd"
    common: dict[str, Any] = {
        "epsilon": epsilon, "delta": setting.delta, "population": len(private), "relation": "zero-out",
        "batch_size": setting.batch_size, "epochs": setting.epochs, "clip_norm": 1.0, "averaging": Ema(0.9999),
        "multiplicity": Multiplicity(VIEWS, ("crop",)),
    }  # fmt: skip
    common |= (
        {"learning_rate": 0.2, "momentum": 0.9} if row == "cold" else {"learning_rate": 0.5, "momentum": 0.0}
    )
    if row == "weight-multiplicity":
        common |= {"rho": 0.05 if epsilon == 1 else 0.1, "public_batch": 64}
    if row == "ada-dps":
        common["learning_rate"] = 0.05  # gradients are divided by about a tenth
    plan = sf.plans.by_name(method, **common)
    public = joined(data.public, bench.samples(name)) if plan.needs_public else None
    started = time.perf_counter()
    run = sf.fit(model, private, plan, evaluate=data.test, public=public, progress=False)
    return facts | {
        "data": name, "row": row, "epsilon": epsilon, "certified": run.epsilon, "delta": setting.delta, "seed": seed,
        "accuracy": run.accuracy, "average_accuracy": run.average_accuracy, "steps": plan.steps, "method": method,
        "seconds": round(time.perf_counter() - started, 2), "learning_rate": common["learning_rate"],
    }  # fmt: skip


def geometry_task(bench: Bench, name: str, optimizer: str, seed: int) -> dict[str, Any]:
    """Table 4: curvature after the warm-up, on the samples and on private rows (exact: not covered by any ε)."""
    weights, facts = bench.warmed(name, "sam" if optimizer == "sam" else "augmentation", seed)
    model = bench.model(name, seed)
    model.load_state_dict(weights)
    found: dict[str, Any] = {"data": name, "optimizer": optimizer, "seed": seed} | facts
    for which, rows in (("samples", bench.samples(name)), ("private", bench.private(name))):
        loss = geometry.Loss(model, rows, rows=1000, seed=0)
        top = geometry.eigenvalues(loss, 5)
        found[which] = {
            "lambda_max": float(top.values[0]), "ratio": float(top.values[0] / top.values[4]),
            "trace": geometry.hessian_trace(loss, 20).value, "converged": bool(top.converged),
        }  # fmt: skip
    return found


def timing_task(bench: Bench, views: int) -> dict[str, Any]:
    """A step with views at displaced weights beside one with the same views at the weights: pairs, one process.

    Per view, 64 private rows come on one public row: the paper's 4096 to 64.
    """
    data = bench.data("digits")
    rows = data.train.inputs.repeat(2, 1, 1, 1)[:1024]
    images = nn.functional.interpolate(rows, size=28, mode="bilinear")
    targets = data.train.targets.repeat(2)[:1024]
    private = Examples(images, targets, num_classes=10)
    public = Examples(
        nn.functional.interpolate(data.public.inputs, size=28), data.public.targets, "public", num_classes=10
    )
    common: dict[str, Any] = {
        "noise_multiplier": 1.0, "delta": 1e-5, "population": 1024, "rate": 1.0, "steps": 40, "clip_norm": 1.0,
        "learning_rate": 0.1, "relation": "zero-out",
    }  # fmt: skip
    several = Multiplicity(views, ("crop",))
    plans = {
        "views": sf.plans.dp_sgd(multiplicity=several, **common),
        "displaced views": sf.plans.weight_multiplicity(
            rho=0.1, public_batch=16, multiplicity=several, **common
        ),
    }
    loops = {}
    for name, plan in plans.items():
        torch.manual_seed(0)
        loops[name] = sf.steps(small_cnn(28), private, plan, public=public if plan.needs_public else None)
    for loop in loops.values():
        next(loop)  # learns about the model
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for pair in range(12):
        for name in list(loops)[:: 1 if pair % 2 else -1]:
            started = time.perf_counter()
            next(loops[name])
            seconds[name].append(time.perf_counter() - started)
    ratios = [b / a for a, b in zip(seconds["views"], seconds["displaced views"])]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "views": views, "private_batch": 1024, "public_batch": 16, "seconds": seconds, "pairs": len(ratios),
        "ratio": statistics.median(ratios), "ratio_quartiles": [quartiles[0], quartiles[2]],
    }  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Something to find out; ``samples`` names the data set whose samples it needs."""

    name: str
    work: Callable[[], dict[str, Any]]
    samples: str | None = None


def tasks(bench: Bench, second: str) -> Iterator[Task]:
    """Every task, cheapest first."""
    for views in (4, 16):
        yield Task(f"timing-{views}-views", partial(timing_task, bench, views))
    for name in ("digits", second):
        setting = SETTINGS[name]
        for seed, optimizer in itertools.product(range(3), ("sgd", "sam")):
            work = partial(geometry_task, bench, name, optimizer, seed)
            yield Task(f"geometry-{name}-{optimizer}-{seed}", work, name)
        for seed, row, epsilon in itertools.product(range(setting.seeds), setting.rows, EPSILONS):
            work = partial(row_task, bench, name, row, epsilon, seed)
            yield Task(
                f"row-{name}-{row}-eps{epsilon}-{seed}", work, None if row in ("cold", "warm") else name
            )


def run(bench: Bench, second: str, only: str) -> None:
    """Every task that is not done yet and can be."""
    RESULTS.mkdir(exist_ok=True)
    missing = set()
    for task in tasks(bench, second):
        name, target = task.name, RESULTS / f"{task.name}.json"
        if target.exists() or only not in name:
            continue
        if task.samples is not None and task.samples not in bench.files:
            missing.add(task.samples)
            continue
        started = time.perf_counter()
        found = task.work()
        target.write_text(json.dumps(found, indent=1) + "\n")
        shown = {k: round(v, 4) for k, v in found.items() if k in ("accuracy", "average_accuracy", "ratio")}
        print(f"{name}: {shown} in {time.perf_counter() - started:.1f} s", flush=True)
    for name in sorted(missing):
        print(f"rows of {name} that need samples are left out: give --samples {name}=FILE.npz", flush=True)


def table() -> None:
    """What has been found so far, in Markdown."""
    found = [json.loads(path.read_text()) | {"task": path.stem} for path in sorted(RESULTS.glob("*.json"))]
    rows = [f for f in found if f["task"].startswith("row-")]
    for name in SETTINGS:
        here = [f for f in rows if f["data"] == name]
        if not here:
            continue
        print(
            f"\n{name}, {SETTINGS[name].public_fraction:.0%} public, test accuracy in %, mean ± deviation over runs:\n"
        )
        print(
            "| row | after warm-up | "
            + " | ".join(f"ε = {e}, last | ε = {e}, average" for e in EPSILONS)
            + " | runs |"
        )
        print("|---|---|" + "---|---|" * len(EPSILONS) + "---|")
        for row in (*ROWS, *MORE):
            mine = [f for f in here if f["row"] == row]
            if not mine:
                continue
            cells = [_mean([f["warm_up_accuracy"] for f in mine if "warm_up_accuracy" in f])]
            for epsilon in EPSILONS:
                some = [f for f in mine if f["epsilon"] == epsilon]
                cells += [_mean([f[key] for f in some]) for key in ("accuracy", "average_accuracy")]
            print(f"| {TITLES[row]} | {' | '.join(cells)} | {len({f['seed'] for f in mine})} |")
    curved = [f for f in found if f["task"].startswith("geometry-")]
    if curved:
        print(
            "\nAfter the warm-up (Table 4 of the paper), mean ± deviation over seeds; private rows: not covered "
            "by any ε:\n"
        )
        print("| data | optimizer | rows | λ_max | λ_max/λ_5 | trace | runs |\n|---|---|---|---|---|---|---|")
        for name, which, optimizer in itertools.product(SETTINGS, ("samples", "private"), ("sgd", "sam")):
            some = [f[which] for f in curved if f["data"] == name and f["optimizer"] == optimizer]
            if some:
                cells = [_mean([f[key] for f in some], unit=1) for key in ("lambda_max", "ratio", "trace")]
                print(f"| {name} | {optimizer} | {which} | {' | '.join(cells)} | {len(some)} |")
    for f in found:
        if f["task"].startswith("timing-"):
            low, high = f["ratio_quartiles"]
            print(
                f"\nA step with {f['views']} views at displaced weights takes {f['ratio']:.3f} times one with as many "
                f"views at the weights (quartiles {low:.3f} to {high:.3f} over {f['pairs']} pairs)."
            )


def _mean(values: list[float], unit: float = 100) -> str:
    """Mean ± deviation: of shares in %, or of numbers as they are with ``unit`` 1."""
    if not values:
        return "–"
    spread = f" ± {unit * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{unit * statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir")
    parser.add_argument("--second", choices=["mnist", "fashion-mnist"], default="mnist", help="beside digits")
    parser.add_argument("--samples", action="append", default=[], metavar="DATA=FILE.npz")
    parser.add_argument("--only", default="", help="tasks whose name holds this text")
    parser.add_argument("--table", action="store_true", help="print what has been found so far")
    chosen = parser.parse_args()
    if chosen.table:
        table()
    else:
        torch.set_num_threads(1)
        files = dict(pair.split("=", 1) for pair in chosen.samples)
        run(Bench(chosen.data_dir, files), chosen.second, chosen.only)
