"""Recipes, found on other data and then measured; resumable: give the same command again to go on.

    python benchmarks/recipes/run.py try DATA FAMILY rate=10,25 clip=0.02 mean=0.1 --data-dir DIR   tuning runs
    python benchmarks/recipes/run.py plan DATA HEAD method=sai,dp-sgd+ema rate=2 --data-dir DIR  runs of whole plans
    python benchmarks/recipes/run.py report DATA EPSILON --data-dir DIR                     five reported runs
    python benchmarks/recipes/run.py table                                                  what has been found

Every finished run is one JSON file in ``benchmarks/recipes/results``, with its role: "tuning" runs train on part of
a data set's training rows and are scored on the rest of them, "reported" runs are ``saltflat train --recipe best``,
scored on test rows. A recipe for a data set is chosen from the tuning runs on the other data sets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from families import features, training_rows
from heads import Attempt, attempt
from search import HELD_OUT, Setting, accuracies, plan_for

RESULTS = Path(__file__).parent / "results"
PASS = ("epochs", "batch", "epsilon", "seed", "noise")  # what all settings of one pass over the rows share


def tuning(data: str, family: str, words: list[str], data_dir: str | None) -> None:
    """All combinations of the settings named in ``words`` that have no result yet."""
    lists = {
        "rate": ["25"],
        "epochs": ["15"],
        "batch": ["8192"],
        "epsilon": ["1"],
        "seed": ["1"],
        "noise": ["even"],
    }
    lists |= {word.partition("=")[0]: word.partition("=")[2].split(",") for word in words}
    rows: Any = None
    for shared in itertools.product(*(lists[name] for name in PASS)):
        epochs, batch, epsilon, seed = float(shared[0]), int(shared[1]), float(shared[2]), int(shared[3])
        noise = shared[4]
        own = {name: values for name, values in lists.items() if name not in PASS}
        settings = [
            Setting(**dict(zip(own, map(_value, chosen)))) for chosen in itertools.product(*own.values())
        ]
        stem = f"tuning-{data}-{family}-eps{epsilon:g}-batch{batch}-epochs{epochs:g}"
        stem += "" if noise == "even" else f"-noise{noise}"
        names = {setting: RESULTS / f"{stem}-{setting}-run{seed}.json" for setting in settings}
        missing = [setting for setting in settings if not names[setting].exists()]
        if not missing:
            continue
        rows = (features(data, family, data_dir), training_rows(data, data_dir)[1]) if rows is None else rows
        population = len(rows[1]) - HELD_OUT
        steps, batch = max(1, round(epochs * population / batch)), min(batch, population)
        plan = plan_for(population, batch, steps, epsilon, noise)
        started = time.time()
        found = accuracies(*rows, missing, plan=plan, seed=seed)
        seconds = round((time.time() - started) / len(missing), 2)
        for setting, accuracy in zip(missing, found):
            about = {
                "role": "tuning", "data": data, "features": family, "width": rows[0].shape[1],
                "accuracy": accuracy, "average_accuracy": None, "scored_on": "held-out training rows",
                "setting": vars(setting), "population": population, "batch_size": batch, "steps": steps,
                "epochs": epochs, "noise_multiplier": [phase.sigma for phase in plan.phases],
                "epsilon": plan.epsilon, "delta": 1e-5, "seed": seed,
                "seconds": seconds,
            }  # fmt: skip
            RESULTS.mkdir(exist_ok=True)
            names[setting].write_text(json.dumps(about, indent=1) + "\n")
            print(f"{accuracy:.4f}  {names[setting].stem}  ({seconds} s)", flush=True)


def plans(data: str, head: str, words: list[str], data_dir: str | None) -> None:
    """Whole plans through `saltflat.fit`: all combinations of the settings named that have no result yet."""
    lists = {word.partition("=")[0]: word.partition("=")[2].split(",") for word in words}
    numbers = lists.pop("run", ["1"])
    for number, chosen in itertools.product(numbers, itertools.product(*lists.values())):
        one = Attempt(head, **dict(zip(lists, map(_value, chosen))))
        target = RESULTS / f"tuning-{data}-plan-{one}-run{number}.json"
        if target.exists():
            continue
        started = time.time()
        found = attempt(one, data, data_dir)
        about = {"role": "tuning", "data": data, "setting": vars(one), "scored_on": "held-out training rows"}
        about |= found | {"delta": 1e-5, "seconds": round(time.time() - started, 2)}
        target.write_text(json.dumps(about, indent=1) + "\n")
        average = "" if found["average_accuracy"] is None else f", average {found['average_accuracy']:.4f}"
        print(f"{found['accuracy']:.4f}{average}  {target.stem}  ({about['seconds']} s)", flush=True)


def report(data: str, epsilon: str, numbers: list[str], data_dir: str | None) -> None:
    """Runs of ``saltflat train --recipe best`` that have no result yet: fresh noise in each, last iterates."""
    arguments = ["--data", data, "--recipe", "best", "--epsilon", epsilon, "--delta", "1e-5"]
    for number in numbers or ["1", "2", "3", "4", "5"]:
        target = RESULTS / f"reported-{data}-eps{float(epsilon):g}-run{number}.json"
        if target.exists():
            continue
        out = Path("runs") / "recipes" / f"{target.stem}-{int(time.time())}"
        command = [sys.executable, "-m", "saltflat", "train", *arguments, "--json", "--out", str(out)]
        command += ["--data-dir", data_dir] if data_dir else []
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        plan, spec = (json.loads((out / name).read_text()) for name in ("plan.json", "model.json"))
        summary |= {"role": "reported", "scored_on": "test rows", "plan": plan}
        summary |= {"command": "saltflat train " + " ".join([*arguments, "--json"]), "model_spec": spec}
        summary.pop("out")
        target.write_text(json.dumps(summary, indent=1) + "\n")
        print(f"{target.stem}: {summary['accuracy']:.4f} in {summary['seconds']:.0f} s", flush=True)


def table() -> None:
    """What is in the results, as a Markdown table: best first within a data set and role."""
    cells: dict[tuple[str, str, str], list[float]] = {}
    for path in RESULTS.glob("*.json"):
        found = json.loads(path.read_text())
        name = path.stem.rpartition("-run")[0]
        cells.setdefault((found["role"], found["data"], name), []).append(100 * found["accuracy"])
    print("| cell | accuracy, % | runs |\n|---|---|---|")
    for (_, _, name), values in sorted(
        cells.items(), key=lambda cell: (*cell[0][:2], -statistics.fmean(cell[1]))
    ):
        deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"| {name} | {statistics.fmean(values):.2f}{deviation} | {len(values)} |")


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["try", "plan", "report", "table"])
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("choice", nargs="?", default="", help="a family of features, a head, or ε")
    parser.add_argument("words", nargs="*", help="settings to try, or numbers of runs")
    parser.add_argument("--data-dir")
    given = parser.parse_intermixed_args()
    if given.what == "table":
        table()
    else:
        do = {"try": tuning, "plan": plans, "report": report}[given.what]
        do(given.data, given.choice, given.words, given.data_dir)
