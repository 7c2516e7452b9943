"""``saltflat tune`` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import Inside, write_table

SETTINGS = ("--epsilon", "3", "--delta", "1e-4", "--batch-size", "256", "--steps", "2")
GRID = ("--grid", "learning_rate=0.5,2", "--grid", "clip-norm=0.5,1")


def test_tune_answers_in_json_and_in_words(run: Inside) -> None:
    found = run.answer("tune", *SETTINGS, *GRID, "--repeats", "2", "--out", "here", "--json")
    assert 2 < found["epsilon"] <= 3
    assert set(found["settings"]) == {"learning_rate", "clip_norm"}
    assert (found["repeats"], found["law"], found["tuned_on"]) == (2.0, "logarithmic", None)
    assert (Path("here") / "tuning.jsonl").exists()
    code, out, err = run("tune", *SETTINGS, *GRID, "--repeats", "1", "--quiet")
    assert code == 0, err
    for words in (
        "chosen: learning_rate",
        "by a noised count",
        "for all trials and the choice",
        "digits-dp-sgd-tuned",
    ):
        assert words in out


def test_tune_on_a_proxy(run: Inside) -> None:
    write_table("secret.csv")
    write_table("public.csv", weight=0.5)
    write_table("copy.csv")
    words = (
        "tune", "--data", "secret.csv", "--label", "outcome", "--epsilon", "3", "--delta", "1e-3",
        "--batch-size", "20", "--steps", "3", "--grid", "learning_rate=0.1,1", "--json",
    )  # fmt: skip
    assert "proxy='copy.csv' holds a row of the private data" in run.refused(*words, "--proxy", "copy.csv")
    found = run.answer(*words, "--proxy", "public.csv")
    assert (found["tuned_on"], len(found["scores"])) == ("public.csv", 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "grid"),
        (("--grid", "learning_rate"), "SETTING=VALUE,VALUE"),
        (("--grid", "=1"), "SETTING=VALUE,VALUE"),
        (("--grid", "clip_norm=1", "--grid", "clip-norm=2"), "names a setting again"),
        (("--grid", "epsilon=1,2"), "cannot be tuned"),
        (("--grid", "learning_rate=1,x"), "learning_rate='x'"),
        (("--grid", "clip_norm=1", "--noise-multiplier", "1"), "noise_multiplier"),
        (("--grid", "clip_norm=1", "--proxy", "digits"), "is the private data itself"),
        (("--grid", "clip_norm=1", "--repeats", "nan"), "repeats"),
    ],
)
def test_bad_input_is_a_sentence(arguments: tuple[str, ...], words: str, run: Inside) -> None:
    code, out, err = run("tune", *arguments, "--steps", "2", "--out", "here")
    assert code == 2
    assert words in err
    assert "Traceback" not in err + out
    assert not Path("here").exists()
