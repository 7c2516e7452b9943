"""Nothing from a file can become part of the page's own markup, of the card's, or a second command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from report_hostile import CLOSING, QUOTES, SCRIPT, hostile_run
from report_runs import check_page, copied, trained

import saltflat as sf
from record.record_runs import certified_anew
from saltflat.report.card import card_markdown
from saltflat.report.repeat import command

pytestmark = pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile"))


def test_names_cannot_break_out_of_the_page(hostile: Path) -> None:
    """Fails when one value of any file is not escaped (tried with the phase, the geometry and the audit)."""
    made = sf.report(hostile)
    assert made.passed
    found = check_page(made.page)
    for text in (SCRIPT, QUOTES, CLOSING):
        assert " ".join(text.split()) in found.text


def test_nor_can_a_certificate_or_metrics_that_were_changed(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["evaluation"] = SCRIPT
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    certified_anew(folder, not_covered=[SCRIPT, CLOSING], trust=QUOTES, method=SCRIPT)
    check_page(sf.report(folder).page)
    certified_anew(folder, private=False, epsilon="inf", why_not_private=[CLOSING, QUOTES])
    check_page(sf.report([folder, copied(folder, tmp_path / "other")]).page)


def test_nor_out_of_the_card(hostile: Path) -> None:
    """Fails when a name goes into the front matter as it is (tried): it could say ``private: true``."""
    made = sf.report(hostile)
    text = card_markdown(made.card())
    lines = text.splitlines()
    assert [number for number, line in enumerate(lines) if line.strip() == "---"] == [
        0,
        lines.index("---", 1),
    ]
    front = lines[1 : lines.index("---", 1)]
    for line in front:
        said = line.strip().removeprefix("- ")
        value = said if said.startswith(("{", '"')) else said.partition(": ")[2]
        if value and not line.startswith("library_name"):
            json.loads(value)
    assert sum(line.strip().startswith("private:") for line in front) == 1
    body = "\n".join(lines[lines.index("---", 1) :])
    assert "<script" not in body
    assert "<img" not in body
    assert "](" not in body.replace("\\](", "")
    card = made.card()
    assert json.loads(json.dumps(card)) == card


def test_the_command_is_one_command(hostile: Path) -> None:
    facts = sf.report(hostile).runs[0]
    words = shlex.split((command(facts) or "").replace("\\\n", " "))
    assert words[:4] == ["saltflat", "train", "--data", f"x; rm -rf / {QUOTES}"]
    assert len(words) == 8
    assert ";" not in "".join(word for word in words if not word.startswith(("x; rm", "runs/")))


@pytest.mark.parametrize(
    "options", [{"a b": "x"}, {"data": "x\ny"}, {"data": ["x"]}, {"data": True}, [], "text", {}]
)
def test_options_that_no_command_line_stored_give_no_command(tmp_path: Path, options: object) -> None:
    folder = trained(tmp_path / "run", facts={"options": options})
    made = sf.report(folder)
    assert command(made.runs[0]) is None
    assert "In Python" in made.page


def test_the_terminal_is_not_steered(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", facts={"data": "\x1b[31mred\x07"})
    assert "\x1b" not in str(sf.report(folder))
