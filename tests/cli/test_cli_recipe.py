"""``saltflat train --recipe``: the run that `sf.recipes` describes, and nothing beside it that would change it."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Inside

import saltflat as sf
from saltflat import recipes
from saltflat.recipes.known import RECIPES


def write_mnist(folder: Path) -> None:
    """Sixteen images to train on and eight to test on, as MNIST's files have them."""
    folder.mkdir()
    for part, rows in (("train", 16), ("t10k", 8)):
        images = np.random.default_rng(rows).integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", np.arange(rows, dtype=np.uint8) % 10)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{name}-ubyte").write_bytes(head + array.tobytes())


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And features without the metric, which takes minutes to learn; `test_metric.py` is about it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen = RECIPES["mnist"]
    plain = replace(chosen, features=replace(chosen.features, metric=None))
    monkeypatch.setitem(RECIPES, "mnist", plain)


@pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")  # sixteen rows, and not 60,000
def test_python_and_the_command_line_make_the_same_run(run: Inside, tmp_path: Path) -> None:
    """Fails when one of the words of a recipe does not reach the plan."""
    write_mnist(tmp_path / "data")
    found = run.answer(
        "train", "--data", "mnist", "--data-dir", "data", "--recipe", "best", "--epsilon", "1",
        "--population", "60000", "--out", "here", "--json",
    )  # fmt: skip
    recipe = recipes.best("mnist", epsilon=1.0)
    stored = sf.Plan.from_json(Path("here/plan.json").read_text())
    assert stored == recipe.plan
    spec = json.loads(Path("here/model.json").read_text())
    assert spec == recipe.model().saltflat_spec
    assert json.loads(Path("here/run.json").read_text())["facts"]["options"]["schedule"] == recipe.schedule
    assert (found["model"], found["evaluation"]) == ("centred-linear", "not covered")
    again = run.answer("train", "--resume", "here", "--json")
    assert again["accuracy"] == found["accuracy"]
    run.answer(
        "evaluate", "here", "--epsilon", "1", "--size", "8", "--json"
    )  # on features, as it was trained


@pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")  # sixteen rows, and not 60,000
def test_a_run_keeps_the_features_it_was_trained_on(
    run: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when rows are made by what the recipe is by now, whose width does not fit the model (tried)."""
    write_mnist(tmp_path / "data")
    run.answer(
        "train", "--data", "mnist", "--data-dir", "data", "--recipe", "best", "--epsilon", "1",
        "--population", "60000", "--out", "here", "--json",
    )  # fmt: skip
    evaluate = ("evaluate", "here", "--epsilon", "1", "--size", "8")
    narrower = replace(RECIPES["mnist"], features=replace(RECIPES["mnist"].features, patches=None))
    with monkeypatch.context() as later:
        later.setitem(RECIPES, "mnist", narrower)
        run.answer(*evaluate, "--json")
    file = Path("here/run.json")
    about = json.loads(file.read_text())
    about["facts"]["features"]["version"] = [1, 1]
    file.write_text(json.dumps(about))
    assert "is the version of the features that this run saw" in run.refused(*evaluate)
    about["facts"]["features"] = {"scales": 2}
    file.write_text(json.dumps(about))
    assert "are no features" in run.refused(*evaluate)
    del about["facts"]["features"]  # a folder from before features were kept
    file.write_text(json.dumps(about))
    run.answer(*evaluate, "--json")


def test_a_recipe_and_what_it_decides_exclude_each_other(run: Inside, tmp_path: Path) -> None:
    for word, value in (
        ("--method", "sai"),
        ("--model", "mlp"),
        ("--batch-size", "64"),
        ("--noise-multiplier", "2"),
    ):
        err = run.refused("train", "--data", "mnist", "--recipe", "best", word, value)
        assert "is what a recipe decides" in err
        assert f"no {word} beside --recipe best" in err
    err = run.refused("train", "--data", "digits", "--recipe", "best", "--epsilon", "1")
    assert "data='digits' has no recipe" in err
    assert "fashion-mnist" in err
    err = run.refused("train", "--data", "mnist", "--recipe", "best", "--epsilon", "20")
    assert "0.5 <= epsilon <= 8" in err
    file = tmp_path / "run.toml"
    file.write_text('data = "mnist"\nrecipe = "best"\nmomentum = 0.5\n')
    assert "momentum=0.5 is what a recipe decides" in run.refused("train", str(file))
