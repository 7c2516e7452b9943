"""The example with the pretrained encoder, part by part: accuracies before and after, ε and times.

    python benchmarks/pretrained/run.py run         every part that is not there yet; resumable
    python benchmarks/pretrained/run.py table       writes the table into docs/pretrained.md

Each part is `examples/text_encoder.py` as it stands, in a process of its own, and adds one JSON file to
``benchmarks/pretrained/results``. The example draws new noise each time, so accuracies differ from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from saltflat.bench.machine import processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from marks import write_between

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
PAGE = ROOT / "docs" / "pretrained.md"
BEGIN, END = "<!-- table: benchmarks/pretrained/run.py table -->", "<!-- end of table -->"
PARTS = ("last-layer", "bias-only", "lora", "all")
TRAINED = re.compile(r"^(?P<part>\S+): (?P<trained>[\d,]+) of (?P<all>[\d,]+) weights trained$", re.MULTILINE)
ACCURACY = re.compile(
    r"^accuracy (?P<before>[\d.]+)% before, (?P<after>[\d.]+)% after, with ε = (?P<epsilon>[\d.]+)",
    re.MULTILINE,
)


def measured(part: str, steps: int, threads: int) -> dict[str, Any]:
    """What the example printed, and how long it took."""
    words = ["examples/text_encoder.py", "--part", part, "--steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        "command": " ".join(["python", *words]),
        "steps": steps,
        "seconds": round(seconds, 1),
        "threads": threads,
        "processor": processor(),
        "torch": torch.__version__,
        **read(done.stdout),
    }


def read(printed: str) -> dict[str, Any]:
    """The numbers in the last lines of the example."""
    trained = TRAINED.search(printed)
    accuracy = ACCURACY.search(printed)
    if trained is None or accuracy is None:
        raise SystemExit(f"The example printed something else:\n{printed}")
    return {
        "trained": int(trained["trained"].replace(",", "")),
        "before": float(accuracy["before"]),
        "after": float(accuracy["after"]),
        "epsilon": float(accuracy["epsilon"]),
    }


def run(arguments: argparse.Namespace) -> None:
    """Every part without a result of so many steps."""
    RESULTS.mkdir(exist_ok=True)
    for part in arguments.parts:
        target = RESULTS / f"{part}.json"
        if target.exists() and json.loads(target.read_text(encoding="utf-8"))["steps"] >= arguments.steps:
            continue
        result = measured(part, arguments.steps, arguments.threads)
        target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(part, result, flush=True)
    write_between(PAGE, BEGIN, END, table())


def table() -> str:
    """The results in Markdown."""
    lines = [
        "| part | weights trained | steps | before | after | ε | time, one run |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in PARTS:
        target = RESULTS / f"{part}.json"
        if not target.exists():
            continue
        found = json.loads(target.read_text(encoding="utf-8"))
        seconds = found["seconds"]
        took = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{round(seconds, -1):.0f} s"
        threads = "one thread" if found["threads"] == 1 else f"{found['threads']} threads"
        lines.append(
            f"| `{part}` | {found['trained']:,} | {found['steps']} | {found['before']:.1f} % | {found['after']:.1f} % "
            f"| {found['epsilon']:g} | about {took} on {threads} |"
        )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="measure what is not there yet, then write the table")
    running.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    running.add_argument("--steps", type=int, default=50)
    running.add_argument("--threads", type=int, default=torch.get_num_threads())
    running.set_defaults(do=run)
    commands.add_parser("table", help="only write the table").set_defaults(
        do=lambda _: write_between(PAGE, BEGIN, END, table())
    )
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    main()
