"""``saltflat report`` through the command line: pages, cards, exit codes, and a command that repeats the run."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from pathlib import Path

from cli_helpers import SMALL, Inside, saltflat


def test_a_run_from_training_to_its_report_and_back(run: Inside, tmp_path: Path) -> None:
    """The command on the page gives a run of the same plan. Fails when an option is left out of it (tried)."""
    folder = "runs/a run"
    assert run("train", *SMALL, "--method", "sai", "--rho", "0.1", "--out", folder, "--quiet")[0] == 0
    code, out, err = run("report", folder, "--card", "card.md", "--card", "card.json")
    assert (code, err) == (0, "")
    assert out.startswith("Verified: ε = ")
    assert "report runs/a run/report.html; card card.md; card card.json" in out
    page = (tmp_path / folder / "report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "card.json").read_text())["private"] is True
    assert (tmp_path / "card.md").read_text(encoding="utf-8").startswith("---\n")

    (found,) = re.findall(r"The command:</p><pre>(.*?)</pre>", page, flags=re.DOTALL)
    words = shlex.split(unescape(found).replace("\\\n", " "))
    assert words[0] == "saltflat"
    assert run(*words[1:], "--quiet")[0] == 0
    plans = [path.read_text() for path in tmp_path.glob("runs/*/plan.json")]
    assert len(plans) == 2
    assert plans[0] == plans[1]
    both = run.answer("report", "runs", "--out", "both.html", "--json")
    assert both["out"] == "both.html"
    assert [len(values) for values in both["methods"].values()] == [2]
    assert run("verify", folder)[0] == 0  # a report beside a run changes nothing


def test_exit_codes(run: Inside, tmp_path: Path) -> None:
    run("train", *SMALL, "--out", "runs/x", "--quiet")
    weights = tmp_path / "runs" / "x" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, out, _ = run("report", "runs/x", "--out", "report.html")
    assert code == 1
    assert out.startswith("NOT VERIFIED")
    assert "NOT VERIFIED" in (tmp_path / "report.html").read_text(encoding="utf-8")
    run("train", *SMALL, "--out", "runs/seeded", "--seed", "1", "--quiet")
    assert run("report", "runs/seeded")[0] == 1
    assert run("report", "runs/seeded", "--accept", "not-private")[0] == 0
    for wrong in (
        ["runs/none"],
        [str(tmp_path)],
        [],
        ["runs/x", "--card", "card.pdf"],
        ["runs/x", "--audit", "none"],
    ):
        run.refused("report", *wrong)


def test_through_the_real_command_without_torch(run: Inside, tmp_path: Path) -> None:
    run("train", *SMALL, "--out", "runs/x", "--quiet")
    done = saltflat("report", "runs/x", "--out", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page.html").exists()
