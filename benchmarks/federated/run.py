"""Methods over clients side by side, as in Table 2 of the DP-FedSAM paper, at a reduced size. Resumable.

    python benchmarks/federated/run.py --data-dir DIR          the whole grid, cheapest runs first
    python benchmarks/federated/run.py --data-dir DIR --only dp-fedavg-iid-eps8-run1
    python benchmarks/federated/run.py --list                  what the grid holds, and what is done
    python benchmarks/federated/run.py --table                 what has been found so far, as Markdown

Reduced: the paper trains ResNet-18 on CIFAR-10 for 300 rounds of 30 local epochs; here it is fed-cnn on MNIST over
500 clients, 18 rounds of one local epoch. Every finished run adds one JSON file to ``benchmarks/federated/results``;
a run that is there is not made again, and one that was cut off goes on where it was. On one core a run takes
about 65 s with plain clients and 120 s with SAM clients, the whole grid some 50 minutes. The noise is fresh in every
run; run 1 and run 2 also have partitions of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SCRATCH = Path("runs") / "federated"
METHODS = {"dp-fedavg": "DP-FedAvg", "fed-smp-topk": "Fed-SMP-top_k", "dp-fedsam": "DP-FedSAM",
           "dp-fedsam-topk": "DP-FedSAM-top_k"}  # fmt: skip
PARTITIONS = {"iid": ["--partition", "iid"], "dirichlet0.6": ["--partition", "dirichlet", "--alpha", "0.6"]}
EPSILONS = (8, 4)
RUNS = (1, 2)
COMMON = [
    "--data", "mnist", "--model", "fed-cnn", "--clients", "500", "--rate", "0.08", "--rounds", "18",
    "--local-epochs", "1", "--local-batch-size", "32", "--local-learning-rate", "0.1",
    "--local-momentum", "0.5", "--clip-norm", "0.3",
]  # fmt: skip
SAM = ["--rho", "0.05"]  # the paper's 0.5 suits thirty local epochs


def grid() -> dict[str, list[str]]:
    """Every run by its name, with its arguments; plain clients take half the time of SAM clients, and come first."""
    cells = {}
    for number in RUNS:
        for method in METHODS:
            for partition, words in PARTITIONS.items():
                for epsilon in EPSILONS:
                    extra = SAM if "fedsam" in method else []
                    cells[f"{method}-{partition}-eps{epsilon}-run{number}"] = [
                        *COMMON, "--method", method, "--epsilon", str(epsilon), *words,
                        "--partition-seed", str(number), *extra, "--diagnostics",
                    ]  # fmt: skip
    return dict(sorted(cells.items(), key=lambda item: ("fedsam" in item[0], item[0][-1])))


def run(name: str, arguments: list[str], data_dir: str | None) -> dict[str, Any]:
    """One run through the real command line; its result is kept under ``name``."""
    target = RESULTS / f"{name}.json"
    if target.exists():
        return json.loads(target.read_text(encoding="utf-8"))
    RESULTS.mkdir(exist_ok=True)
    scratch = SCRATCH / name
    begun = (scratch / "plan.json").exists()
    words = ["--resume", str(scratch)] if begun else [*arguments, "--out", str(scratch)]
    where = ["--data-dir", data_dir] if data_dir else []
    command = [sys.executable, "-m", "saltflat", "federate", *words, *where, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    summary["command"] = "saltflat federate " + " ".join([*arguments, "--json"])
    summary["reduced"] = True
    history = (scratch / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    summary["history"] = [json.loads(line) for line in history]
    rows = (scratch / "diagnostics.jsonl").read_text(encoding="utf-8").splitlines()
    summary["norms"] = [json.loads(line) for line in rows]
    summary.pop("out")
    target.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    gap = summary["diagnostics"]["train_test_gap"]
    print(f"{name}: {summary['accuracy']:.4f}, gap {gap:.4f}, {summary['seconds']:.0f} s", flush=True)
    return summary


def table() -> str:
    """What has been found, mean ± half the range over runs, as Markdown."""
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for name in grid():
        target = RESULTS / f"{name}.json"
        if target.exists():
            method, rest = _method_of(name)
            partition, epsilon, _ = rest.split("-")
            found = json.loads(target.read_text(encoding="utf-8"))
            cells[method, partition, int(epsilon.removeprefix("eps"))].append(found)
    lines = [
        "| clients | method | ε | σ | test accuracy, % | train-test gap, % | mean update norm | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for partition in PARTITIONS:
        for epsilon in EPSILONS:
            for method, title in METHODS.items():
                if found := cells.get((method, partition, epsilon)):
                    lines.append(_line(partition, title, epsilon, found))
    return "\n".join(lines)


def _line(partition: str, title: str, epsilon: int, found: list[dict[str, Any]]) -> str:
    def shown(values: list[float], digits: int = 1) -> str:
        spread = (max(values) - min(values)) / 2
        return f"{statistics.fmean(values):.{digits}f} ± {spread:.{digits}f}"

    told = [one["diagnostics"] for one in found]
    return (
        f"| {partition} | {title} | {epsilon} | {found[0]['noise_multipliers'][0]:.3f} "
        f"| {shown([100 * one['accuracy'] for one in found])} "
        f"| {shown([100 * one['train_test_gap'] for one in told])} "
        f"| {shown([one['mean_update_norm'] for one in told], 3)} | {len(found)} |"
    )


def _method_of(name: str) -> tuple[str, str]:
    method = max((method for method in METHODS if name.startswith(f"{method}-")), key=len)
    return method, name.removeprefix(f"{method}-")


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="where MNIST lies")
    parser.add_argument("--only", help="one run, by its name")
    parser.add_argument("--list", action="store_true", help="the runs of the grid, and which are done")
    parser.add_argument("--table", action="store_true", help="results so far, as Markdown")
    arguments = parser.parse_args()
    runs = grid()
    if arguments.table:
        print(table())
    elif arguments.list:
        for name in runs:
            print("done" if (RESULTS / f"{name}.json").exists() else "    ", name)
    elif arguments.only and arguments.only not in runs:
        parser.error(f"there is no run {arguments.only!r}; see --list")
    else:
        for name, words in runs.items():
            if arguments.only in (None, name):
                run(name, words, arguments.data_dir)


if __name__ == "__main__":
    main()
