"""The papers' tables and figures, cell by cell. Resumable: give the same command again to go on.

    python benchmarks/papers/run.py --list                          every work, its cost, and what is done
    python benchmarks/papers/run.py --minutes 60 --data-dir DIR     what fits into an hour, cheapest first
    python benchmarks/papers/run.py NAME... --data-dir DIR          works, cells or tables by name, or with *
    python benchmarks/papers/run.py --page                          docs/results.md, pictures and the README's rows

Every finished run adds one JSON file to ``benchmarks/papers/results``, and none is ever removed: a run that failed
stays there as one that failed. A run that was cut off goes on from its last checkpoint, at most a minute back. Noise,
batches and initial weights are drawn afresh in every private run; a number behind a name counts repetitions.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from papers.outcomes import RESULTS, result_files, settings_of, words_of
from papers.registry import Registry, Work, load

FORMAT = 1
RUNS = Path("runs") / "papers"


class CannotRunError(Exception):
    """A work that was refused before it began, or cut off: nothing to keep as a result."""


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="works, cells or tables")
    parser.add_argument(
        "--minutes", type=float, help="stop beginning runs that would not fit into so many minutes"
    )
    parser.add_argument("--data-dir", help="where data sets lie")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where run folders go while they run")
    parser.add_argument("--list", action="store_true", help="every work, its cost, and what is done")
    parser.add_argument(
        "--page", action="store_true", help="write the page, the pictures and the README's rows"
    )
    chosen = parser.parse_args(arguments)
    registry = load()
    works = named(registry, chosen.names)
    if unknown := [name for name in chosen.names if not named(registry, [name])]:
        parser.error(f"nothing is called {', '.join(unknown)}; see --list")
    if chosen.list:
        print(listed(works))
        return 0
    if not (chosen.names or chosen.minutes is not None or chosen.page):
        parser.error("name what to run, or say --minutes, --list or --page")
    missed = 0
    if chosen.names or chosen.minutes is not None:
        try:
            missed = run_all(registry, works, chosen.minutes, chosen.data_dir, chosen.runs)
        except KeyboardInterrupt:
            print(
                f"stopped. The run is kept in {chosen.runs}; the same command goes on with it.",
                file=sys.stderr,
            )
            return 130
    if chosen.page:
        from papers.page import write

        write(registry)
    return 1 if missed else 0


def named(registry: Registry, names: list[str]) -> list[Work]:
    """The works that are meant: by their own name, that of a cell or a table, or a pattern of one; all by none."""
    if not names:
        return list(registry.works.values())
    wanted = set()
    for name in names:
        wanted.update(fnmatch.filter(registry.works, name))
        for table in registry.tables.values():
            whole = fnmatch.fnmatch(table.name, name)
            wanted.update(c.work for c in table if c.work and (whole or fnmatch.fnmatch(c.name, name)))
    return [work for work in registry.works.values() if work.name in wanted]


def listed(works: list[Work], results: Path = RESULTS) -> str:
    """One line a work, cheapest first: minutes, runs made of runs wanted, scale, name."""
    lines = ["minutes  runs  scale    name"]
    for work in sorted(works, key=lambda work: (work.minutes, work.name)):
        made = len(result_files(work.name, results))
        lines.append(f"{work.minutes:7.1f}  {made}/{work.repetitions}   {work.scale:<7}  {work.name}")
    left = sum(
        work.minutes * max(0, work.repetitions - len(result_files(work.name, results))) for work in works
    )
    return "\n".join([*lines, f"{left / 60:.0f} hours of two cores are left"])


def due(works: list[Work], results: Path = RESULTS) -> list[tuple[Work, int]]:
    """Runs that are still to be made, cheapest first; of equal ones the first repetitions come first."""
    found = [
        (work, number)
        for work in works
        for number in range(1, work.repetitions + 1)
        if number not in result_files(work.name, results)
    ]
    return sorted(
        found, key=lambda pair: (pair[0].minutes, pair[1], pair[0].chosen_by is not None, pair[0].name)
    )


def run_all(
    registry: Registry, works: list[Work], minutes: float | None, data_dir: str | None, runs: Path,
    results: Path = RESULTS,
) -> int:  # fmt: skip
    """Make the runs that are due and fit; returns how many failed."""
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    failed = 0
    for work, number in due(works, results):
        if time.monotonic() + 60 * work.minutes > until:
            continue
        if words_of(registry, work, results) is None or settings_of(registry, work, results) is None:
            print(f"{work.name}: waits for {work.chosen_by[0]}", flush=True)  # type: ignore[index]
            continue
        try:
            result = one_run(registry, work, number, data_dir, runs, results)
        except CannotRunError as error:
            print(f"{work.name}: left out. {error}", flush=True)
            continue
        told = result.get("failed") or shown(result)
        print(f"{work.name}-{number}: {told}, {result['seconds'] / 60:.1f} minutes", flush=True)
        failed += "failed" in result
    return failed


def one_run(
    registry: Registry, work: Work, number: int, data_dir: str | None, runs: Path, results: Path = RESULTS
) -> dict[str, Any]:
    """Make or go on with one run, and keep what came of it, good or bad.

    What was refused before anything was run, such as data that is not there, is no result and is not kept.
    """
    folder = runs / f"{work.name}-{number}"
    _free(folder)
    started, worked = time.perf_counter(), sum(os.times()[:4])
    result: dict[str, Any] = {
        "format": FORMAT, "work": work.name, "number": number, "scale": work.scale, "reduced": work.reduced,
        "command": work.command, **_circumstances(),
    }  # fmt: skip
    try:
        if work.experiment is None:
            words = words_of(registry, work, results)
            assert words is not None
            found = trained(words, folder, data_dir)
            result["command"] = "saltflat train " + " ".join(words)
        else:
            found = experimented(registry, work, number, folder, data_dir, results)
    except (RuntimeError, ArithmeticError) as error:
        found = {"failed": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - started}
    result |= _plain(found)
    # a machine that others use as well stretches the time; of a run that went on, this is the last part
    result["processor_seconds"] = round(sum(os.times()[:4]) - worked, 2)
    results.mkdir(parents=True, exist_ok=True)
    scratch = results / f".{work.name}-{number}.partial"
    scratch.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    scratch.replace(results / f"{work.name}-{number}.json")
    return result


def trained(words: tuple[str, ...], folder: Path, data_dir: str | None) -> dict[str, Any]:
    """One run through the real command line, begun or resumed, and what its folder holds."""
    import saltflat as sf
    from papers.experiments import Place, facts_of

    begun = Place(folder).begun
    command = [sys.executable, "-m", "saltflat", "train"]
    command += ["--resume", str(folder)] if begun else [*words, "--out", str(folder)]
    command += [*(["--data-dir", data_dir] if data_dir else []), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise CannotRunError(done.stderr.strip())
    if done.returncode < 0 or done.returncode == 130:
        raise CannotRunError("It was cut off, and goes on when it is run again.")
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-1000:])
    return facts_of(sf.Run.load(folder))


def experimented(
    registry: Registry, work: Work, number: int, folder: Path, data_dir: str | None, results: Path
) -> dict[str, Any]:
    """One run of a function, begun or resumed."""
    from papers.experiments import EXPERIMENTS, Place
    from saltflat.errors import SaltflatError

    assert work.experiment is not None
    settings = settings_of(registry, work, results)
    assert settings is not None
    try:
        return {"settings": settings} | EXPERIMENTS[work.experiment](
            Place(folder, number, data_dir), **settings
        )
    except SaltflatError as error:
        raise CannotRunError(str(error)) from error


def _free(folder: Path) -> None:
    """Move a folder aside from which no run can go on. What it recorded stays: what was spent was spent."""
    from papers.experiments import Place

    if not folder.exists() or Place(folder).begun:
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.cut-off-{number}")).exists():
        number += 1
    folder.rename(aside)


def _circumstances() -> dict[str, Any]:
    """Version and class of machine: nothing that names a machine."""
    from saltflat.bench.machine import facts

    known = facts()
    machine = {key: known[key] for key in ("processor", "cores", "threads", "system")}
    return {"version": known["saltflat"], "code": known["code"], "torch": known["torch"], "machine": machine}


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """JSON for a result: the plan as its file has it, ε by both accountants, words for what is not finite."""
    found = dict(found)
    plan = found.pop("plan", None)
    if plan is not None:
        by = {"pld": plan.epsilon, "rdp": plan.epsilon_rdp}
        found = {"plan": plan.to_dict(), "epsilon": by, "delta": plan.budget.delta} | found
    return _finite(found)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def shown(result: dict[str, Any]) -> str:
    """The one number of a result that says most."""
    for key in ("average_accuracy", "accuracy", "average_distance", "ratio"):
        if isinstance(result.get(key), float):
            return f"{key} {result[key]:.4g}"
    return "done"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    sys.exit(main())
