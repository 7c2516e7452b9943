"""One training script, run with Opacus and, after changing its import, with saltflat: accuracies and times.

    python benchmarks/compat/opacus.py --data-dir DIR             Fashion-MNIST, the CNN of Opacus's example
    python benchmarks/compat/opacus.py --data cifar10 --data-dir DIR --rows 2048   cnn-selu, a few steps

Runs of both take turns, each in a process of its own; the time is the processor's in the training loop, which other
work on the machine blurs least; the clock's is in the result as well: one JSON file in
``benchmarks/compat/results``, with the difference of the two scripts in it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
THEIRS = "from opacus import PrivacyEngine"
OURS = "from saltflat.compat.opacus import PrivacyEngine"


def changed() -> tuple[str, str, str]:
    """The script before and after its import was changed, and what `diff` says about it."""
    before = (HERE / "script.py").read_text(encoding="utf-8")
    assert before.count(THEIRS) == 1
    after = before.replace(THEIRS, OURS)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return (
        before,
        after,
        "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")),
    )


def one_run(script: Path, arguments: list[str], threads: int) -> dict[str, Any]:
    """The script's own report."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--modes", nargs="+", default=["hooks", "ghost"])
    parser.add_argument("--name", help="of the result; the data set's by default")
    known, passed = parser.parse_known_args()
    before, after, diff = changed()
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # Not in this folder, where `import opacus` would find this file.
        scripts = {name: Path(scratch) / f"with_{name}.py" for name in ("opacus", "saltflat")}
        for script, text in zip(scripts.values(), (before, after), strict=True):
            script.write_text(text, encoding="utf-8")
        for seed in range(known.rounds):
            for mode in known.modes:
                options = [*passed, "--grad-sample-mode", mode, "--seed", str(seed)]
                for library, path in scripts.items():
                    found = one_run(path, options, known.threads)
                    runs.setdefault(f"{library} {mode}", []).append(found)
                    print(
                        f"{library:9}{mode:7}{found['processor_seconds']:8.1f} s   {found['accuracy']:.1%}",
                        flush=True,
                    )
    summary = {
        name: {
            "seconds": statistics.median(run["seconds"] for run in own),
            "processor_seconds": statistics.median(run["processor_seconds"] for run in own),
            "accuracy": statistics.mean(run["accuracy"] for run in own),
            "epsilon": max(run["epsilon"] for run in own),
        }
        for name, own in runs.items()
    }
    ratios = {
        mode: summary[f"opacus {mode}"]["processor_seconds"]
        / summary[f"saltflat {mode}"]["processor_seconds"]
        for mode in known.modes
    }
    print("\n" + diff)
    for mode, ratio in ratios.items():
        mine, peer = summary[f"saltflat {mode}"], summary[f"opacus {mode}"]
        print(
            f"{mode}: accuracy {peer['accuracy']:.1%} -> {mine['accuracy']:.1%}, "
            f"time {peer['processor_seconds']:.1f} s -> {mine['processor_seconds']:.1f} s, {ratio:.2f} times as fast"
        )
    at = passed.index("--data") + 1 if "--data" in passed else None
    name = known.name or (passed[at] if at is not None else "fashion-mnist")
    where = [i for i, word in enumerate(passed) if word == "--data-dir"]
    told = [word for i, word in enumerate(passed) if not any(i in (w, w + 1) for w in where)]
    report = {
        "diff": diff.splitlines(),
        "arguments": told,
        "threads": known.threads,
        "machine": {"processor": platform.machine(), "torch": torch.__version__},
        "ratios": ratios,
        "summary": summary,
        "runs": runs,
    }
    (HERE / "results").mkdir(exist_ok=True)
    target = HERE / "results" / f"{name}.json"
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: benchmarks/compat/results/{name}.json")


if __name__ == "__main__":
    main()
