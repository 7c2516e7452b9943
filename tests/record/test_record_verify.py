"""`verify`: what is genuine passes, and whatever was changed fails, by the check that is meant for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_runs import (
    COMMON,
    Entries,
    a_plan,
    certified_anew,
    chained_anew,
    copied,
    entries_of,
    forged,
    read,
    trained,
    write_entries,
)

import saltflat as sf
from core_helpers import small_data
from saltflat import plans
from saltflat.errors import InputError
from saltflat.plan import Ema, Plan, QuantileClipping, TruncatedPoisson
from saltflat.record import verify as verifying
from saltflat.record.canonical import parsed, spelled
from saltflat.record.certificate import NOT_COVERED, SEALS
from saltflat.record.selected import selection_of

TUNED: dict[str, Any] = {
    "saltflat_tuning": 1, "law": "geometric", "repeats": 2.0, "score_noise": None, "delta": 1e-4,
    "candidates": [
        {
            "settings": {"learning_rate": 1.0},
            "plan_hash": "ab",
            "events": [{"noise_multiplier": 2.0, "rate": 0.1, "steps": 3}],
        },
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "original")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return copied(original, tmp_path / "run")


def failed(folder: Path, **options: Any) -> list[str]:
    found = sf.verify(folder, **options)
    json.dumps(found.to_dict(), allow_nan=False)
    assert ("NOT VERIFIED" in str(found)) == (not found.passed)
    assert found.passed or found.failed
    return found.failed


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
    def stop(step: Any) -> None:
        if step.number == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(folder, callbacks=[stop])
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


# --- changed on purpose, by someone who can hash ----------------------------------------------------


def halved(entries: Entries) -> Entries:
    for entry in entries:
        if entry["kind"] == "release":
            entry["noise_multipliers"] = [noise / 2 for noise in entry["noise_multipliers"]]
    return entries


def test_less_noise_in_the_ledger_disagrees_with_the_plan(run: Path) -> None:
    chained_anew(run, halved)
    certified_anew(run)
    found = sf.verify(run)
    assert {"agreement"} <= set(found.failed)
    assert "the plan says [3.0]" in str(found)


def test_less_noise_in_ledger_and_plan_costs_more_than_the_claim(run: Path) -> None:
    claimed = read(run, "certificate.json")
    forged(run, a_plan(noise_multiplier=1.5))
    kept = {"epsilon", "epsilon_rdp", "epsilon_replace_one"}
    certified_anew(run, **{key: value for key, value in claimed.items() if key in kept})
    found = sf.verify(run)
    assert found.failed == ["epsilon", "claims"]
    assert found.epsilon > 2 * claimed["epsilon"]


def test_what_is_written_anew_as_a_whole_is_found_by_a_kept_hash_only(run: Path) -> None:
    """The limit of all checks of files, as the documentation says it."""
    head, certificate = entries_of(run)[-1]["hash"], sf.verify(run).certificate_hash
    assert sf.verify(run, head=head).passed
    assert sf.verify(run, head=certificate.upper()).passed
    forged(run, a_plan(noise_multiplier=30.0))
    assert sf.verify(run).passed
    assert failed(run, head=head) == ["head"]
    assert failed(run, head=certificate) == ["head"]
    assert failed(run, head="nonsense") == ["head"]


def test_a_seed_cannot_be_hidden_from_the_ledger(tmp_path: Path, run: Path) -> None:
    seeded = trained(tmp_path / "seeded", seed=3)
    private = read(run, "certificate.json")
    kept = {
        k: private[k] for k in ("private", "why_not_private", "epsilon", "epsilon_rdp", "epsilon_replace_one")
    }
    certified_anew(seeded, **kept, seeded=False)
    assert {"private", "claims"} <= set(failed(seeded))
    assert "claims" in failed(seeded, accept=["not-private"])


def other(value: Any) -> Any:
    """A value of the same form that says something else."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.9
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value[:-1] if value else ["x"]
    if isinstance(value, dict):
        return {key: other(content) for key, content in value.items()}
    return 1.0


def test_every_statement_of_the_certificate_is_computed_again(run: Path) -> None:
    """Each key changed in turn, with hashes and page to match. Fails when a key is left out (tried)."""
    stated = read(run, "certificate.json")
    free = {
        *SEALS,
        "files",
        "saltflat",
        "ledger_entries",
        "ledger_head",
    }  # versions; and what is made anew here
    for key, value in stated.items():
        if key not in free:
            data = {key: other(value)}
            if key in ("unit", "relation"):
                data = {key: {"example": "person", "add-remove": "zero-out"}[value]}
            if key == "account":
                data = {key: {"account": "a", "account_id": "b", "reservation": "c"}}
            if key == "selection":
                data = {key: selection_of(TUNED, {"learning_rate": 1.0}, 0.5)}
            certified_anew(run, **data)
            assert set(failed(run)) & {"claims", "epsilon", "plan", "certificate", "finished"}, key
            certified_anew(run, **{key: value})
    assert sf.verify(run).passed


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"epsilon": 0.01}, "epsilon"),
        ({"epsilon": "inf"}, "certificate"),
        ({"epsilon": True}, "epsilon"),
        ({"epsilon": -1.0}, "certificate"),
        ({"delta": 1e-9}, "claims"),
        ({"population": 400}, "claims"),
        ({"population": 40.0}, "claims"),
        ({"planned_releases": True}, "claims"),
        ({"not_covered": list(NOT_COVERED)}, "claims"),
        ({"note": "audited by experts"}, "claims"),
        ({"saltflat_certificate": 99}, "certificate"),
        ({"saltflat_certificate": True}, "certificate"),
        ({"saltflat": ["0.1.0"]}, "claims"),
    ],
)
def test_a_certificate_that_claims_something_else_fails(
    run: Path, change: dict[str, Any], check: str
) -> None:
    certified_anew(run, **change)
    assert check in failed(run)


def test_an_older_certificate_is_refused_by_name(run: Path) -> None:
    certified_anew(run, saltflat_certificate=1)
    assert "format 1, which holds no hashes of files" in str(sf.verify(run))


def test_files_of_another_run_are_found(run: Path, tmp_path: Path) -> None:
    another = trained(tmp_path / "another")
    # two runs of one plan have the same ledger: it holds public numbers only
    assert (run / "ledger.jsonl").read_bytes() == (another / "ledger.jsonl").read_bytes()
    for name in ("weights.safetensors", "average.safetensors", "certificate.json", "certificate.html"):
        kept = (run / name).read_bytes()
        (run / name).write_bytes((another / name).read_bytes())
        assert failed(run), name
        (run / name).write_bytes(kept)
    (run / "plan.json").write_text(a_plan(noise_multiplier=2.0).to_json() + "\n")
    assert {"files", "plan", "agreement"} <= set(failed(run))


def test_a_page_that_says_something_else_fails(run: Path) -> None:
    page = (run / "certificate.html").read_text()
    figure = f"ε = {read(run, 'certificate.json')['epsilon']:.4g}"
    assert figure in page
    (run / "certificate.html").write_text(page.replace(figure, "ε = 0.01"))
    assert failed(run) == ["page"]


ENTRY_CHANGES: dict[str, Callable[[Entries], Any]] = {
    "one more release": lambda entries: entries.append(dict(entries[-1])),
    "another kind": lambda entries: entries[3].update(kind="remark"),
    "a key too many": lambda entries: entries[3].update(batch=7),
    "a truth for a number": lambda entries: entries[1].update(queries=True),
    "a float for a whole number": lambda entries: entries[1].update(step=1.0),
    "another tier": lambda entries: entries[3].update(randomness="exact"),
    "another tier at first": lambda entries: entries[0].update(randomness="exact"),
    "a seed that is no truth": lambda entries: entries[0].update(seeded=0),
    "another clip norm": lambda entries: entries[2].update(clip_norm=0.5),
    "another rate": lambda entries: entries[2].update(rate=0.01),
    "a resume that loses": lambda entries: entries.append(
        {"kind": "resume", "step": 6, "replayed": 0, "lost": [1], "randomness": "fast"}
    ),
    "a resume too far": lambda entries: entries.append(
        {"kind": "resume", "step": 9, "replayed": 0, "lost": [], "randomness": "fast"}
    ),
    "nothing": lambda entries: entries.clear(),
}


@pytest.mark.parametrize("name", ENTRY_CHANGES)
def test_a_ledger_of_another_making_fails(run: Path, name: str) -> None:
    def change(entries: Entries) -> Entries:
        ENTRY_CHANGES[name](entries)
        return entries

    chained_anew(run, change)
    certified_anew(run)
    assert "agreement" in failed(run)


# --- hostile content --------------------------------------------------------------------------------

HOSTILE = [
    b"", b"null", b"[]", b"3", b'"x"', b"{}", b"\xff\xfe", b"{", b"[" * 200_000, b'{"a":' * 50_000,
    b'{"a": 1, "a": 1}', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": 1' + b"0" * 400 + b"}",
    b'{"a": 1' + b"0" * 9000 + b"}", b'{"saltflat_certificate": 2}', b'{"saltflat_plan": 1}',
]  # fmt: skip


@pytest.mark.parametrize("name", ["certificate.json", "plan.json", "ledger.jsonl", "certificate.html"])
def test_hostile_files_fail_in_a_sentence(run: Path, name: str) -> None:
    for content in HOSTILE:
        (run / name).write_bytes(content + b"\n")
        assert failed(run), content[:40]


def test_hostile_values_fail_in_a_sentence(run: Path) -> None:
    """Any value in place of any other, with hashes to match."""
    plan = read(run, "plan.json")
    strange: list[Any] = [None, True, -1, 0, 1e308, 2**62, "inf", "x", [], {}, [[]], 1e-320]
    for key in ("sampling", "phases", "budget", "method", "notes", "averaging"):
        for value in strange:
            if value == plan[key]:
                continue
            (run / "plan.json").write_bytes(spelled(plan | {key: value}))
            assert failed(run)
    for part, key in (("sampling", "population"), ("sampling", "batch_size"), ("budget", "delta")):
        for value in strange:
            (run / "plan.json").write_bytes(spelled(plan | {part: plan[part] | {key: value}}))
            assert failed(run)


def test_names_from_a_stranger_cannot_steer_a_terminal(run: Path) -> None:
    (run / "\x1b[2Jreport").write_text("x")
    found = sf.verify(run)
    assert found.passed
    assert "?[2Jreport" in str(found)
    data = read(run, "certificate.json") | {"method": "\x1b[2J\ud800"}
    (run / "certificate.json").write_bytes(spelled(data))
    str(sf.verify(run)).encode()
    assert "\x1b" not in str(sf.verify(run))


def test_endless_plans_are_refused_before_anything_is_computed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the number of steps or phases is not bounded: computing would begin (tried)."""

    def computed(*_: object, **__: object) -> float:
        raise AssertionError("nothing may be computed for such a plan")

    monkeypatch.setattr(verifying, "epsilon", computed)
    monkeypatch.setattr(verifying, "certify", computed)
    plan = a_plan()
    long = replace(plan, phases=(replace(plan.phases[0], steps=10**9),))
    many = replace(plan, phases=tuple(replace(plan.phases[0], steps=1) for _ in range(500)))
    for endless in (long, many):
        (run / "plan.json").write_text(endless.to_json() + "\n")
        assert "can be verified" in str(sf.verify(run))
    monkeypatch.setattr(verifying, "LARGEST_LEDGER", 100)
    assert "too large" in str(sf.verify(run))


def test_strict_json_reads_what_was_written() -> None:
    data = {"a": [1, -2.5, "ε", None, True, {"b": []}], "c": 1e-300}
    assert parsed(spelled(data), "it") == data


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
