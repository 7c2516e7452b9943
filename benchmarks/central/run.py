"""Real runs of the central methods on real data, resumable: give the same command again to go on.

    python benchmarks/central/run.py scatter --data-dir DIR     rates chosen on MNIST, then Fashion-MNIST
    python benchmarks/central/run.py scatter-ema --data-dir DIR the same with averaged iterates
    python benchmarks/central/run.py scatter-reference --data-dir DIR   Fashion-MNIST at the rates of the reference
    python benchmarks/central/run.py cifar --data-dir DIR       cnn-selu on CIFAR-10 (JPEG), ten epochs, ε = 1
    python benchmarks/central/run.py settings --data-dir DIR    ρ, noise ratios and averages, on MNIST
    python benchmarks/central/run.py epochs --data-dir DIR      over how many epochs to spend a budget, on MNIST
    python benchmarks/central/run.py table                      what has been found so far

Every finished run adds one JSON file to ``benchmarks/central/results``; a run that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
COMMON = ["--delta", "1e-5", "--momentum", "0.9", "--clip-norm", "0.1"]
SCATTER = ["--model", "scatter-linear", "--batch-size", "8192", "--epochs", "40", *COMMON]
CIFAR = [
    "--data",
    "cifar10",
    "--model",
    "cnn-selu",
    "--batch-size",
    "2048",
    "--epochs",
    "10",
    "--epsilon",
    "1",
]
CIFAR += COMMON


def run(name: str, arguments: list[str], data_dir: str | None) -> dict[str, Any]:
    """One training run through the real command line; its result is kept under ``name``."""
    target = RESULTS / f"{name}.json"
    if target.exists():
        return json.loads(target.read_text())
    RESULTS.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "saltflat", "train", *arguments, "--json"]
    started = time.time()
    scratch = Path("runs") / "central" / f"{name}-{int(started)}"
    full = [*command, "--out", str(scratch), *(["--data-dir", data_dir] if data_dir else [])]
    done = subprocess.run(full, check=True, capture_output=True, text=True)
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    summary["command"] = "saltflat train " + " ".join([*arguments, "--json"])
    history = (scratch / "metrics.jsonl").read_text().splitlines()
    summary["history"] = [json.loads(line) for line in history]
    summary.pop("out")
    target.write_text(json.dumps(summary, indent=1) + "\n")
    print(
        f"{name}: {summary['accuracy']:.4f} {summary['average_accuracy'] or ''} in {summary['seconds']:.0f} s",
        flush=True,
    )
    return summary


def scatter(data_dir: str | None) -> None:
    """The learning rate of each budget on MNIST, by the mean of three runs, then three runs on Fashion-MNIST."""
    for epsilon in (3, 2, 1):
        tried = {}
        for rate in (4, 8, 16):
            runs = _three_runs("mnist", epsilon, rate, data_dir)
            tried[rate] = statistics.fmean(found["accuracy"] for found in runs)
        best = max(tried, key=lambda rate: tried[rate])
        print(f"ε = {epsilon}: rate {best} on MNIST", flush=True)
        _three_runs("fashion-mnist", epsilon, best, data_dir)


def _three_runs(data: str, epsilon: float, rate: float, data_dir: str | None) -> list[dict[str, Any]]:
    arguments = ["--data", data, *SCATTER, "--epsilon", str(epsilon), "--learning-rate", str(rate)]
    cell = f"scatter-{data.partition('-')[0]}-eps{epsilon}-lr{rate}"
    return [run(f"{cell}-run{number}", arguments, data_dir) for number in (1, 2, 3)]


def scatter_ema(data_dir: str | None) -> None:
    """The same with an exponential average of the iterates, which is free, and its own choice of the rate."""
    for epsilon in (1, 2, 3):
        tried = {}
        for rate in (8, 16, 32):
            name = f"scatter-ema-mnist-eps{epsilon}-lr{rate}"
            tried[rate] = run(name, _averaged("mnist", epsilon, rate), data_dir)["average_accuracy"]
        best = max(tried, key=lambda rate: tried[rate])
        print(f"ε = {epsilon}, averaged: rate {best} on MNIST", flush=True)
        _three_averaged(epsilon, best, data_dir)


def scatter_reference(data_dir: str | None) -> None:
    """At the rates of the trial that is to be met (8, 16, 16), with the last iterate and an average of the last."""
    for epsilon, rate in ((3, 16), (2, 16), (1, 8)):
        _three_averaged(epsilon, rate, data_dir)


def _averaged(data: str, epsilon: float, rate: float) -> list[str]:
    own = ["--epsilon", str(epsilon), "--learning-rate", str(rate)]
    return ["--data", data, *SCATTER, "--method", "dp-sgd+ema", *own]


def _three_averaged(epsilon: float, rate: float, data_dir: str | None) -> None:
    for number in (1, 2, 3):
        name = f"scatter-ema-fashion-eps{epsilon}-lr{rate}-run{number}"
        run(name, _averaged("fashion-mnist", epsilon, rate), data_dir)


def cifar(data_dir: str | None) -> None:
    """DP-SGD and DP-SAT at the paper's rate, and SAI with the paper's two rates and ρ."""
    single = ["--learning-rate", "2"]
    run("cifar-cnn-selu-dp-sgd", [*CIFAR, "--method", "dp-sgd", *single], data_dir)
    run("cifar-cnn-selu-sai", [*CIFAR, "--method", "sai", *single], data_dir)
    run("cifar-cnn-selu-dp-sat", [*CIFAR, "--method", "dp-sat", "--rho", "0.02", *single], data_dir)


def settings(data_dir: str | None) -> None:
    """The methods' own settings, on MNIST with a small model at ε = 1, three runs each."""
    base = ["--data", "mnist", "--model", "mlp", "--delta", "1e-5", "--batch-size", "2048", "--epsilon", "1"]
    base += ["--epochs", "10"]
    cells: list[tuple[str, list[str]]] = [("dp-sgd", [])]
    cells += [("dp-sat", ["--rho", rho]) for rho in ("0.03", "0.1", "0.3")]
    cells += [("sai", ["--noise-ratio", ratio, "--rho", "0.03"]) for ratio in ("1", "1.5", "3")]
    cells += [("dp-sam", ["--noise-ratio", ratio, "--rho", "0.03"]) for ratio in ("1", "3")]
    cells += [("dp-sgd+ema", []), ("dp-sgd+swa", [])]
    for method, extra in cells:
        label = "".join(extra).replace("--", "-")
        for number in (1, 2, 3):
            run(f"settings-mnist-{method}{label}-run{number}", [*base, "--method", method, *extra], data_dir)


def epochs(data_dir: str | None) -> None:
    """One budget spent over more or fewer epochs, for a small and a larger model, settings otherwise default."""
    for model in ("mlp", "logistic"):
        for epsilon in (0.5, 1, 3):
            for count in (5, 10, 20, 40):
                arguments = ["--data", "mnist", "--model", model, "--delta", "1e-5", "--batch-size", "2048"]
                arguments += ["--epsilon", str(epsilon), "--epochs", str(count)]
                run(f"epochs-mnist-{model}-eps{epsilon}-{count}", arguments, data_dir)


def table(data_dir: str | None) -> None:
    """What is in the results so far, as a Markdown table: mean over runs, deviation, number of runs."""
    cells: dict[str, list[float]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text())
        averaged = found["average_accuracy"]
        value = found["accuracy"] if averaged is None else averaged
        cells.setdefault(re.sub(r"-run\d+$", "", path.stem), []).append(100 * value)
    print("| cell | accuracy, % | runs |\n|---|---|---|")
    for name, values in cells.items():
        deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"| {name} | {statistics.fmean(values):.2f}{deviation} | {len(values)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = {
        "scatter": scatter, "scatter-ema": scatter_ema, "scatter-reference": scatter_reference, "cifar": cifar,
        "epochs": epochs, "settings": settings, "table": table,
    }  # fmt: skip
    parser.add_argument("what", choices=list(tasks))
    parser.add_argument("--data-dir")
    chosen = parser.parse_args()
    tasks[chosen.what](chosen.data_dir)
