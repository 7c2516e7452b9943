"""Runs in a process of its own: starts training in child processes, kills them, resumes them, and looks.

    python crash_harness.py kills COUNT FOLDER     SIGKILL at random moments
    python crash_harness.py cuts MODE FOLDER       the end at every single write, MODE seeded or private
    python crash_harness.py resumes FOLDER         the same while a run is being resumed

Children are forked, so that torch is imported once. Prints one JSON object: what was seen, and every fault.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for core_helpers

import torch
from safetensors.torch import load

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat import plans
from saltflat.accounting import epsilon
from saltflat.plan import Ema, Plan, QuantileClipping, Swa
from saltflat.record.agreement import check_agreement
from saltflat.record.checkpoint import Checkpoints
from saltflat.record.ledger import Ledger
from saltflat.training.build import Mechanism

COMMON: dict[str, Any] = {"population": 40, "batch_size": 8, "delta": 1e-3, "noise_multiplier": 3.0}
SEED = 5


def some_plans(steps: int) -> list[Plan]:
    """Methods with state of every kind."""
    return [
        plans.sai(rho=0.1, averaging=Swa(0.2), steps=steps, **COMMON),
        plans.dp_sam(rho=0.1, averaging=Ema(), steps=steps, **COMMON),
        plans.dp_sgd(
            optimizer="adam-bc", clipping=QuantileClipping(count_noise=1.0), steps=steps, **COMMON
        ),
        plans.sai(rho=0.1, switch="automatic", optimizer="adam", steps=steps, **COMMON),
    ]  # fmt: skip


class Case:
    """One plan, seeded or private, in one folder; with a witness of every release that was made."""

    def __init__(self, plan: Plan, folder: Path, seeded: bool, every: float = 0.02) -> None:
        self.plan, self.folder, self.seeded, self.every = plan, folder, seeded, every
        self.witness = folder.with_name(f"{folder.name}.witness")

    def train(self) -> None:
        """Start, or go on if the folder holds a run."""
        handle = os.open(self.witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        release = Mechanism.release

        def witnessed(*arguments: Any) -> Any:
            released = release(*arguments)
            os.pwrite(handle, b".", os.fstat(handle).st_size)
            return released

        Mechanism.release = witnessed  # type: ignore[method-assign]
        if (self.folder / "plan.json").exists():
            where: dict[str, Any] = {"resume": self.folder}
        else:
            where = {"out": self.folder, "seed": SEED if self.seeded else None}
        sf.fit(
            small_net(), small_data(), self.plan,
            evaluate=small_data(9, 1), progress=False, checkpoint_every=self.every, **where,
        )  # fmt: skip

    @property
    def released(self) -> int:
        """Steps whose release was made, at least in part."""
        count = self.witness.stat().st_size if self.witness.exists() else 0
        return -(-count // len(self.plan.phases[0].query_noises))

    def check_after_death(self) -> None:
        """No file is half-written, and nothing was released that is not recorded."""
        for path in self.folder.rglob("*") if self.folder.exists() else ():
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            if path.suffix == ".safetensors":
                load(path.read_bytes())
        if (self.folder / "checkpoint" / "state.safetensors").exists():
            Checkpoints(self.folder).read()
            list(Checkpoints(self.folder).releases())
        recorded = 0
        if (self.folder / "ledger.jsonl").exists():
            ledger = Ledger.read(self.folder / "ledger.jsonl", cut_short=True)
            recorded = ledger.releases
            if ledger.entries:
                check_agreement(ledger, self.plan)
        redrawn = self.seeded  # the same numbers again, which is no new release
        assert self.released <= recorded or redrawn, f"{self.released} released, {recorded} recorded"

    def check_at_the_end(self, deaths: int) -> None:
        """Everything that was planned was recorded, once; and the folder holds a finished run."""
        ledger = Ledger.read(self.folder / "ledger.jsonl")
        check_agreement(ledger, self.plan)
        assert ledger.releases == self.plan.steps
        assert list(ledger.events()) == list(self.plan.events())
        assert epsilon(ledger.events(), 1e-3) <= self.plan.epsilon
        lost = [step for entry in ledger.entries if entry["kind"] == "resume" for step in entry["lost"]]
        assert len(lost) <= deaths, f"{deaths} deaths, and lost {lost}"
        certificate = json.loads((self.folder / "certificate.json").read_text())
        assert certificate["finished"]
        assert certificate["ledger_head"] == ledger.head
        rows = [json.loads(line)["step"] for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        assert rows == sorted(set(rows))
        assert rows[-1] == self.plan.steps
        names = {path.name for path in self.folder.iterdir()}
        assert not {name for name in names if name.endswith(".partial")} | names & {"lock", "checkpoint"}

    def outcome(self) -> dict[str, Any]:
        """What must be the same however often a seeded run was killed."""
        kept = {}
        for name in ("weights.safetensors", "average.safetensors", "metrics.jsonl", "plan.json"):
            path = self.folder / name
            kept[name] = path.read_bytes().hex() if path.exists() else None
        chain = ("entry", "previous", "hash")
        entries = [e for e in Ledger.read(self.folder / "ledger.jsonl").entries if e["kind"] != "resume"]
        return kept | {"entries": [{k: v for k, v in e.items() if k not in chain} for e in entries]}


def child(work: Callable[[], None]) -> int:
    """Do something in a process of its own; returns its number."""
    process = os.fork()
    if process:
        return process
    try:
        work()
        os._exit(0)
    except BaseException:  # reported, then the process ends whatever it was
        import traceback

        traceback.print_exc()
        os._exit(1)


def ended(process: int) -> int:
    """Wait; the signal that ended it as a negative number, or its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kills(count: int, root: Path, chance: random.Random) -> dict[str, Any]:
    """SIGKILL at random moments; a third of the resumed runs are killed again."""
    reference: dict[int, dict[str, Any]] = {}
    length: dict[int, float] = {}
    chosen = some_plans(12)
    for number, plan in enumerate(chosen):
        assert plan.epsilon > 0  # computed once, here, for all children
        whole = Case(plan, root / f"whole-{number}", seeded=True)
        Case(plan, root / f"warm-{number}", seeded=False).train()
        started = time.perf_counter()
        assert ended(child(whole.train)) == 0
        length[number] = time.perf_counter() - started
        reference[number] = whole.outcome()
    faults, done, points, before, tries = [], 0, [], 0, 0
    while done < count:
        number, seeded, tries = done % len(chosen), done // len(chosen) % 2 == 0, tries + 1
        case = Case(chosen[number], root / f"case-{done}-{tries}", seeded)
        deaths = 0
        try:
            while True:
                process = child(case.train)
                if deaths == 0 or chance.random() < 0.33:
                    # before a quarter of it, there is hardly anything that could be lost
                    time.sleep(chance.uniform(0.25, 1.0) * length[number])
                    os.kill(process, signal.SIGKILL)
                code = ended(process)
                if code == -signal.SIGKILL:
                    deaths += 1
                    case.check_after_death()
                    exists = (case.folder / "plan.json").exists()
                    before += not exists
                    ledger = case.folder / "ledger.jsonl"
                    points.append(Ledger.read(ledger, cut_short=True).releases if exists else 0)
                    continue
                assert code == 0, f"ended with {code}"
                break
            if deaths == 0:  # it was done before the signal came: another try
                continue
            case.check_at_the_end(deaths)
            assert not seeded or case.outcome() == reference[number], "differs from the uninterrupted run"
        except Exception as error:
            faults.append(f"{case.folder.name}: {type(error).__name__}: {error}")
        done += 1
    return {"cases": done, "kills": len(points), "points": points, "before_start": before, "faults": faults}


CUT, AT_A_WRITE = 9, 8
CALLS = ("write", "fsync", "replace", "ftruncate", "unlink")


def cut_at(number: int, half: bool, work: Callable[[], None]) -> Callable[[], None]:
    """The work, ending without a trace before its write of this number, or in the middle of it."""

    def doomed() -> None:
        seen = 0

        def patch(name: str) -> None:
            call = getattr(os, name)

            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == number:
                    if half and name == "write":
                        call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    os._exit(AT_A_WRITE if name == "write" else CUT)
                return call(*arguments, **options)

            setattr(os, name, counted)

        for name in CALLS:
            patch(name)
        work()

    return doomed


def cuts(seeded: bool, root: Path) -> dict[str, Any]:
    """The end before, and in the middle of, every write of a run; each is then resumed."""
    plan = plans.sai(rho=0.1, averaging=Swa(0.2), steps=3, **COMMON)
    whole = Case(plan, root / "whole", seeded=True)
    whole.train()
    Case(plan, root / "warm", seeded=False).train()  # what it costs is computed here, once for all children
    reference, faults, number, run = whole.outcome(), [], 0, 0
    code = CUT
    while code in (CUT, AT_A_WRITE):
        number += 1
        for half in (False, True):
            if half and code != AT_A_WRITE:
                continue
            run += 1
            # every second one with a checkpoint after each step, the others by the journal alone
            case = Case(plan, root / f"cut-{number}-{half}", seeded, every=0.0 if number % 2 else 60.0)
            code = ended(child(cut_at(number, half, case.train)))
            faults += _resumed(case, code, reference if seeded else None, 1)
    return {"writes": number, "runs": run, "faults": faults}


def resumes(root: Path) -> dict[str, Any]:
    """The end at every write of a run that is being resumed."""
    plan = plans.sai(rho=0.1, averaging=Swa(0.2), steps=3, **COMMON)
    Case(plan, root / "warm", seeded=False).train()  # what it costs is computed here, once for all children
    # a private run that died with one release journalled and the second recorded, but lost
    first, number = Case(plan, root / "first", seeded=False, every=60.0), 0
    while not (path := first.folder / "ledger.jsonl").exists() or Ledger.read(path).releases < 2:
        shutil.rmtree(first.folder, ignore_errors=True)
        first.witness.unlink(missing_ok=True)
        number += 1
        ended(child(cut_at(number, False, first.train)))
    faults, number, code = [], 0, CUT
    while code in (CUT, AT_A_WRITE):
        number += 1
        case = Case(plan, root / f"again-{number}", seeded=False, every=0.0 if number % 2 else 60.0)
        shutil.copytree(first.folder, case.folder)
        shutil.copy(first.witness, case.witness)
        code = ended(child(cut_at(number, number % 3 == 0, case.train)))
        faults += _resumed(case, code, None, 2)
    return {"writes": number, "runs": number, "faults": faults}


def _resumed(case: Case, code: int, reference: dict[str, Any] | None, deaths: int) -> list[str]:
    try:
        assert code in (0, CUT, AT_A_WRITE), f"ended with {code}"
        case.check_after_death()
        assert ended(child(case.train)) == 0, "could not be resumed"
        case.check_at_the_end(deaths)
        if reference is not None:
            assert case.outcome() == reference, "differs from the uninterrupted run"
        shutil.rmtree(case.folder)
    except Exception as error:
        return [f"{case.folder.name}: {type(error).__name__}: {error}"]
    return []


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *rest = sys.argv[1:]
    place = Path(rest[-1])
    if what == "kills":
        result = kills(int(rest[0]), place, random.Random(20))
    elif what == "cuts":
        result = cuts(rest[0] == "seeded", place)
    else:
        result = resumes(place)
    print(json.dumps(result))
