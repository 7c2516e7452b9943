"""Accuracy of the estimators beside logistic regression, without privacy and by diffprivlib, in a table.

    python benchmarks/estimators/run.py run --cache DIR     everything that is not there yet; resumable
    python benchmarks/estimators/run.py run --only saltflat --seeds 3
    python benchmarks/estimators/run.py table               writes the table into docs/estimators.md

diffprivlib 0.6.6 does not import with current scikit-learn. The script makes an environment for it in DIR
(outside the repository), with versions that it works with. Every finished task adds one JSON file to
``benchmarks/estimators/results``; a task that is there is not done again.

Our runs are seeded, so that the table can be made again; noise and sampling are otherwise those of private runs.
Settings are the defaults, which were chosen on other tables (`settings.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from problems import EPSILONS, PROBLEMS, problem, split

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from marks import write_between

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "estimators.md"
PINNED = ["diffprivlib==0.6.6", "scikit-learn==1.6.1", "numpy==2.2.6", "scipy==1.15.3"]
OURS = {
    "linear": {},
    "mlp": {"model": "mlp"},
    "linear, bounds learned": {"bounds": None},
}
BEGIN, END = "<!-- table: benchmarks/estimators/run.py table -->", "<!-- end of table -->"


def file_of(name: str) -> Path:
    """Where the result of a task is kept."""
    return RESULTS / f"{name.replace(', ', '-').replace(' ', '-')}.json"


def kept(name: str, seeds: int, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a task, from its file if it is there."""
    target = file_of(name)
    if target.exists():
        found: dict[str, Any] = json.loads(target.read_text())
        if found["seeds"] >= seeds:
            return found
    RESULTS.mkdir(exist_ok=True)
    result = make() | {"seeds": seeds}
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(name, summary(result), flush=True)
    return result


def without_privacy(name: str, seeds: int) -> dict[str, Any]:
    """scikit-learn's logistic regression on standardised rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y, _, _ = problem(name)
    accuracies = []
    for seed in range(seeds):
        X_train, X_test, y_train, y_test = split(X, y, seed)
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X_train, y_train)
        accuracies.append(model.score(X_test, y_test))
    return {"accuracies": accuracies}


def with_saltflat(name: str, epsilon: float, seeds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """`PrivateClassifier` with its defaults; population, classes and, mostly, bounds declared."""
    import numpy as np

    import saltflat as sf

    X, y, low, high = problem(name)
    accuracies, replaced = [], None
    for seed in range(seeds):
        X_train, X_test, y_train, y_test = split(X, y, seed)
        declared = {"population": len(y_train), "classes": np.unique(y).tolist(), "bounds": (low, high)}
        model = sf.PrivateClassifier(epsilon, 1e-5, random_state=seed, **(declared | settings))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sf.PrivacyWarning)
            model.fit(X_train, y_train)
        accuracies.append(float(model.score(X_test, y_test)))
        assert model.plan_.epsilon <= epsilon
        replaced = model.plan_.epsilon_replace_one
    return {"accuracies": accuracies, "epsilon_replace_one": replaced}


def with_diffprivlib(python: Path, name: str, epsilon: float, seeds: int) -> dict[str, Any]:
    """diffprivlib's logistic regression, by the interpreter of its own environment."""
    command = [str(python), str(HERE / "with_diffprivlib.py"), name, str(epsilon), str(seeds)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    best = max(found["by_norm"], key=lambda share: statistics.fmean(found["by_norm"][share]))
    return found | {"best": best, "accuracies": found["by_norm"][best]}


def environment(cache: Path) -> Path:
    """The interpreter of diffprivlib's environment, which is made if it is not there."""
    folder = cache.resolve() / "diffprivlib-0.6.6"
    if HERE.parents[1] in folder.parents:
        raise SystemExit("--cache: an environment belongs outside the repository.")
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PINNED], check=True)
        (folder / "ready").touch()
    return python


def run(arguments: argparse.Namespace) -> None:
    """All tasks that are not done yet."""
    seeds = arguments.seeds
    for name in arguments.data or PROBLEMS:
        if arguments.only in (None, "sklearn"):
            kept(f"{name}, not private", seeds, lambda name=name: without_privacy(name, seeds))
        for epsilon in EPSILONS:
            if arguments.only in (None, "saltflat"):
                for label, settings in OURS.items():
                    kept(
                        f"{name}, {label}, {epsilon:g}",
                        seeds,
                        lambda n=name, e=epsilon, s=settings: with_saltflat(n, e, seeds, s),
                    )
            if arguments.only in (None, "diffprivlib"):
                if arguments.cache is None:
                    raise SystemExit("--cache DIR: where diffprivlib's environment may be made.")
                kept(
                    f"{name}, diffprivlib, {epsilon:g}",
                    seeds,
                    lambda n=name, e=epsilon: with_diffprivlib(environment(arguments.cache), n, e, seeds),
                )


def summary(result: dict[str, Any]) -> str:
    """Mean and standard deviation over the seeds, in per cent."""
    accuracies = [100 * value for value in result["accuracies"]]
    return f"{statistics.fmean(accuracies):.1f} ± {statistics.stdev(accuracies):.1f}"


def read(name: str) -> dict[str, Any] | None:
    """A result, if it is there."""
    target = file_of(name)
    return json.loads(target.read_text()) if target.exists() else None


def cell(result: dict[str, Any] | None, best: float) -> str:
    """Mean and deviation; bold where the mean is the best of its row."""
    if result is None:
        return "not run"
    words = summary(result)
    return f"**{words}**" if statistics.fmean(result["accuracies"]) == best else words


def table() -> str:
    """The whole comparison in Markdown; the best private mean of a row is bold."""
    labels = ["diffprivlib", *OURS]
    head = [
        "data",
        "rows × features",
        "ε",
        "not private",
        "diffprivlib",
        *(f"saltflat {label}" for label in OURS),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in PROBLEMS:
        X, y, _, _ = problem(name)
        rows, plain = len(split(X, y, 0)[0]), cell(read(f"{name}, not private"), math.nan)
        for epsilon in EPSILONS:
            found = [read(f"{name}, {label}, {epsilon:g}") for label in labels]
            means = [statistics.fmean(result["accuracies"]) for result in found if result is not None]
            best = max(means) if len(means) == len(found) else math.nan  # nothing is best of a row with gaps
            first = [name, f"{rows:,} × {X.shape[1]}"] if epsilon == EPSILONS[0] else ["", ""]
            cells = [cell(result, best) for result in found]
            lines.append("| " + " | ".join([*first, f"{epsilon:g}", plain, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--seeds", type=int, default=10)
    runner.add_argument(
        "--data", choices=PROBLEMS, action="append", help="one of the tables; all unless told"
    )
    runner.add_argument("--only", choices=["sklearn", "saltflat", "diffprivlib"])
    runner.add_argument(
        "--cache", type=Path, help="a folder outside the repository for diffprivlib's environment"
    )
    commands.add_parser("table")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments)
    else:
        write_between(PAGE, BEGIN, END, table())


if __name__ == "__main__":
    main()
