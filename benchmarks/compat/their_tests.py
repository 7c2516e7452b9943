"""Opacus's own tests, run on saltflat after changing their imports: what passes, what fails, and why.

    python benchmarks/compat/their_tests.py run                  every file, then the table in docs/opacus.md
    python benchmarks/compat/their_tests.py run --with-opacus    the same tests on Opacus itself, for comparison
    python benchmarks/compat/their_tests.py table                only write the table

The wheel of Opacus 1.6.0 ships its tests. Those of an installed Opacus are taken, or else the wheel is fetched by pip
into a temporary folder; so is torchvision, which makes up their images. They are copied, ``opacus`` becomes
``saltflat.compat.opacus`` in their import lines, and nothing else is changed. Every failure that is right has its
reason in ``reasons.py``; one that has none there, or a reason whose test passes, makes the exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from marks import between
from reasons import NOT_RUN, REASONS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "their-tests.json"
PAGE = HERE.parents[1] / "docs" / "opacus.md"
BEGIN = "<!-- table: benchmarks/compat/their_tests.py table -->"
END = "<!-- end of their tests -->"
OPACUS, TORCHVISION = "1.6.0", "0.28.0"
# Import lines, and names of modules in quotes: a logger is called as its module is.
IMPORT = re.compile(r"""(^\s*(?:from|import) |")opacus(?=[. ]|$)""", re.MULTILINE)
CONFTEST = '''\
"""Few cases of each property, the same ones each time; and torchvision without its compiled part."""
import hypothesis
import torch

hypothesis.settings.register_profile(
    "few", max_examples={cases}, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("few")
try:
    import torchvision
except RuntimeError:  # built for another torch: two operations are missing that these tests do not call
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    declared = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        declared.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
'''


def changed(source: str) -> str:
    """A test file after its import lines were changed.

    >>> changed("from opacus.layers import DPLSTM")
    'from saltflat.compat.opacus.layers import DPLSTM'
    """
    return IMPORT.sub(r"\1saltflat.compat.opacus", source)


def fetched(requirement: str, folder: Path) -> Path:
    """A package without what it requires, in a folder of its own."""
    target = folder / requirement.partition("=")[0]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    subprocess.run([*command, requirement], check=True)
    return target


def their_tests(folder: Path) -> tuple[Path, list[Path]]:
    """Where the tests of Opacus lie, and which folders must be on the path to import it."""
    # Not by find_spec: beside this script lies another one that is called opacus.
    held = [each for each in importlib.metadata.distributions(name="opacus") if each.version == OPACUS]
    tests = Path(str(held[0].locate_file("opacus/tests"))) if held else None
    if tests is not None and tests.is_dir():
        return tests, []
    target = fetched(f"opacus=={OPACUS}", folder)
    return target / "opacus" / "tests", [target]


def copied(tests: Path, folder: Path, change: bool, cases: int) -> Path:
    """The tests as a package of their own, with their imports changed if asked."""
    target = folder / "their_tests"
    for path in sorted(tests.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        place = target / path.relative_to(tests)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(changed(source) if change else source, encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST.format(cases=cases), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return target


def names_of(tests: Path) -> list[str]:
    """The files that hold tests, those that are not run apart."""
    every = [path.relative_to(tests) for path in [*tests.rglob("*_test.py"), tests / "prv_accountant.py"]]
    return sorted(name for path in every if (name := path.with_suffix("").as_posix()) not in NOT_RUN)


def one_file(target: Path, name: str, paths: list[Path]) -> dict[str, Any]:
    """What became of each test in a file."""
    folder = target.parent
    report = folder / "report.xml"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(folder), "--junit-xml", str(report), str(target / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name}: pytest ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return outcomes(ElementTree.parse(report).getroot())


def outcomes(report: ElementTree.Element) -> dict[str, Any]:
    """Passed and skipped as numbers, failed by name, from pytest's report."""
    failed: dict[str, str] = {}
    skipped, every = set(), set()
    for case in report.iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '').partition('[')[0]}"
        every.add(name)
        for trouble in (*case.findall("failure"), *case.findall("error")):
            failed[name] = (
                (trouble.get("message") or "").splitlines()[0][:160] if trouble.get("message") else ""
            )
        if case.find("skipped") is not None:
            skipped.add(name)
    skipped -= set(failed)
    return {
        "passed": len(every) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": dict(sorted(failed.items())),
    }


def faults(files: dict[str, Any]) -> list[str]:
    """Failures without a reason, and reasons without a failure."""
    failing = {f"{name}::{test}" for name, found in files.items() for test in found["failed"]}
    known = {key for key in REASONS if key.partition("::")[0] in files}
    return [f"{test} failed, and reasons.py has no reason for it" for test in sorted(failing - known)] + [
        f"{test} passed, and reasons.py says that it cannot" for test in sorted(known - failing)
    ]


def run(arguments: argparse.Namespace) -> int:
    """All files, or those that were asked for; the results are written when all are done."""
    library = "opacus" if arguments.with_opacus else "saltflat"
    conditions = {"opacus": OPACUS, "torch": torch.__version__, "cases": arguments.cases}
    files: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tests, paths = their_tests(folder)
        if importlib.util.find_spec("torchvision") is None:
            paths = [*paths, fetched(f"torchvision=={TORCHVISION}", folder)]
        target = copied(tests, folder, not arguments.with_opacus, arguments.cases)
        chosen = [name for name in names_of(tests) if not arguments.only or name in arguments.only]
        for name in chosen:
            found = files[name] = one_file(target, name, paths)
            print(f"{name:60}{found['passed']:5} passed{len(found['failed']):5} failed", flush=True)
            for test, message in found["failed"].items():
                print(f"    {test}: {message}", flush=True)
    if not arguments.only:
        for found in files.values():  # messages may hold numbers of this machine
            found["failed"] = sorted(found["failed"])
        held = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        held[library] = {"conditions": conditions, "files": files}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        if "saltflat" in held:
            write_table()
    found_faults = [] if arguments.with_opacus else faults(files)
    for fault in found_faults:
        print(fault, file=sys.stderr)
    return 1 if found_faults else 0


def rows(files: dict[str, Any]) -> list[tuple[str, int, int, str]]:
    """One row a file, or a folder of files; the names of what failed, with the reason."""
    found: dict[str, tuple[int, list[str]]] = {}
    for name, outcome in files.items():
        place = f"{name.partition('/')[0]}/" if "/" in name else name
        passed, failed = found.get(place, (0, []))
        own = [f"{name}::{test}" for test in outcome["failed"]]
        found[place] = passed + outcome["passed"], failed + own
    made = []
    for place, (passed, failed) in found.items():
        by_reason: dict[str, list[str]] = {}
        for test in failed:
            by_reason.setdefault(REASONS.get(test, "no reason is known"), []).append(test)
        whys = []
        for reason, tests in by_reason.items():
            names = sorted({test.rpartition(".")[2] for test in tests})
            whys.append(f"{', '.join(f'`{each}`' for each in names)}: {reason}")
        made.append((place, passed, len(failed), "; ".join(whys)))
    return made


def table(held: dict[str, Any]) -> str:
    """Counts and reasons in Markdown."""
    own = held["saltflat"]
    lines = ["| file | passed | failed | which, and why |", "|---|---|---|---|"]
    total = [0, 0]
    for place, passed, failed, why in rows(own["files"]):
        lines.append(f"| `{place}` | {passed} | {failed} | {why} |")
        total[0] += passed
        total[1] += failed
    skipped = sum(found.get("skipped", 0) for found in own["files"].values())
    lines.append(f"| together | {total[0]} | {total[1]} | |")
    conditions = own["conditions"]
    said = (
        f"Opacus {conditions['opacus']}, torch {conditions['torch']} on a CPU, hypothesis with "
        f"{conditions['cases']} cases a test."
    )
    if skipped:
        said += f" {skipped} more are skipped by marks of their own."
    peer = held.get("opacus")
    if peer is not None and peer["conditions"] == conditions:
        said += " " + beside(own["files"], peer["files"])
    return "\n".join([*lines, "", said])


def beside(own: dict[str, Any], peer: dict[str, Any]) -> str:
    """What Opacus says about its own tests, as a sentence."""
    theirs = {f"{name}::{test}" for name, found in peer.items() for test in found["failed"]}
    mine = {f"{name}::{test}" for name, found in own.items() for test in found["failed"]}
    failing = sum(len(found["failed"]) for found in peer.values())
    passing = sum(found["passed"] for found in peer.values())
    both = f", {len(theirs & mine)} of them here as well" if theirs & mine else ""
    return f"Opacus itself, run in the same way: {passing} passed, {failing} failed{both}."


def write_table() -> None:
    """Put the table between its marks in the page, and print it."""
    made = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), BEGIN, END, made), encoding="utf-8")
    print(made)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="run the tests, then write the table")
    running.add_argument("--with-opacus", action="store_true", help="leave the imports as they are")
    running.add_argument("--cases", type=int, default=12, help="cases of each property (default: 12)")
    running.add_argument(
        "--only", nargs="+", metavar="FILE", help="some files, without .py; nothing is kept of it"
    )
    running.set_defaults(do=run)
    commands.add_parser("table", help="only write the table").set_defaults(do=lambda _: write_table() or 0)
    arguments = parser.parse_args()
    return int(arguments.do(arguments))


if __name__ == "__main__":
    sys.exit(main())
