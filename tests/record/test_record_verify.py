"""`verify`: what is genuine passes, and whatever was changed fails, by the check that is meant for it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_runs import (
    COMMON,
    a_plan,
    certified_anew,
    chained_anew,
    entries_of,
    failed,
    read,
    trained,
    write_entries,
)

import saltflat as sf
from core_helpers import small_data, stop_after
from saltflat import plans
from saltflat.errors import InputError
from saltflat.plan import Ema, Plan, QuantileClipping, TruncatedPoisson

# --- what is genuine --------------------------------------------------------------------------------


GENUINE = {
    "sai+swa": a_plan(),
    "dp-sam+ema": plans.dp_sam(rho=0.1, averaging=Ema(), **COMMON),
    "adaptive clipping": plans.dp_sgd(
        clipping=QuantileClipping(count_noise=1.0), optimizer="adam-bc", **COMMON
    ),
    "automatic switch": plans.sai(rho=0.1, switch="automatic", **COMMON),
    "zero-out": plans.dp_sgd(relation="zero-out", **COMMON),
    "unsampled": plans.dp_sgd(**(COMMON | {"batch_size": 40})),
    "whole numbers": plans.dp_sgd(clip_norm=1, **(COMMON | {"noise_multiplier": 3})),
    "truncated": replace(plans.dp_sgd(**COMMON), sampling=TruncatedPoisson(40, 8)),
}


@pytest.mark.parametrize("name", GENUINE)
def test_a_genuine_run_passes(name: str, tmp_path: Path) -> None:
    plan = GENUINE[name]
    found = sf.verify(trained(tmp_path / "run", plan))
    assert found.passed, str(found)
    assert found.epsilon == found.claimed == plan.epsilon
    assert found.epsilon_rdp is None or found.epsilon_rdp >= found.epsilon
    if name == "truncated":
        assert found.epsilon_second is None
        assert "does not support these releases" in str(found)
    else:
        assert found.epsilon_second == pytest.approx(found.epsilon, rel=0.01)


@pytest.mark.parametrize("tier", ["secure", "exact"])
def test_a_genuine_run_of_every_tier_passes(tier: str, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", randomness=tier)
    assert sf.verify(folder).passed
    assert ("floating-point attacks" in (folder / "certificate.html").read_text()) == (tier == "secure")


def cut_off(folder: Path, at: int = 4) -> Path:
    with pytest.raises(KeyboardInterrupt):
        trained(folder, callbacks=[stop_after(at)])
    return folder


def test_an_unfinished_run_fails_and_passes_when_it_has_gone_on(tmp_path: Path) -> None:
    folder = cut_off(tmp_path / "run")
    assert failed(folder) == ["finished"]
    text = str(sf.verify(folder))
    assert "stopped after 4 of 6 releases" in text
    assert "Go on with it by resume" in text
    assert sf.verify(folder, accept=["unfinished"]).passed
    trained(folder, out=None, resume=folder)
    assert sf.verify(folder).passed, str(sf.verify(folder))
    assert read(folder, "certificate.json")["resumed"] == 1


def test_a_run_that_was_killed_has_no_certificate_and_passes_when_it_has_gone_on(tmp_path: Path) -> None:
    """Also with a release that was recorded and lost, and a ledger whose last line is half written."""
    folder = cut_off(tmp_path / "run")
    for name in ("certificate.json", "certificate.html", "weights.safetensors", "average.safetensors"):
        (folder / name).unlink()
    journal = folder / "checkpoint" / "releases.journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    found = sf.verify(folder)
    assert not found.passed
    assert "certificate.json is missing" in str(found)
    assert found.epsilon is not None
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"entry": 5, "ki')
    assert {"certificate", "ledger"} <= set(failed(folder, accept=["unfinished"]))
    trained(folder, out=None, resume=folder)
    assert sf.verify(folder).passed, str(sf.verify(folder))
    [resumed] = [entry for entry in entries_of(folder) if entry["kind"] == "resume"]
    assert resumed["lost"] == [4]


def test_a_test_run_fails_and_says_so(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", seed=3)
    assert failed(folder) == ["private"]
    assert "fixed seed" in str(sf.verify(folder))
    found = sf.verify(folder, accept=["not-private"])
    assert found.passed
    assert "NOT PRIVATE" in str(found)


def test_a_run_without_noise_fails_and_says_so(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", plans.sgd(population=40, batch_size=8, steps=3))
    assert failed(folder) == ["private"]
    assert "not private" in str(sf.verify(folder))
    assert sf.verify(folder, accept=["not-private"]).passed
    assert "NOT PRIVATE" in (folder / "certificate.html").read_text()


def test_what_is_no_run_and_what_is_no_word_is_bad_input(tmp_path: Path, run: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        sf.verify(tmp_path)
    with pytest.raises(InputError, match="accept='seeded'"):
        sf.verify(run, accept=["seeded"])  # type: ignore[list-item]


# --- changed by accident ----------------------------------------------------------------------------

COVERED = (
    "ledger.jsonl", "plan.json", "certificate.json", "weights.safetensors", "certificate.html",
    "average.safetensors", "metrics.jsonl", "run.json", "model.json",
)  # fmt: skip


def test_every_changed_byte_is_found(run: Path) -> None:
    """500 of them, in every file. Fails when the certificate's own hash, or the page, is not compared (tried)."""
    rng = random.Random(2024)
    for number in range(500):
        name = COVERED[number % len(COVERED)]
        content = (run / name).read_bytes()
        place = rng.randrange(len(content))
        changed = bytearray(content)
        # half of them a flipped bit, half any other byte
        changed[place] ^= 1 << rng.randrange(8) if number % 2 else rng.randrange(1, 256)
        (run / name).write_bytes(changed)
        assert failed(run), f"byte {place} of {name}: {content[place]} became {changed[place]}"
        (run / name).write_bytes(content)
    assert sf.verify(run).passed


@pytest.mark.parametrize("name", COVERED)
def test_added_missing_and_empty_content_is_found(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    for changed in (
        content.replace(b" ", b"\t", 1) if b" " in content else b" ",  # the same to a reader of JSON
        content + b" ",
        content + b"\n",
        content[:-1],
        b"",
        content[1:],
        b"\xef\xbb\xbf" + content,
    ):
        (run / name).write_bytes(changed)
        assert failed(run), changed[-20:]
    (run / name).unlink()
    assert failed(run)
    (run / name).mkdir()
    assert failed(run)


@pytest.mark.parametrize("removed", range(7))
def test_a_removed_entry_is_found(run: Path, removed: int) -> None:
    entries = entries_of(run)
    del entries[removed]
    write_entries(run, entries)
    assert "ledger" in failed(run)
    chained_anew(run, lambda entries: entries)
    assert "ledger" in failed(run)  # another head
    certified_anew(run)
    assert {"agreement", "claims"} & set(sf.verify(run).failed)


def test_swapped_entries_and_a_cut_tail_are_found(run: Path, original: Path) -> None:
    entries = entries_of(run)
    write_entries(run, [*entries[:2], entries[3], entries[2], *entries[4:]])
    assert "ledger" in failed(run)
    chained_anew(run, lambda entries: entries)
    certified_anew(run)
    assert "agreement" in failed(run)
    write_entries(run, entries[:-2])
    assert "it has 5 entries, and the certificate counts 7" in str(sf.verify(run))
    certified_anew(run, recorded_releases=4)
    assert "it says finished, after 4 of 6 releases" in str(sf.verify(run))
    certified_anew(run, recorded_releases=4, finished=False)
    assert failed(run) == ["finished"]


# --- the page ---------------------------------------------------------------------------------------


def test_the_page_says_what_a_privacy_officer_asks(run: Path) -> None:
    from html.parser import HTMLParser

    class Text(HTMLParser):
        open: list[str]
        words: list[str]

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag not in ("script", "img", "link", "iframe")
            assert not any(name in ("src", "href", "onclick") for name, _ in attrs)
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            self.words.append(data)

    reader = Text()
    reader.open, reader.words = [], []
    reader.feed((run / "certificate.html").read_text())
    assert reader.open == []
    text = "".join(reader.words)
    data = read(run, "certificate.json")
    for words in (
        f"ε = {data['epsilon']:.4g}, δ = 0.001", "replaced", f"ε = {data['epsilon_replace_one']:.4g}", "one example",
        "add-remove", "40, declared", "poisson, rate 0.2", "8: the expected batch size", "dp-accounting PLD",
        data["accountant"]["version"], "tier fast", "seek flatness", "descend", "share", "7 entries",
        data["ledger_head"], data["plan_hash"], data["trust"], "saltflat verify", *data["not_covered"],
    ):  # fmt: skip
        assert words in text
    assert sum(phase["share"] for phase in data["phases"]) == pytest.approx(1.0)


def test_names_in_a_plan_cannot_write_the_page(tmp_path: Path) -> None:
    plan = replace(plans.dp_sgd(**COMMON), method="<script>alert(1)</script>")
    named = Plan(**{**plan.__dict__, "phases": tuple(replace(p, name="<b>&") for p in plan.phases)})
    folder = trained(tmp_path / "run", named)
    page = (folder / "certificate.html").read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert sf.verify(folder).passed


def test_data_of_the_tests_is_what_the_plans_declare() -> None:
    assert len(small_data()) == COMMON["population"]
