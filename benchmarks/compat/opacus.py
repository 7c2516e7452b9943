"""One training script, run with Opacus and, after changing its import, with saltflat: accuracies and times.

    python benchmarks/compat/opacus.py run --data-dir DIR --rounds 5    what is not there yet; resumable
    python benchmarks/compat/opacus.py table                            writes the table into docs/opacus.md

Runs of both libraries take turns, each in a process of its own, in an order that changes from round to round; ratios
are those of one round. Every finished run is added to one JSON file, ``benchmarks/compat/results/one-import.json``,
with the difference of the two scripts in it. Runs of other code, on another machine or of other settings are not
compared with: they are done again.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy import stats

import saltflat as sf
from saltflat.bench.machine import facts
from saltflat.bench.timing import paired

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from marks import write_between

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "one-import.json"
PAGE = HERE.parents[1] / "docs" / "opacus.md"
BEGIN, END = "<!-- table: benchmarks/compat/opacus.py table -->", "<!-- end of table -->"
THEIRS = "from opacus import PrivacyEngine"
OURS = "from saltflat.compat.opacus import PrivacyEngine"
LIBRARIES, MODES = ("opacus", "saltflat"), ("hooks", "ghost")


@dataclass(frozen=True)
class Case:
    """A model and the rows it is trained on."""

    data: str
    rows: int
    title: str
    arguments: tuple[str, ...]


CASES = {
    "small-cnn": Case(
        "fashion-mnist",
        6_000,
        "the CNN of Opacus's MNIST example, 6,000 rows of Fashion-MNIST",
        ("--model", "small-cnn", "--batch-size", "256", "--epochs", "3", "--lr", "0.3"),
    ),
    "cnn-selu": Case(
        "cifar10",
        1_024,
        "`cnn-selu`, 1,024 rows of CIFAR-10 (JPEG)",
        ("--model", "cnn-selu", "--batch-size", "256", "--epochs", "1", "--lr", "0.3"),
    ),
}


def changed() -> tuple[str, str, list[str]]:
    """The script before and after its import was changed, and what `diff` says about it."""
    before = (HERE / "script.py").read_text(encoding="utf-8")
    assert before.count(THEIRS) == 1
    after = before.replace(THEIRS, OURS)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return before, after, [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def key_of(case: str, mode: str, library: str, seed: int) -> str:
    """The name of a run in the results."""
    return f"{case} {mode} {library} {seed}"


def turns(rounds: int) -> list[tuple[str, str, str, int]]:
    """Every run: round by round, each round in another order, both libraries one right after the other."""
    shuffler = random.Random(0)
    found = []
    for seed in range(rounds):
        pairs = [(case, mode) for case in CASES for mode in MODES]
        shuffler.shuffle(pairs)
        for case, mode in pairs:
            order = LIBRARIES if shuffler.random() < 0.5 else LIBRARIES[::-1]
            found += [(case, mode, library, seed) for library in order]
    return found


def kept_runs(conditions: dict[str, Any]) -> dict[str, Any]:
    """What was measured already, under the same conditions; otherwise nothing."""
    if RESULTS.exists():
        held: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
        if held.get("conditions") == conditions:
            return held
    return {"conditions": conditions, "runs": {}}


def one_run(script: Path, arguments: list[str], threads: int) -> dict[str, Any]:
    """The script's own report."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def rows_file(case: Case, data_dir: str | None, folder: Path) -> Path:
    """Some rows of a data set, and a thousand to test on, in a file that either script reads.

    They are drawn at random, the same each time: a folder of images comes sorted by class.
    """
    data = sf.data.load(case.data, **({"data_dir": data_dir} if data_dir else {}))
    chosen = {}
    for name, part, count in (("train", data.train, case.rows), ("test", data.test, 1_000)):
        order = torch.randperm(len(part.targets), generator=torch.Generator().manual_seed(0))[:count]
        chosen[name] = part.fetch(order)
    path = folder / f"{case.data}.pt"
    torch.save(chosen, path)
    return path


def run(arguments: argparse.Namespace) -> None:
    """All runs that are not done yet; the results are written after each."""
    before, after, diff = changed()
    conditions = {
        "diff": diff,
        "settings": {name: list(case.arguments) for name, case in CASES.items()},
        "machine": facts() | {"threads": arguments.threads},
    }
    found = kept_runs(conditions)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        scripts = {name: folder / f"with_{name}.py" for name in LIBRARIES}
        for script, text in zip(scripts.values(), (before, after), strict=True):
            script.write_text(text, encoding="utf-8")
        files: dict[str, Path] = {}
        for case, mode, library, seed in turns(arguments.rounds):
            key = key_of(case, mode, library, seed)
            if key in found["runs"]:
                continue
            if case not in files:
                files[case] = rows_file(CASES[case], arguments.data_dir, folder)
            options = ["--rows", str(files[case]), "--grad-sample-mode", mode, "--seed", str(seed)]
            result = one_run(scripts[library], [*CASES[case].arguments, *options], arguments.threads)
            found["runs"][key] = result
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{key:30}{result['seconds']:8.1f} s   {result['accuracy']:.1%}", flush=True)
    write_table()


def both(found: dict[str, Any], case: str, mode: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The runs of Opacus and ours, of the rounds that have both."""
    runs, seed = found["runs"], 0
    theirs, mine = [], []
    while (peer := runs.get(key_of(case, mode, "opacus", seed))) and (
        own := runs.get(key_of(case, mode, "saltflat", seed))
    ):
        theirs.append(peer)
        mine.append(own)
        seed += 1
    return theirs, mine


def spread(accuracies: list[float]) -> str:
    """The mean and the standard deviation over the rounds, in percent."""
    mean = f"{100 * statistics.fmean(accuracies):.1f}"
    return f"{mean} ± {100 * statistics.stdev(accuracies):.1f} %" if len(accuracies) > 1 else f"{mean} %"


def differs(differences: list[float]) -> bool:
    """Whether the rounds' differences are away from zero, by a t-test at 95 %."""
    if len(differences) < 2:
        return False
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return abs(statistics.fmean(differences)) > float(stats.t.ppf(0.975, len(differences) - 1)) * error


def seen(visible: list[str], rounds: int) -> str:
    """What the rounds say about accuracies, as the end of a sentence."""
    if not visible:
        return f"no difference is visible over {rounds} round{'s' if rounds > 1 else ''}"
    return f"over {rounds} rounds a difference is visible for {' and '.join(visible)}"


def table(found: dict[str, Any]) -> str:
    """Accuracies, times and ratios in Markdown."""
    head = (
        "",
        "mode",
        "accuracy, Opacus",
        "after the change",
        "loop, Opacus",
        "after the change",
        "times as fast",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    rounds, visible = 0, []
    for name, case in CASES.items():
        for mode in MODES:
            theirs, mine = both(found, name, mode)
            if not theirs:
                continue
            rounds = max(rounds, len(theirs))
            if differs([own["accuracy"] - peer["accuracy"] for peer, own in zip(theirs, mine, strict=True)]):
                visible.append(f"{name}, `{mode}`")
            times = [[each["seconds"] for each in side] for side in (theirs, mine)]
            ratio = paired(*times)
            cells = [
                case.title if mode == MODES[0] else "",
                f"`{mode}`",
                *(spread([each["accuracy"] for each in side]) for side in (theirs, mine)),
                *(f"{statistics.median(side):.1f} s" for side in times),
                f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    machine = found["conditions"]["machine"]
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    lines.append(
        f"\n{machine['processor']}, {threads}, torch {machine['torch']}, Opacus {machine['peers']['opacus']}; "
        f"{rounds} rounds in which both took turns. Accuracy is the mean over the rounds ± their standard deviation, "
        f"on a thousand rows: {seen(visible, rounds)}. The time is the median of the clock; how many times as fast "
        "is the median of the rounds' ratios, with the quartiles."
    )
    return "\n".join(lines)


def write_table() -> None:
    """Put the table between its marks in the page, and print it."""
    made = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    write_between(PAGE, BEGIN, END, made)
    print(made)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="measure what is not there yet, then write the table")
    running.add_argument("--data-dir", help="where Fashion-MNIST and CIFAR-10 lie")
    running.add_argument("--rounds", type=int, default=5)
    running.add_argument("--threads", type=int, default=torch.get_num_threads())
    running.set_defaults(do=run)
    commands.add_parser("table", help="only write the table").set_defaults(do=lambda _: write_table())
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    main()
