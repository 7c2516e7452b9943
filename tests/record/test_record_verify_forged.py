"""`verify` against people: a folder that was changed on purpose, or that holds something hostile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_runs import (
    Entries,
    a_plan,
    certified_anew,
    chained_anew,
    entries_of,
    failed,
    forged,
    read,
    trained,
)

import saltflat as sf
from saltflat.record import ledger
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
    monkeypatch.setattr(ledger, "LARGEST_LEDGER", 100)
    assert "more than 100 bytes" in str(sf.verify(run))


def test_strict_json_reads_what_was_written() -> None:
    data = {"a": [1, -2.5, "ε", None, True, {"b": []}], "c": 1e-300}
    assert parsed(spelled(data), "it") == data
