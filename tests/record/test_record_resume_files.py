"""Lock, journal, packed files and hostile checkpoints: refused in a sentence, and nothing is changed or run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import core_helpers
import saltflat as sf
from core_helpers import bounded, contents, small_data, small_net, stop_after
from saltflat import plans
from saltflat.errors import InputError, SaltflatError
from saltflat.plan import Plan, QuantileClipping, Swa
from saltflat.record.agreement import check_agreement
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError
from saltflat.record.checkpoint import Journal, read_journal
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger, LedgerError, entry_hash
from saltflat.record.lock import FolderLock, InUseError
from saltflat.record.packed import packed, unpacked

COMMON = core_helpers.COMMON | {"steps": 6}
PLAN = plans.dp_sat(
    rho=0.1, averaging=Swa(0.1), clipping=QuantileClipping(count_noise=1.0), optimizer="adam", **COMMON
)


# --- lock -----------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    """Fails without the lock (tried); a killed holder leaves nothing to clean up."""
    code = (
        "import sys, pathlib\nfrom saltflat.record.lock import FolderLock\n"
        "lock = FolderLock(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    for out in ({"out": tmp_path}, {"out": tmp_path, "seed": 1}):
        with pytest.raises(InUseError, match=f"is in use by process {other.pid} on "):
            sf.fit(small_net(), small_data(), PLAN, progress=False, **out)
    other.kill()
    other.communicate()
    lock = FolderLock(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []
    lock.release()


def test_a_running_run_cannot_be_resumed_or_replaced(tmp_path: Path) -> None:
    """Also not by the process that runs it."""
    walk = sf.steps(small_net(), small_data(), PLAN, out=tmp_path / "run")
    next(walk)
    for options in ({"out": tmp_path / "run"}, {"resume": tmp_path / "run"}):
        with pytest.raises(InUseError, match=f"process {os.getpid()}"):
            sf.fit(small_net(), small_data(), PLAN, progress=False, **options)
    (tmp_path / "run" / "lock").write_text("not JSON")
    with pytest.raises(InUseError, match="another process"):
        sf.fit(small_net(), small_data(), PLAN, progress=False, out=tmp_path / "run")
    walk.close()
    sf.fit(small_net(), small_data(), PLAN, progress=False, resume=tmp_path / "run")


def test_a_run_that_was_refused_lets_the_folder_go(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        sf.fit(small_net(), small_data(), resume=tmp_path, progress=False)
    cut_off(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(InputError, match="seed"):
            sf.fit(small_net(), small_data(), resume=tmp_path / "run", seed=1, progress=False)


def test_a_run_that_died_before_it_began_leaves_the_name_free(tmp_path: Path) -> None:
    """A folder becomes a run with its plan, which is written last."""
    cut_off(tmp_path / "run", at=1)
    for name in ("plan.json", "certificate.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(InputError, match="already holds a run"):  # its ledger has a release
        sf.fit(small_net(), small_data(), PLAN, out=tmp_path / "run", progress=False)
    first = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0]
    (tmp_path / "run" / "ledger.jsonl").write_text(first + "\n")
    run = sf.fit(small_net(), small_data(), PLAN, out=tmp_path / "run", progress=False)
    assert run.certificate.data["ledger_entries"] == 7


# --- files ----------------------------------------------------------------------------------------------


def test_any_changed_byte_of_a_packed_file_is_found() -> None:
    """Fails when the hash is not compared (tried)."""
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2).t()}
    content = bytes(packed(tensors, {"step": 3, "sha256": "0" * 64}))
    assert unpacked(content)[1] == {"step": 3, "sha256": "0" * 64}
    for place in range(len(content)):
        with pytest.raises(DamagedError):
            unpacked(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DamagedError):
            unpacked(content[:place])
    with pytest.raises(DamagedError):
        unpacked(content + b"\0")


def test_a_journal_gives_back_what_was_appended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for step in range(3):
        journal.append({"w": torch.full((2,), float(step))}, {"step": step})
    assert journal.size == (tmp_path / "j").stat().st_size
    found = list(read_journal(tmp_path / "j"))
    assert [(facts["step"], float(tensors["w"][0])) for tensors, facts in found] == [(0, 0), (1, 1), (2, 2)]
    journal.clear()
    journal.append({"w": torch.zeros(1)}, {"step": 9})
    journal.close()
    assert [facts["step"] for _, facts in read_journal(tmp_path / "j")] == [9]
    assert list(read_journal(tmp_path / "none")) == []


def test_a_cut_journal_ends_early_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    """Any length of a journal gives its whole records; a changed byte before the last record is an error."""
    journal = Journal(tmp_path / "j")
    for step in range(3):
        journal.append({"w": torch.full((2,), float(step))}, {"step": step})
    journal.close()
    content = (tmp_path / "j").read_bytes()
    each = len(content) // 3
    for length in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:length])
        assert len(list(read_journal(tmp_path / "cut"))) == length // each
        (tmp_path / "cut").write_bytes(content[: 2 * each] + b"\0" * (length // 3))
        assert len(list(read_journal(tmp_path / "cut"))) == 2
    for place in range(0, len(content), 3):
        (tmp_path / "cut").write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        if place < 2 * each + 24:
            with pytest.raises(DamagedError):
                list(read_journal(tmp_path / "cut"))
        else:
            assert len(list(read_journal(tmp_path / "cut"))) == 2


def test_an_entry_cut_short_is_written_over(tmp_path: Path) -> None:
    """Its release was never drawn. Fails when the rest of the line stays in the file (tried)."""
    ledger = Ledger(tmp_path / "l")
    ledger.open_run(plan_hash="ab", randomness="fast")
    ledger.close()
    whole = (tmp_path / "l").read_bytes()
    for tail in (b'{"entry": 1, "kind": "rel', b"\xff\xfe", b""):
        (tmp_path / "l").write_bytes(whole + tail)
        if tail:
            with pytest.raises(LedgerError):
                Ledger.read(tmp_path / "l")
        again = Ledger.read(tmp_path / "l", cut_short=True)
        assert (tmp_path / "l").read_bytes() == whole + tail
        again.resume_run(step=0, replayed=0, lost=[])
        again.close()
        assert Ledger.read(tmp_path / "l").entries == again.entries
        (tmp_path / "l").write_bytes(whole)


def test_every_release_says_what_it_was(tmp_path: Path) -> None:
    """ε can be recomputed from the ledger alone, and each entry names its plan."""
    plan = plans.dp_sam(rho=0.1, sampling="truncated-poisson", **COMMON)
    sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", progress=False)
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    check_agreement(ledger, plan)
    for step, entry in enumerate(ledger.entries[1:], start=1):
        assert entry["plan_hash"] == plan.hash
        assert (entry["step"], entry["queries"], entry["randomness"]) == (step, 2, "fast")
        assert (entry["noise_multipliers"], entry["rate"], entry["clip_norm"]) == ([9.0, 3.0], 0.2, 1.0)
        assert (entry["population"], entry["cap"]) == (40, plan.sampling.cap)


def rehashed(entries: list[dict[str, Any]]) -> Ledger:
    """A consistent chain over changed entries."""
    ledger = Ledger()
    for entry in entries:
        content = {key: value for key, value in entry.items() if key not in ("entry", "previous", "hash")}
        made = {"entry": len(ledger.entries), **content, "previous": ledger.head}
        ledger.entries.append(made | {"hash": entry_hash(made)})
    return ledger


CHANGES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "halved noise": lambda e: e[2].update(noise_multipliers=[1.5]),
    "rate": lambda e: e[3].update(rate=0.1),
    "step twice": lambda e: e.insert(2, e[1]),
    "step left out": lambda e: e.pop(2),
    "phase": lambda e: e[2].update(phase=1),
    "one more": lambda e: e.append(e[-1] | {"step": 7}),
    "queries": lambda e: e[2].update(queries=2),
    "tier": lambda e: e[2].update(randomness="exact"),
    "no beginning": lambda e: e.pop(0),
    "another plan": lambda e: e[0].update(plan_hash="00"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_ledger_of_another_plan_is_refused(change: str, tmp_path: Path) -> None:
    """Also one whose chain was made consistent again. Each key is compared."""
    plan = plans.dp_sgd(**COMMON)
    sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", progress=False)
    entries = Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
    check_agreement(rehashed(entries), plan)
    CHANGES[change](entries)
    with pytest.raises(LedgerError):
        check_agreement(rehashed(entries), plan)


# --- hostile and damaged folders ----------------------------------------------------------------------------


def cut_off(folder: Path, at: int = 4, plan: Plan = PLAN, **options: Any) -> None:
    """A private run that stopped after a few steps, with a checkpoint at 0 and a journal."""
    options |= {"progress": False, "callbacks": [stop_after(at)]}
    with pytest.raises(KeyboardInterrupt):
        sf.fit(small_net(), small_data(), plan, out=folder, **options)


def tried(folder: Path) -> bool:
    """Whether a folder could be resumed. If not: an error of ours, and nothing in it changed."""
    before = contents(folder)
    try:
        run = sf.fit(small_net(), small_data(), resume=folder, progress=False)
    except SaltflatError:
        run = None
    if run is None:
        assert contents(folder) == before
        return False
    check_agreement(Ledger.read(folder / "ledger.jsonl"), run.plan)
    assert Ledger.read(folder / "ledger.jsonl").releases == 6
    return True


FILES = (
    "checkpoint/state.safetensors", "checkpoint/releases.journal", "ledger.jsonl", "plan.json", "run.json",
    "certificate.json",
)  # fmt: skip


@pytest.mark.slow
def test_damaged_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """Bytes changed, cut off and put in, in every file that a resume reads. Damage to the checkpoint itself is
    always found.
    """
    cut_off(tmp_path / "run")
    resumed = []

    @given(st.data())
    @bounded(150)
    def damaged(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(FILES))
        content = (tmp_path / "run" / name).read_bytes()
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["change", "cut", "insert", "noise"]))
        some = data.draw(st.binary(min_size=1, max_size=8))
        changed = {
            "change": content[:place] + bytes([content[place] ^ (some[0] or 1)]) + content[place + 1 :],
            "cut": content[:place],
            "insert": content[:place] + some + content[place:],
            "noise": some,
        }[kind]
        shutil.rmtree(tmp_path / "try", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "try")
        (tmp_path / "try" / name).write_bytes(changed)
        went_on = tried(tmp_path / "try")
        assert not (went_on and name == FILES[0])
        resumed.append(went_on)

    damaged()
    assert any(resumed)
    assert not all(resumed)


class Trap:
    """Would write a file if it were ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_is_never_opened(name: str, tmp_path: Path) -> None:
    cut_off(tmp_path / "run")
    for protocol in (0, 4):
        (tmp_path / "run" / name).write_bytes(pickle.dumps(Trap(tmp_path / "trapped"), protocol))
        tried(tmp_path / "run")
    torch.save({"state": Trap(tmp_path / "trapped")}, tmp_path / "run" / name)
    tried(tmp_path / "run")
    assert not (tmp_path / "trapped").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.sampled_from([0.5, "inf", "x", 1e300, -1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tensor", "number", "tuple", "table", "step", "beside_weight"]), inner
        )
    ),
    max_leaves=6,
)


@pytest.mark.slow
def test_hostile_checkpoints_with_a_right_hash_are_refused_or_harmless(tmp_path: Path) -> None:
    """Anything may stand in the facts, and any tensor may be missing, or of another form. Fails with a bare
    traceback when a field is taken on trust (tried for the optimizer's state).
    """
    cut_off(tmp_path / "run", checkpoint_every=0)
    folder = RunFolder(tmp_path / "run")
    tensors, facts = folder.checkpoints.read()

    @given(st.data())
    @bounded(200)
    def hostile(data: st.DataObject) -> None:
        changed, forged = dict(tensors), json.loads(json.dumps(facts))
        if data.draw(st.booleans()):
            path, at = forged, data.draw(st.sampled_from(sorted(forged)))
            while isinstance(path[at], dict | list) and path[at] and data.draw(st.booleans()):
                path = path[at]
                at = data.draw(st.sampled_from(sorted(path) if isinstance(path, dict) else range(len(path))))
            path[at] = data.draw(JSON)
        else:
            name = data.draw(st.sampled_from(sorted(tensors)))
            form = data.draw(st.sampled_from([None, torch.zeros(0), torch.ones(7), torch.zeros(5).long()]))
            if form is None:
                del changed[name]
            else:
                changed[name] = form
        shutil.rmtree(tmp_path / "try", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "try")
        write_whole(tmp_path / "try" / FILES[0], packed(changed, forged))
        tried(tmp_path / "try")

    hostile()


def test_a_newer_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    cut_off(tmp_path / "run")
    tensors, facts = RunFolder(tmp_path / "run").checkpoints.read()
    write_whole(tmp_path / "run" / FILES[0], packed(tensors, facts | {"saltflat_checkpoint": 2}))
    with pytest.raises(InputError, match=r"(?s)checkpoint=2.*Update saltflat"):
        sf.fit(small_net(), small_data(), resume=tmp_path / "run", progress=False)


def test_a_checkpoint_cannot_make_a_private_run_predictable(tmp_path: Path) -> None:
    """The ledger said at the beginning whether there is a seed."""
    cut_off(tmp_path / "run")
    tensors, facts = RunFolder(tmp_path / "run").checkpoints.read()
    facts["setup"] |= {"seed": 3, "device": "cpu"}
    tensors |= {f"generator/{name}": torch.get_rng_state() for name in ("torch", "sampling", "noise")}
    write_whole(tmp_path / "run" / FILES[0], packed(tensors, facts))
    with pytest.raises(DamagedError, match="seed"):
        sf.fit(small_net(), small_data(), resume=tmp_path / "run", progress=False)


@pytest.mark.parametrize("every", [0.0, 60.0])
def test_a_ledger_that_is_behind_is_refused(every: float, tmp_path: Path) -> None:
    """Less recorded than released: cut, or exchanged for that of another run. Fails without the check (tried)."""
    cut_off(tmp_path / "run", checkpoint_every=every)
    lines = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(LedgerError, match="cut or exchanged"):
        sf.fit(small_net(), small_data(), resume=tmp_path / "run", progress=False)
    cut_off(tmp_path / "other", plan=PLAN.changed(notes=("another",)))
    shutil.copy(tmp_path / "other" / "ledger.jsonl", tmp_path / "run" / "ledger.jsonl")
    with pytest.raises(LedgerError, match="another plan"):
        sf.fit(small_net(), small_data(), resume=tmp_path / "run", progress=False)
    (tmp_path / "run" / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="it was removed"):
        sf.fit(small_net(), small_data(), resume=tmp_path / "run", progress=False)
