"""``saltflat train`` and its siblings, from the command line to the run folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import Inside, answer, saltflat, write_table
from PIL import Image

import saltflat as sf
from saltflat.record.ledger import Ledger

QUICK = ("--noise-multiplier", "4", "--delta", "1e-4", "--batch-size", "256", "--steps", "12")


@pytest.mark.slow
def test_train_on_digits(tmp_path: Path) -> None:
    """A budget in, a folder out that Python reads again."""
    out = tmp_path / "run"
    found = answer(
        "train", "--data", "digits", "--model", "mlp", "--epsilon", "2", "--delta", "1e-4",
        "--batch-size", "256", "--epochs", "10", "--out", str(out), "--json",
    )  # fmt: skip
    assert found["accuracy"] > 0.75
    assert 1.9 < found["epsilon"] <= 2.0
    assert {key: found[key] for key in ("delta", "method", "out", "private", "relation", "steps")} == {
        "delta": 1e-4, "method": "dp-sgd", "out": str(out), "private": True, "relation": "zero-out", "steps": 56,
    }  # fmt: skip
    assert found["seconds"] > 0
    files = {path.name for path in out.iterdir()}
    assert {"plan.json", "ledger.jsonl", "weights.safetensors", "metrics.jsonl", "certificate.json"} <= files
    again = sf.Run.load(out)
    assert again.accuracy == found["accuracy"]
    assert again.epsilon == found["epsilon"]
    test = sf.data.load("digits").test
    right = (again.predict(test.inputs) == test.targets).double().mean()
    assert float(right) == pytest.approx(found["accuracy"])
    assert Ledger.read(out / "ledger.jsonl").releases == 56


def test_an_average_and_a_declared_population(run: Inside) -> None:
    found = run.answer(
        "train", "--method", "sai+ema", "--population", "1437", *QUICK, "--out", "here", "--json"
    )
    assert found["method"] == "sai+ema"
    assert found["average_accuracy"] is not None
    assert found["relation"] == "add-remove"
    assert (Path("here") / "average.safetensors").exists()


def test_a_seeded_run_is_marked(run: Inside) -> None:
    found = run.answer("train", *QUICK, "--seed", "1", "--out", "here", "--json")
    assert (found["epsilon"], found["private"]) == ("inf", False)
    assert "NOT PRIVATE" in run("train", *QUICK, "--seed", "1", "--out", "there", "--quiet")[1]


def test_the_plan_comes_before_the_run_and_folders_are_numbered(run: Inside) -> None:
    code, out, err = run("train", *QUICK)
    assert code == 0
    assert "12 steps over Poisson" in err
    assert "total: ε =" in err
    assert "accuracy" in out
    run("train", *QUICK, "--quiet")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits-dp-sgd", "digits-dp-sgd-2"]


def test_what_is_warned_of_is_said_on_the_terminal_only(tmp_path: Path) -> None:
    """Another size than declared, and a δ that could publish a row: once each, and stored nowhere."""
    settings = ("--noise-multiplier", "4", "--delta", "1e-2", "--batch-size", "256", "--steps", "2")
    done = saltflat("train", "--population", "2000", *settings, "--out", "here", "--quiet", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("saltflat: warning: The data has 1437 rows") == 1
    assert done.stderr.count("publishes a random row") == 1
    for path in (tmp_path / "here").rglob("*.json*"):
        assert "1437" not in path.read_text()


def test_a_run_file_uses_the_same_words(run: Inside) -> None:
    Path("run.toml").write_text(
        'data = "digits"\nmethod = "dp-sat"\nnoise-multiplier = 4\ndelta = 1e-4\nbatch_size = 256\n'
        'steps = 3\nrho = 0.1\nout = "filed"\njson = true\n'
    )
    assert run.answer("train", "run.toml")["method"] == "dp-sat"
    plan = sf.Plan.load(Path("filed") / "plan.json")
    assert plan.phases[0].ascent == sf.plan.PreviousRelease(0.1)
    assert run.answer("train", "run.toml", "--steps", "2", "--out", "other")["steps"] == 2


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "budget": (("--epsilon", "-1"), "epsilon=-1.0"),
    "budget and noise": (("--epsilon", "1", "--noise-multiplier", "2"), "both are given"),
    "delta": (("--delta", "2"), "delta=2.0"),
    "population": (("--population", "0"), "population=0"),
    "batch": (("--batch-size", "5000"), "batch_size=5000 is larger than population=1437"),
    "steps": (("--steps", "0"), "steps=0"),
    "epochs": (("--epochs", "nan"), "epochs=nan"),
    "steps and epochs": (("--steps", "3", "--epochs", "3"), "epochs or steps, not both"),
    "method": (("--method", "dp-stg"), "Did you mean 'dp-sgd'"),
    "suffix": (("--method", "dp-sgd+sva"), "Did you mean 'swa'"),
    "model": (("--model", "mlq"), "Did you mean 'mlp'"),
    "data": (("--data", "digitz"), "digitz"),
    "optimizer": ((*QUICK, "--optimizer", "adan"), "Did you mean 'adam'"),
    "momentum": ((*QUICK, "--momentum", "-1"), "momentum=-1.0 is not valid"),
    "device": ((*QUICK, "--device", "abacus"), "device='abacus'"),
    "seed": ((*QUICK, "--seed", "-1"), "seed=-1"),
    "views": ((*QUICK, "--views", "0"), "views=0"),
    "augmentations": ((*QUICK, "--augmentations", "turn"), "augmentations='turn'"),
    "switch": ((*QUICK, "--method", "sai", "--switch", "soon"), "'soon' is not a fraction"),
    "preset": (("--preset", "paper"), "has no settings there"),
    "option": (("--epsilonn", "1"), "No such option"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_and_exit_code_two(case: str, run: Inside) -> None:
    """And no folder is left behind."""
    arguments, words = BAD[case]
    assert words in run.refused("train", *arguments)
    assert not Path("runs").exists()


def test_a_folder_with_a_run_is_not_written_over(run: Inside) -> None:
    assert run("train", *QUICK, "--out", "here", "--quiet")[0] == 0
    assert "already holds a run" in run.refused("train", *QUICK, "--out", "here", "--quiet")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    bad = ("calibrate", "--epsilon", "-1", "--population", "9", "--batch-size", "3", "--steps", "1")
    plain, debug = saltflat(*bad, cwd=tmp_path), saltflat(*bad, "--debug", cwd=tmp_path)
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr
    assert "InputError" in debug.stderr
    assert debug.returncode == 2


def test_a_table_of_ones_own_with_people(run: Inside) -> None:
    write_table("visits.csv")
    settings = ("--noise-multiplier", "4", "--delta", "1e-3", "--steps", "3", "--batch-size", "8")
    code, out, err = run(
        "train", "--data", "visits.csv", "--label", "outcome", "--group", "patient", *settings, "--json"
    )
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    assert found["unit"] == "person"
    assert math.isfinite(found["epsilon"])


def test_features_of_ones_own_images_are_written_nowhere(
    run: Inside, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Fails when features are kept in the cache whatever they are made of: they tell of the images."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for label in ("cat", "dog"):
        folder = Path("pets") / label
        folder.mkdir(parents=True)
        for i in range(4):
            Image.new("L", (16, 16), 20 * i + 10 * len(label)).save(folder / f"{i}.png")
    settings = ("--noise-multiplier", "4", "--delta", "1e-3", "--steps", "2", "--batch-size", "4")
    code, _, err = run("train", "--data", "pets", "--model", "scatter-linear", *settings, "--out", "here")
    assert code == 0, err
    assert not list(cache.rglob("*.safetensors"))


def test_images_of_several_sizes(run: Inside) -> None:
    """Refused with the option that helps; with it, they are trained on, and other images are brought to that size."""
    for folder in ("scans", "later"):
        for number in range(8):
            place = Path(folder, "low" if number < 4 else "high")
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (9 + number, 8), 30 * number).save(place / f"{number}.png")
    plan = (
        "--steps",
        "2",
        "--batch-size",
        "4",
        "--population",
        "8",
        "--noise-multiplier",
        "4",
        "--delta",
        "0.01",
    )
    assert "--image-size" in run.refused("train", "--data", "scans", *plan, "--out", "run")
    run.answer("train", "--data", "scans", "--image-size", "8", *plan, "--out", "run", "--json")
    code, _, err = run("evaluate", "run", "--data", "later", "--size", "8", "--epsilon", "1", "--disjoint")
    assert code == 0, err
    code, _, err = run("evaluate", "run", "--size", "8", "--epsilon", "1")
    assert code == 0, err


# --- tables ---------------------------------------------------------------------------------------------

DECLARED = (
    "--label", "outcome", "--population", "120", "--batch-size", "40", "--steps", "3", "--delta", "1e-3",
)  # fmt: skip


def test_classes_that_were_read_from_the_rows_are_not_claimed_to_be_secret(run: Inside) -> None:
    """One row with a new label would change the model's shape. Fails when a declared population is enough (tried)."""
    write_table("visits.csv")
    read = run.answer("train", "--data", "visits.csv", *DECLARED, "--out", "read", "--json")
    assert read["relation"] == "zero-out"
    _, _, err = run("train", "--data", "visits.csv", *DECLARED, "--out", "again")
    assert "read from the data: zero-out is certified; --classes would declare them" in err
    told = run.answer(
        "train", "--data", "visits.csv", *DECLARED, "--classes", "no,yes", "--out", "said", "--json"
    )
    assert told["relation"] == "add-remove"
    assert "holds the label" in run.refused("train", "--data", "visits.csv", *DECLARED, "--classes", "a,b")


def test_other_rows_are_read_as_those_that_were_trained_on(run: Inside) -> None:
    """By the names of columns and classes. Fails when a table's columns are taken in their own order (tried)."""
    import pyarrow.csv

    write_table("visits.csv")
    run.answer("train", "--data", "visits.csv", *DECLARED, "--out", "here", "--json")
    facts = json.loads(Path("here/run.json").read_text())["facts"]
    table = pyarrow.csv.read_csv("visits.csv")
    features = [name for name in table.column_names if name != "outcome"]
    assert (facts["columns"], facts["classes"]) == (features, ["no", "yes"])
    moved = table.select(["outcome", *features[::-1]]).append_column("more", table.column(features[0]))
    pyarrow.csv.write_csv(moved, "moved.csv")
    evaluate = (
        "evaluate",
        "here",
        "--label",
        "outcome",
        "--part",
        "all",
        "--epsilon",
        "1e4",
        "--json",
        "--data",
    )
    apart = run.answer(*evaluate, "visits.csv")["accuracy"] - run.answer(*evaluate, "moved.csv")["accuracy"]
    assert abs(apart) < 0.005  # the noise of both
    pyarrow.csv.write_csv(moved.rename_columns([*moved.column_names[:-2], "years", "more"]), "renamed.csv")
    assert "The model was trained on a column of that name" in run.refused(*evaluate, "renamed.csv")
    labels = pyarrow.array([f"class {v}" for v in table.column("outcome").to_pylist()])
    other = table.set_column(table.column_names.index("outcome"), "outcome", labels)
    pyarrow.csv.write_csv(other, "spelled.csv")
    assert "the declared classes no, yes" in run.refused(*evaluate, "spelled.csv")


def test_an_audit_of_a_run_takes_the_data_of_the_run(run: Inside) -> None:
    """Fails when it takes the default data set, whose rows have another shape (tried)."""
    write_table("visits.csv")
    run.answer("train", "--data", "visits.csv", *DECLARED, "--out", "here", "--json")
    assert run.answer("audit", "here", "--quick", "--quiet", "--json")["passed"]


def test_the_rate_that_is_taken_is_on_record(run: Inside) -> None:
    """Also where nobody named one. Fails when the plan leaves it to the optimizer (tried: it was written nowhere)."""
    run.answer("train", "--steps", "2", "--clip-norm", "0.5", "--out", "here", "--json")
    plan = json.loads(Path("here/plan.json").read_text())
    assert [phase["learning_rate"] for phase in plan["phases"]] == [0.4]
    assert plan["optimizer"]["name"] == "sgd"


def test_predictions_by_name(run: Inside) -> None:
    """Of a table without labels, in the order of its rows, in the names of the classes. What Python says, too."""
    import pyarrow.csv

    write_table("visits.csv")
    run.answer("train", "--data", "visits.csv", *DECLARED, "--out", "here", "--json")
    table = pyarrow.csv.read_csv("visits.csv")
    features = [name for name in table.column_names if name != "outcome"]
    pyarrow.csv.write_csv(table.select(features[::-1]).slice(0, 9), "new.csv")
    found = run.answer("predict", "here", "--data", "new.csv", "--scores", "--json")["predictions"]
    rows = torch.tensor(list(zip(*(table.column(name).to_pylist()[:9] for name in features)))).float()
    expected = sf.Run.load("here").outputs(rows).double().softmax(1)
    assert [row["prediction"] for row in found] == [("no", "yes")[place] for place in expected.argmax(1)]
    assert [row["score yes"] for row in found] == pytest.approx(expected[:, 1].tolist(), abs=1e-6)
    code, out, err = run("predict", "here", "--data", "new.csv", "--out", "predicted.csv")
    assert (code, out) == (0, "9 rows in predicted.csv\n"), err
    assert Path("predicted.csv").read_text().split() == ["prediction", *(row["prediction"] for row in found)]
    assert "is there already" in run.refused("predict", "here", "--data", "new.csv", "--out", "predicted.csv")
    pyarrow.csv.write_csv(table.select(features[1:]), "less.csv")
    assert "was trained on a column of that name" in run.refused("predict", "here", "--data", "less.csv")


def test_predictions_of_known_data(run: Inside) -> None:
    run.answer("train", *QUICK, "--method", "dp-sgd+ema", "--out", "here", "--json")
    _, out, _ = run("predict", "here", "--average")
    lines = out.split()
    assert lines[0] == "prediction"
    assert len(lines) == 361
    assert set(lines[1:]) <= set("0123456789")
