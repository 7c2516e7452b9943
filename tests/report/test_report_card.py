"""The privacy card: the same claim as the report, as data and as a page for model hubs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import a_plan, audit, copied, cut_off, trained, write

import saltflat as sf

pytestmark = pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "a-run", facts={"data": "digits", "model": "logistic"})


def test_the_card_says_what_the_certificate_says(run: Path, tmp_path: Path) -> None:
    made = sf.report(run, cards=[tmp_path / "card.json", tmp_path / "card.md"])
    card = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    stated = json.loads((run / "certificate.json").read_text())
    assert card == made.card()
    assert made.path is None
    same = (
        "epsilon",
        "delta",
        "unit",
        "relation",
        "epsilon_replace_one",
        "not_covered",
        "plan_hash",
        "method",
    )
    assert {key: card[key] for key in same} == {key: stated[key] for key in same}
    assert (card["private"], card["verified"]) == (True, True)
    assert (card["state"], card["saltflat_card"]) == ("verified", 1)
    assert card["certificate_sha256"] == sf.verify(run).certificate_hash
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert card["result"] == {
        "measure": "accuracy", "value": last["average_accuracy"], "weights": "average", "covered": "not covered",
    }  # fmt: skip


def test_markdown_has_front_matter_and_words(run: Path, tmp_path: Path) -> None:
    sf.report(run, cards=[tmp_path / "card.md"])
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    head, front, body = text.split("---\n", 2)
    assert head == ""
    said = {
        "library_name: saltflat",
        'datasets: ["digits"]',
        "  private: true",
        "  delta: 0.001",
        "model-index:",
    }
    assert said <= set(front.splitlines())
    assert "# Privacy card" in body
    assert "## What is not covered" in body
    assert "for a person in the data" in body
    assert "not covered" in front  # the accuracy's label, where a hub shows the number


def test_a_card_claims_nothing_that_the_report_does_not(run: Path, tmp_path: Path) -> None:
    unfinished = sf.report(cut_off(tmp_path / "stopped")).card()
    assert (unfinished["private"], unfinished["verified"], unfinished["state"]) == (True, False, "unfinished")
    assert unfinished["epsilon"] == a_plan().epsilon
    seeded = sf.report(trained(tmp_path / "seeded", seed=1)).card()
    assert (seeded["private"], seeded["epsilon"]) == (False, "inf")
    broken = copied(run, tmp_path / "broken")
    (broken / "plan.json").unlink()
    card = sf.report(broken, cards=[tmp_path / "broken.md"]).card()
    assert (card["private"], card["epsilon"]) == (False, None)
    text = (tmp_path / "broken.md").read_text(encoding="utf-8")
    assert "NOT VERIFIED" in text
    assert "  epsilon: null" in text
    caught = copied(run, tmp_path / "caught")
    write(caught, "audit.json", audit(a_plan(), passed=False, faults=["noise: none."]))
    card = sf.report(caught, cards=[tmp_path / "caught.md"]).card()
    assert (card["private"], card["epsilon"]) == (False, None)
    assert "caught a fault" in (tmp_path / "caught.md").read_text(encoding="utf-8")
