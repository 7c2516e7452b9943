"""``saltflat compare`` through the real command line: a table, a picture, and going on after a cut-off."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_helpers import Inside, killed_after

from saltflat.record.ledger import Ledger
from saltflat.report.contest import final_accuracy, summarise

WORDS = (
    "compare", "--data", "digits", "--methods", "dp-sgd,dp-sat+swa", "--seeds", "2", "--epsilon", "2",
    "--delta", "1e-4", "--steps", "60", "--json", "--out", "c",
)  # fmt: skip


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_was_cut_off(run: Inside, tmp_path: Path) -> None:
    """Fails when finished runs are made again, or when a cut-off run is taken for a finished one (tried).

    A run that was killed is resumed; one without a checkpoint is moved aside and made anew.
    """
    killed_after(
        30, [sys.executable, "-m", "saltflat", *WORDS], tmp_path / "c" / "dp-sat+swa-seed0", cwd=tmp_path
    )
    result = run.answer(*WORDS)
    assert [row["method"] for row in result["methods"]] == ["dp-sgd", "dp-sat+swa"]
    assert all(len(row["runs"]) == 2 and row["epsilon"] <= 2 for row in result["methods"])
    assert result["methods"][0]["error_reduction"] == 0.0
    assert Path(result["plot"]).read_bytes().startswith(b"\x89PNG")

    resumed = Ledger.read(tmp_path / "c" / "dp-sat+swa-seed0" / "ledger.jsonl")
    assert (resumed.resumes, resumed.releases) == (1, 60)

    cut = tmp_path / "c" / "dp-sgd-seed1"
    kept = (tmp_path / "c" / "dp-sgd-seed0" / "weights.safetensors").read_bytes()
    (cut / "certificate.json").unlink()
    run.answer(*WORDS)
    assert (tmp_path / "c" / "dp-sgd-seed0" / "weights.safetensors").read_bytes() == kept
    assert (cut / "certificate.json").exists()
    assert (tmp_path / "c" / "dp-sgd-seed1.cut-off-1" / "ledger.jsonl").exists()

    assert "another plan" in run.refused(*WORDS, "--clip-norm", "0.5")
    assert "randomness='secure' differs" in run.refused(*WORDS, "--randomness", "secure")


def test_the_result_is_the_last_iterate_or_the_average_never_the_best_epoch() -> None:
    history = [{"accuracy": 0.9}, {"accuracy": 0.8}]
    last = {
        "accuracy": 0.8,
        "average_accuracy": None,
        "history": history,
        "epsilon": 1.0,
        "steps": 2,
        "seconds": 1.0,
    }
    averaged = last | {
        "average_accuracy": 0.85,
        "history": [row | {"average_accuracy": 0.85} for row in history],
    }
    assert (final_accuracy(last), final_accuracy(averaged)) == (0.8, 0.85)
    first, second = summarise({"a": [last, last], "b": [averaged, averaged]})
    assert second["error_reduction"] == pytest.approx((0.85 - 0.8) / 0.2)
    assert first["last_iterates_variance"] == pytest.approx(0.0025)


def test_a_setting_that_the_method_does_not_have_is_refused(run: Inside) -> None:
    """Fails when it is silently ignored (tried)."""
    assert "rho=0.1 is not one" in run.refused("train", "--method", "dp-sgd", "--rho", "0.1")
