"""Damaged plans, ledgers, journals, checkpoints, certificates and run folders: a sentence, or success.

Never another exception, and never a change to a file that was there. Each test starts from a valid file.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from fuzz_helpers import as_json, byte_damages, cases, damaged, snapshot, still_there, twisted, value_damages
from hypothesis import given
from hypothesis import strategies as st

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat import plans
from saltflat.errors import PrivacyWarning, SaltflatError
from saltflat.plan import Plan, QuantileClipping, Swa
from saltflat.plan.tuning import repeated_from_dict
from saltflat.record.agreement import check_agreement
from saltflat.record.certificate import Certificate
from saltflat.record.checkpoint import Journal, read_journal
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import GENESIS, Ledger, entry_hash
from saltflat.record.packed import packed, unpacked

pytestmark = pytest.mark.filterwarnings("ignore")

PLAN = plans.sai(
    population=40, batch_size=8, steps=6, delta=1e-3, noise_multiplier=3.0, rho=0.1, averaging=Swa(0.1),
    clipping=QuantileClipping(count_noise=1.0), learning_rate=0.1,
)  # fmt: skip
JSON, TOML = PLAN.to_json().encode(), PLAN.to_toml().encode()


def assert_sentence_or_success(action: Callable[[], Any]) -> bool:
    """Run it; whether it succeeded. A refusal must have words."""
    try:
        action()
    except SaltflatError as error:
        words = str(error)
    else:
        return True
    assert words.strip()
    return False


# --- plans ----------------------------------------------------------------------------------------------


def assert_plan_or_sentence(read: Callable[[str], Plan], content: bytes) -> None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return

    def use() -> None:
        plan = read(text)
        assert Plan.from_json(plan.to_json()) == plan  # what can be read can be written

    assert_sentence_or_success(use)


@given(damages=byte_damages, toml=st.booleans())
@cases(900)
def test_plan_files_with_damaged_bytes(damages: Any, toml: bool) -> None:
    assert_plan_or_sentence(
        Plan.from_toml if toml else Plan.from_json, damaged(TOML if toml else JSON, damages)
    )


@given(damages=value_damages)
@cases(900)
def test_plan_files_with_other_values(damages: Any) -> None:
    value = twisted(PLAN.to_dict(), damages)
    assert_plan_or_sentence(Plan.from_json, as_json(value))
    try:
        text = tomli_w.dumps(value)
    except (TypeError, ValueError, AttributeError):  # not TOML at all
        return
    assert_plan_or_sentence(Plan.from_toml, text.encode(errors="surrogatepass"))


# --- ledgers, journals, checkpoints, certificates -------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``done``: a finished run. ``cut``: one that was cut off, with a checkpoint and a journal."""
    home = tmp_path_factory.mktemp("runs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        sf.fit(small_net(), small_data(), PLAN, evaluate=small_data(9, 1), out=home / "done", progress=False)
        walk = sf.steps(small_net(), small_data(), PLAN, out=home / "cut", checkpoint_every=1e9)
        for _ in range(4):
            next(walk)
        walk.close()
    return home


def use_ledger(path: Path) -> None:
    ledger = Ledger.read(path)
    list(ledger.events())
    check_agreement(ledger, PLAN)
    assert ledger.releases <= PLAN.steps


@given(damages=byte_damages)
@cases(700)
def test_ledgers_with_damaged_bytes(
    damages: Any, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A changed ledger is never taken for a longer or another one: what is read is a beginning of what was."""
    valid = (runs / "done" / "ledger.jsonl").read_bytes()
    path = tmp_path_factory.getbasetemp() / "ledger.jsonl"
    path.write_bytes(damaged(valid, damages))
    before = path.read_bytes()
    if assert_sentence_or_success(lambda: use_ledger(path)):
        whole = Ledger.read(runs / "done" / "ledger.jsonl").entries
        found = Ledger.read(path).entries
        assert found == whole[: len(found)]
    assert_sentence_or_success(lambda: Ledger.read(path, cut_short=True))
    assert path.read_bytes() == before


@given(damages=value_damages)
@cases(700)
def test_ledgers_that_were_hashed_again(
    damages: Any, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The chain holds, the values are strange: whoever can write hashes must not crash the reader."""
    valid = [json.loads(line) for line in (runs / "done" / "ledger.jsonl").read_text().splitlines()]
    entries = twisted(valid, damages)
    previous = GENESIS
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            entry["previous"] = previous
            entry["hash"] = previous = entry_hash(entry)
    path = tmp_path_factory.getbasetemp() / "hashed.jsonl"
    path.write_bytes(
        b"".join(as_json(entry) + b"\n" for entry in entries) if isinstance(entries, list) else b"[]\n"
    )
    assert_sentence_or_success(lambda: use_ledger(path))


@given(damages=byte_damages)
@cases(400)
def test_journals_with_damaged_bytes(damages: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A record is read exactly as it was written, or not at all."""
    path = tmp_path_factory.getbasetemp() / "releases.journal"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    written = [({"w": torch.full((3,), float(step))}, {"step": step}) for step in range(3)]
    for tensors, facts in written:
        journal.append(tensors, facts)
    journal.close()
    path.write_bytes(damaged(path.read_bytes(), damages))
    found: list[Any] = []
    assert_sentence_or_success(lambda: found.extend(read_journal(path)))
    for tensors, facts in found:
        assert facts in [facts for _, facts in written]
        assert torch.equal(tensors["w"], torch.full((3,), float(facts["step"])))


@given(damages=byte_damages)
@cases(400)
def test_packed_files_with_damaged_bytes(damages: Any) -> None:
    content = bytes(
        packed({"w": torch.ones(3), "v": torch.zeros(2, 2)}, {"step": 3, "setup": {"seed": None}})
    )
    changed = damaged(content, damages)
    assert not assert_sentence_or_success(lambda: unpacked(changed)) or changed == content


@given(damages=value_damages)
@cases(900)
def test_certificates_with_other_values(damages: Any, runs: Path) -> None:
    data = json.loads((runs / "done" / "certificate.json").read_text())

    def use() -> None:
        certificate = Certificate.from_dict(twisted(data, damages))
        assert isinstance(str(certificate), str)
        assert certificate.epsilon >= 0
        assert certificate.is_private in (True, False)
        assert certificate.is_finished in (True, False)

    assert_sentence_or_success(use)


@given(damages=value_damages)
@cases(300)
def test_declared_tunings_with_other_values(damages: Any) -> None:
    from saltflat.accounting.selection import Repetitions
    from saltflat.plan import Budget
    from saltflat.plan.tuning import Tuning

    plan = plans.dp_sgd(noise_multiplier=3.0, population=40, batch_size=8, steps=6, delta=1e-3)
    declared = Tuning((plan,), ({"clip_norm": 1.0},), Repetitions(2.0), Budget(9.0, 1e-3)).to_dict()
    assert_sentence_or_success(lambda: repeated_from_dict(twisted(declared, damages)))


# --- run folders ----------------------------------------------------------------------------------------

DONE = ("plan.json", "ledger.jsonl", "certificate.json", "run.json", "metrics.jsonl", "weights.safetensors",
        "average.safetensors")  # fmt: skip
CUT = ("plan.json", "ledger.jsonl", "run.json", "checkpoint/state.safetensors", "checkpoint/releases.journal")


def a_copy(of: Path, name: str) -> Path:
    here = of.parent / name
    shutil.rmtree(here, ignore_errors=True)
    return Path(shutil.copytree(of, here))


@given(name=st.sampled_from(DONE), damages=byte_damages, values=value_damages, inside=st.booleans())
@cases(300)
def test_finished_runs_with_a_damaged_file(
    name: str, damages: Any, values: Any, inside: bool, runs: Path
) -> None:
    """Reading a run changes nothing, whatever is in it."""
    here = a_copy(runs / "done", "done-damaged")
    file = here / name
    if inside and name.endswith(".json"):
        file.write_bytes(as_json(twisted(json.loads(file.read_text()), values)))
    else:
        file.write_bytes(damaged(file.read_bytes(), damages))
    before = snapshot(here)

    def use() -> None:
        run = sf.Run.load(here, small_net())
        assert isinstance(str(run.certificate), str)
        assert run.accuracy is None or isinstance(run.accuracy, int | float | str)
        RunFolder.open(here).read_ledger()

    assert_sentence_or_success(use)
    still_there(before)


@given(name=st.sampled_from(CUT), damages=byte_damages, values=value_damages, inside=st.booleans())
@cases(150)
def test_cut_off_runs_with_a_damaged_file(
    name: str, damages: Any, values: Any, inside: bool, runs: Path
) -> None:
    """Going on is refused with nothing changed, or comes to the plan's releases and no more.

    Checkpoints are also repacked with other facts under a hash that fits.
    """
    here = a_copy(runs / "cut", "cut-damaged")
    file = here / name
    if inside and name.endswith(".json"):
        file.write_bytes(as_json(twisted(json.loads(file.read_text()), values)))
    elif inside and name.endswith(".safetensors"):
        tensors, facts = unpacked(file.read_bytes())
        other = twisted(facts, values)
        try:
            file.write_bytes(packed(tensors, other))
        except ValueError:
            return  # no JSON
    else:
        file.write_bytes(damaged(file.read_bytes(), damages))
    before = snapshot(here)
    went_on = assert_sentence_or_success(
        lambda: sf.fit(small_net(), small_data(), resume=here, progress=False)
    )
    if went_on:
        assert RunFolder.open(here).read_ledger().releases == PLAN.steps
    else:
        still_there(before)
