"""Run files and faults: the same words as the options, and everything that is wrong at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Inside

from saltflat.cli.faults import faults_of

QUICK = "noise-multiplier = 4\ndelta = 1e-4\nbatch-size = 256\nsteps = 2\n"


def filed(text: str) -> str:
    Path("run.toml").write_text(text, encoding="utf-8")
    return "run.toml"


def test_every_fault_of_a_file_is_said_at_once(run: Inside) -> None:
    """Keys, types and values alike; each with what was expected."""
    file = filed(
        'epsilom = 3\nbatch-size = "many"\nmethod = "dp-stg"\nmodel = "mlq"\ndelta = 2\nclip-norm = -1\n'
        'steps = 3\nepochs = 4\ndata = "digitz"\nrandomness = "best"\nquiet = "perhaps"\nviews = 0\nseed = -3\n'
        'population = [1]\nmomentum = true\n[label]\nname = "x"\n'
    )
    err = run.refused("train", file)
    assert "faults in run file 'run.toml':" in err
    for words in (
        "unknown key 'epsilom'. Did you mean 'epsilon'", "batch-size = 'many'", "'dp-stg' is not known",
        "Did you mean 'dp-sgd'", "model='mlq'", "Did you mean 'mlp'", "delta=2.0", "clip_norm=-1.0",
        "epochs or steps, not both", "data='digitz'", "Did you mean 'digits'", "randomness = 'best'",
        "quiet = 'perhaps'", "views=0", "seed=-3", "population = [1]", "momentum = True", "label = {",
    ):  # fmt: skip
        assert words in err, words
    assert not Path("runs").exists()
    assert "cannot be read" in run.refused("train", filed("epsilon = ="))


def test_every_fault_of_a_command_line_too(run: Inside) -> None:
    err = run.refused(
        "train", "--epsilon", "-1", "--delta", "5", "--method", "dp-sgd+sva", "--model", "mlq", "--steps", "0",
        "--population", "3", "--batch-size", "9", "--optimizer", "adan",
    )  # fmt: skip
    assert "saltflat: 7 faults:" in err
    for words in (
        "epsilon=-1.0", "delta=5.0", "suffix 'sva'", "model='mlq'", "steps=0", "batch_size=9 is larger",
        "Did you mean 'adam'",
    ):  # fmt: skip
        assert words in err, words


def test_one_fault_is_said_as_it_is(run: Inside) -> None:
    err = run.refused("train", "--steps", "0")
    assert err.startswith("saltflat: steps=0 is not valid.\n  Expected a whole number steps >= 1.")


@pytest.mark.parametrize(
    "right",
    [
        {"method": "sai", "switch": 30, "rho": 0.1, "noise_ratio": 2.0, "epsilon": 3.0, "steps": 60},
        {"methods": "dp-sgd,sai", "rho": 0.1, "portion": 0.9, "split": "paper", "epsilon": 1.0},
        {"method": "dp-sgd+adam", "population": 5, "epochs": 0.5, "noise_multiplier": 1.0},
        {
            "batch_size": 50_000,
            "learning_rate": 0.1,
            "momentum": 0.5,
            "views": 4,
            "augmentations": "flip, crop",
        },
        {"data": "digits", "model": "mlp", "seed": 3, "epsilon": float("inf"), "test_fraction": 0.5},
        {},
    ],
)
def test_what_is_right_has_no_faults(right: dict[str, object]) -> None:
    """A fault that is none would send a user astray."""
    assert faults_of(right) == []


def test_lists_and_tables(run: Inside) -> None:
    """What takes commas on a command line may be a list, and the grid a table."""
    code, out, err = run("compare", filed(QUICK + 'methods = ["dp-sgd", "dp-sat"]\nseeds = 1\njson = true\n'))
    assert code == 0, err
    assert [row["method"] for row in json.loads(out)["methods"]] == ["dp-sgd", "dp-sat"]
    text = 'epsilon = 3\ndelta = 1e-4\nsteps = 2\nrepeats = 1\njson = true\nout = "{}"\n'
    for number, grid in enumerate(
        (
            "[grid]\nlearning-rate = [0.5, 2]\nclip_norm = 1\n",
            'grid = ["learning_rate=0.5,2", "clip_norm=1"]\n',
        )
    ):
        code, out, err = run("tune", filed(text.format(f"tuned{number}") + grid))
        assert code == 0, err
        assert set(json.loads(out)["settings"]) == {"learning_rate", "clip_norm"}
    err = run.refused("tune", filed("grid = [1, 2]\nlaw = 3\n"))
    assert "grid = [1, 2]: this is not a text" in err
    assert "law = 3" in err
    assert "not a list of numbers or texts" in run.refused("tune", filed("[grid.learning_rate]\nfrom = 1\n"))


def test_an_empty_file_says_nothing(run: Inside) -> None:
    code, out, _ = run("train", filed(""), "--noise-multiplier", "4", "--steps", "1", "--json")
    assert code == 0
    assert json.loads(out)["method"] == "dp-sgd"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", "For data, write --data digits"),
        ("visits.csv", "For data, write --data visits.csv"),
        ("nowhere.toml", "does not exist"),
        ("folder", "is a directory"),
    ],
)
def test_what_is_no_run_file(name: str, words: str, run: Inside) -> None:
    Path("folder").mkdir()
    err = run.refused("train", name)
    assert words in err
    assert "See: saltflat train --help" in err


def test_a_run_folder_is_no_run_file(run: Inside) -> None:
    assert run("train", filed(QUICK), "--out", "here", "--quiet")[0] == 0
    assert "To go on with it: --resume here" in run.refused("train", "here")
