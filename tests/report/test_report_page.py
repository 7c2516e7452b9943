"""What a report says: the verdict first, ε never below the ledger, every part where there is something to show."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_runs import (
    Parsed,
    a_plan,
    copied,
    cut_off,
    evaluated,
    section,
    sgd,
    trained,
    write,
)

import saltflat as sf
from core_helpers import small_data
from record.record_runs import certified_anew, chained_anew, read
from saltflat.accounting import COARSE, epsilon
from saltflat.errors import InputError
from saltflat.record.ledger import Ledger
from saltflat.report import write_report
from saltflat.report.facts import read_run
from saltflat.report.figures import claimed
from saltflat.report.groups import grouped
from saltflat.report.spent import spent, spent_at

pytestmark = pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")


# --- the verdict ------------------------------------------------------------------------------------


def test_a_sound_run_is_verified_with_its_certificate_epsilon(run: Path, tmp_path: Path) -> None:
    made = sf.report(run, tmp_path / "out" / "report.html")
    assert made.passed
    assert made.path is not None
    assert made.path.read_text(encoding="utf-8") == made.page
    stated = read(run, "certificate.json")["epsilon"]
    assert made.costs[0].epsilon == stated == made.costs[0].by_ledger
    assert made.verdict.title == f"Verified: ε = {claimed(stated)} at δ = 0.001"
    assert stated <= float(claimed(stated)) < stated * 1.001
    assert str(made).startswith("Verified")
    assert made.verdict.title in made.page
    found = Parsed(made.page).text
    for words in (
        "What this means for a person in the data",
        "What is not covered",
        "not covered by ε",
        "sai",
    ):
        assert words in found


def test_the_verdict_stands_before_everything_else(run: Path) -> None:
    body = Parsed(sf.report(run).page).text
    order = [
        "Verified: ε", "means for a person", "is not covered", "against epochs", "against ε spent", "noise σ",
        "The shape of the minimum", "No audit is here", "What the claim is about", "The plan, whose hash",
    ]  # fmt: skip
    places = [body.index(words, body.index("This page needs no network")) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "ledger.jsonl", "plan.json", "certificate.json", "metrics.jsonl"]
)
def test_a_damaged_run_says_so_first_and_claims_nothing(run: Path, name: str) -> None:
    """Fails when the headline is made from the certificate alone (tried)."""
    content = bytearray((run / name).read_bytes())
    content[len(content) // 2] ^= 1
    (run / name).write_bytes(content)
    made = sf.report(run)
    assert not made.passed
    assert made.verdict.title == "NOT VERIFIED: do not rely on this run"
    assert made.verdict.kind == "bad"
    box = made.page.index('class="claim bad"')
    assert box < made.page.index("What this means for a person")
    assert "Verified:" not in made.page
    assert "promises nothing" in Parsed(made.page).text
    card = made.card()
    assert (card["private"], card["epsilon"], card["delta"]) == (False, None, None)


def test_no_less_is_claimed_than_the_ledger_shows(run: Path) -> None:
    """A run whose ledger holds more releases, of less noise, than its plan: all hashes fit, and the claim is small.

    Fails when ε is taken from the certificate or the plan (tried).
    """
    before = sf.report(run).costs[0].epsilon

    def more(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        last = dict(entries[-1])
        return [*entries, *({**last, "step": 7 + k, "noise_multipliers": [0.5]} for k in range(3))]

    chained_anew(run, more)
    certified_anew(run, recorded_releases=9)
    made = sf.report(run)
    assert made.verdict.kind == "bad"
    cost = made.costs[0]
    ledger = Ledger.read(run / "ledger.jsonl")
    assert cost.epsilon == cost.by_ledger == epsilon(list(ledger.events()), 1e-3)
    assert before is not None
    assert cost.epsilon is not None
    assert cost.epsilon > 2 * before
    assert f"at least ε = {claimed(cost.epsilon)}" in made.page


def test_a_claim_that_was_lowered_is_not_repeated(run: Path) -> None:
    certified_anew(run, epsilon=0.01)
    made = sf.report(run)
    assert made.verdict.kind == "bad"
    assert made.costs[0].epsilon == pytest.approx(a_plan().epsilon)
    assert "ε = 0.01 " not in section(made.page, "verdict").replace("claims ε = 0.01", "")


def test_an_unfinished_run_counts_as_its_whole_plan(tmp_path: Path) -> None:
    folder = cut_off(tmp_path / "stopped")
    made = sf.report(folder)
    assert (made.passed, made.verdict.kind) == (False, "warn")
    assert made.verdict.title == "UNFINISHED: 3 of 6 releases"
    cost = made.costs[0]
    assert cost.epsilon == a_plan().epsilon
    assert cost.by_ledger is not None
    assert cost.by_ledger < cost.epsilon
    assert f"whole plan counts as spent: ε = {claimed(cost.epsilon)}" in made.page
    assert sf.report(folder, accept=["unfinished"]).passed
    assert sf.report(folder, accept=["unfinished"]).verdict.title.startswith("UNFINISHED")
    # killed: no certificate at all, and a last entry that is cut short
    for name in ("certificate.json", "certificate.html"):
        (folder / name).unlink()
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"entry": 4, "ki')
    killed = sf.report(folder)
    assert killed.verdict.title == "UNFINISHED: 3 of 6 releases"
    assert "There is no certificate yet" in killed.page
    assert killed.costs[0].epsilon == cost.epsilon
    # and with a plan of more noise in its place, it is that of another run
    (folder / "plan.json").write_text(a_plan(noise_multiplier=9.0).to_json() + "\n")
    assert sf.report(folder).verdict.kind == "bad"


def test_a_seeded_run_is_not_private(tmp_path: Path) -> None:
    made = sf.report(trained(tmp_path / "seeded", seed=3))
    assert (made.passed, made.verdict.title) == (False, "NOT PRIVATE")
    assert made.costs[0].epsilon == float("inf")
    assert "promises nothing" in made.page
    assert "There is no curve against ε" in made.page
    accepted = sf.report(tmp_path / "seeded", accept=["not-private"])
    assert (accepted.passed, accepted.verdict.title) == (True, "NOT PRIVATE")


# --- the numbers ------------------------------------------------------------------------------------


def test_epsilon_at_each_evaluation_is_the_accountants(run: Path) -> None:
    """By the ledger's first releases, phase by phase. Fails when the plan's first phase is taken for all (tried)."""
    facts = read_run(run)
    assert facts.ledger is not None
    plan = a_plan()
    steps = [1, 2, 3, 5]
    found = spent_at(facts.ledger, 1e-3, steps)
    assert found == [epsilon(plan.events(step), 1e-3, grid=COARSE) for step in steps]
    assert found == sorted(found)
    assert spent_at(facts.ledger, 1e-3, [6]) == [plan.epsilon]
    (group,) = grouped([facts], [spent(facts)])
    places = group.places("accuracy")
    assert [place.step for place in places] == [row["step"] for row in facts.metrics]
    assert places[-1].epsilon == plan.epsilon
    page = section(sf.report(run).page, "accuracy")
    for place in places:
        assert f'<td class="n">{place.epsilon:.4g}</td>' in page


def test_private_evaluations_are_counted_and_shown(run: Path) -> None:
    done = evaluated(run)
    stated = read(run, "certificate.json")["epsilon"]
    made = sf.report(run)
    assert made.passed
    assert made.costs[0].epsilon == pytest.approx(stated + 0.5, rel=1e-3)
    assert made.costs[0].training == stated
    assert made.costs[0].delta == pytest.approx(1.1e-3)
    assert "with 1 private evaluation" in made.verdict.title
    assert f"{100 * done.accuracy:.1f} %" in section(made.page, "accuracy")


def test_public_rows_need_no_label(tmp_path: Path) -> None:
    made = sf.report(trained(tmp_path / "public", evaluate=replace(small_data(9, 1), provenance="public")))
    assert "measured on public rows" in made.verdict.sentences[0]
    assert "not covered by ε" not in section(made.page, "accuracy")
    without = sf.report(trained(tmp_path / "none", evaluate=None))
    assert "No accuracy was recorded" in without.page
    assert without.card()["result"] is None


def test_an_accuracy_with_noise_is_the_result_where_there_is_no_other(tmp_path: Path) -> None:
    folder = trained(tmp_path / "none", evaluate=None)
    done = evaluated(folder)
    made = sf.report(folder)
    said = (
        f"The accuracy on private rows is {100 * done.accuracy:.1f} % (released with noise, and covered by ε)"
    )
    assert any(sentence.startswith(said) for sentence in made.verdict.sentences)
    assert "on private rows, with noise: covered by ε" in made.page


# --- several runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, as ``saltflat compare`` leaves it: two methods, two runs each, and other files."""
    folder = tmp_path_factory.mktemp("several")
    for name, plan in {"dp-sgd": sgd(), "sai": a_plan()}.items():
        for seed in range(2):
            trained(folder / f"{name}-seed{seed}", plan)
    (folder / "comparison.json").write_text("{}")
    (folder / "notes").mkdir()
    return folder


def test_runs_of_one_method_are_taken_together(several: Path) -> None:
    made = sf.report(several)
    assert made.passed
    assert made.verdict.title == "4 runs, all verified"
    table = section(made.page, "comparison")
    methods = made.to_dict()["methods"]
    assert list(methods) == ["dp-sgd", a_plan().method]
    for values in methods.values():
        assert len(values) == 2
        assert f"{100 * statistics.fmean(values):.2f} %" in table
        assert f"± {100 * statistics.stdev(values):.2f}" in table
    total = sum(cost.epsilon or 0 for cost in made.costs)
    assert f"ε = {claimed(total)} at δ = 0.004 at most (added up)" in made.page
    two = sf.report([several / "sai-seed1", str(several / "dp-sgd-seed0")])
    assert two.verdict.title == "2 runs, all verified"
    assert len(sf.report([several, several / "sai-seed0"]).runs) == 4  # none twice


def test_plans_that_differ_are_not_averaged(several: Path, tmp_path: Path) -> None:
    other = trained(tmp_path / "other", sgd(noise_multiplier=5.0))
    made = sf.report([several, other])
    assert len(made.to_dict()["methods"]) == 3
    assert len([label for label in made.to_dict()["methods"] if label.startswith("dp-sgd, ε = ")]) == 2


def test_damaged_and_unfinished_runs_are_named_and_left_out(several: Path, tmp_path: Path) -> None:
    broken = copied(several / "sai-seed0", tmp_path / "broken")
    (broken / "weights.safetensors").write_bytes(b"nothing")
    made = sf.report([several, broken, cut_off(tmp_path / "stopped")])
    assert (made.passed, made.verdict.title) == (False, "4 of 6 runs are verified")
    assert made.verdict.sentences[0] == "broken: NOT VERIFIED: do not rely on this run."
    assert made.verdict.sentences[1] == "stopped: UNFINISHED: 3 of 6 releases."
    words = Parsed(section(made.page, "comparison")).text
    assert "Left out of the comparison" in words
    assert "broken" in words
    assert all(len(values) == 2 for values in made.to_dict()["methods"].values())


# --- the door ----------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_a_sentence(run: Path, several: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        sf.report(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        sf.report([run, tmp_path / "empty"])
    with pytest.raises(InputError, match="has no folder"):
        sf.report(3)
    with pytest.raises(InputError, match="end of a card"):
        sf.report(run, cards=["card.pdf"])
    with pytest.raises(InputError, match="no card together"):
        sf.report(several, cards=["card.json"])
    write(tmp_path, "audit.json", {"passed": True})
    with pytest.raises(InputError, match="is no audit"):
        sf.report(run, audit=tmp_path / "audit.json")
    with pytest.raises(InputError, match="that of one run"):
        sf.report(several, audit=tmp_path / "audit.json")
    assert not list(tmp_path.glob("card*"))


def test_the_door_for_others(run: Path, tmp_path: Path) -> None:
    out = write_report([run], tmp_path / "deep" / "report.html")
    assert out == tmp_path / "deep" / "report.html"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sf.report.write_report is write_report  # the chapter is the function as well


def test_the_page_does_not_change_the_run(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    sf.report(run, run / "report.html", cards=[run / "card.md", run / "card.json"])
    assert sf.verify(run).passed
    assert all((run / name).read_bytes() == content for name, content in before.items())


def test_two_reports_of_one_run_are_the_same(run: Path) -> None:
    assert sf.report(run).page == sf.report(run).page


def test_a_report_loads_no_torch(run: Path) -> None:
    code = f"import sys, saltflat as sf; print(sf.report({str(run)!r}).passed, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True False", json.dumps(done.stderr)
