"""``saltflat geometry`` through the command line: its files, its labels, and what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Inside, write_table

import saltflat as sf
from saltflat.geometry.rows import TEST, TRAIN

TRAINED = (
    "train", "--data", "digits", "--model", "mlp", "--epsilon", "4", "--delta", "1e-4", "--batch-size", "256",
    "--steps", "12", "--quiet",
)  # fmt: skip
QUICK = ("--rows", "40", "--points", "3", "--rays", "2", "--probes", "2", "--tolerance", "0.02")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that the tests copy: one of them averages."""
    from click.testing import CliRunner

    from saltflat.cli.app import app

    folder = tmp_path_factory.mktemp("runs")
    for name, method in (("plain", "dp-sgd"), ("averaged", "dp-sgd+swa")):
        done = CliRunner().invoke(app, [*TRAINED, "--method", method, "--out", str(folder / name)])
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def runs(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path / "runs")
    return tmp_path / "runs"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def read(path: Path) -> Any:
    return json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_run_gets_its_geometry_and_stays_verified(run: Inside, runs: Path) -> None:
    """Fails when a file that the certificate covers is touched."""
    folder = runs / "plain"
    before = contents(folder)
    code, out, err = run("geometry", str(folder), *QUICK, "--parts", "all")
    assert code == 0, err
    assert "λ_max" in out
    assert TEST in out
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    pictures = [f"geometry-{part}.png" for part in ("spectrum", "landscape", "wideness", "gradients")]
    assert set(after) - set(before) == {"geometry.json", *pictures}
    assert sf.verify(folder).passed
    found = read(folder / "geometry.json")
    assert found["format"] == 1
    assert found["data"] == {"name": "digits", "split": "test", "rows": 40, "covered": TEST}
    assert len(found["eigenvalues"]) == 5
    assert found["lambda_max"] == found["eigenvalues"][0]
    assert found["tolerance"] == 0.02
    assert set(found["trace"]) == {"value", "error"}
    assert len(found["landscape"]["loss"]) == len(found["landscape"]["alpha"]) == 3
    assert (
        len(found["wideness"]["loss"])
        == len(found["wideness"]["distance"])
        == len(found["wideness"]["spread"])
    )
    assert found["gradient_norms"]["clip_norm"] == sf.Run.load(folder).plan.phases[-1].clip_norm
    exact = sf.geometry.Loss(sf.Run.load(folder).model, sf.data.load("digits").test, rows=40)
    assert found["loss"] == pytest.approx(exact.measure().loss)


def test_two_runs_and_the_line_between_them(run: Inside, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = run.answer(
        "geometry", str(runs / "plain"), str(runs / "averaged"), *QUICK, "--parts", "wideness", "--out",
        str(out), "--weights", "last,average", "--json",
    )  # fmt: skip
    assert not (runs / "plain" / "geometry.json").exists()
    assert (out / "plain" / "geometry.json").exists()
    line = read(out / "interpolation.json")
    assert line == answer["interpolations"][0]
    assert line["runs"][1].endswith("averaged (average)")
    assert line["train"] is None
    assert (line["alpha"][0], line["alpha"][-1]) == (-0.5, 1.5)
    here = line["alpha"].index(0.0)
    assert line["test"]["loss"][here] == pytest.approx(answer["runs"][0]["loss"])
    there = line["alpha"].index(1.0)
    assert line["test"]["accuracy"][there] == pytest.approx(answer["runs"][1]["accuracy"])
    wide = [sum(found["wideness"]["accuracy"]) for found in answer["runs"]]
    assert line["wideness_gain"] == pytest.approx(100 * (wide[1] - wide[0]) / wide[0])
    assert answer["runs"][1]["eigenvalues"] is None
    assert {Path(path).name for path in answer["pictures"]} == {
        "geometry-wideness.png", "interpolation.png", "wideness.png",
    }  # fmt: skip


def test_last_and_average_of_one_run(run: Inside, runs: Path) -> None:
    folder = str(runs / "averaged")
    code, out, err = run(
        "geometry", folder, folder, *QUICK, "--weights", "last,average", "--parts", "wideness", "--no-pictures",
    )  # fmt: skip
    assert code == 0, err
    assert read(runs / "averaged" / "geometry.json")["weights"] == "last"
    assert read(runs / "averaged" / "geometry-average.json")["weights"] == "average"
    assert " % " in out
    assert not list(runs.rglob("*.png"))


def test_private_rows_only_when_asked_for_and_labelled(run: Inside, runs: Path) -> None:
    folder = runs / "plain"
    assert "--private" in run.refused("geometry", str(folder), *QUICK, "--split", "train")
    assert not (folder / "geometry.json").exists()
    code, out, _ = run(
        "geometry", str(folder), *QUICK, "--split", "train", "--private", "--parts", "gradients"
    )
    assert code == 0
    assert TRAIN in out
    assert read(folder / "geometry.json")["data"]["covered"] == TRAIN
    other = str(runs / "averaged")
    code, _, _ = run(
        "geometry", str(folder), other, *QUICK, "--private", "--parts", "wideness", "--no-pictures"
    )
    assert code == 0
    line = read(folder / "interpolation.json")
    assert line["train_data"]["covered"] == TRAIN
    assert len(line["train"]["loss"]) == 41
    assert line["data"]["covered"] == TEST


def test_test_rows_that_were_held_out_are_found_again(run: Inside, tmp_path: Path) -> None:
    """Fails when the share that was held out is not read from the run (it once was not)."""
    write_table(str(tmp_path / "visits.csv"))
    words = ("--data", str(tmp_path / "visits.csv"), "--label", "outcome", "--test-fraction", "0.25")
    settings = ("--noise-multiplier", "4", "--delta", "1e-3", "--steps", "2", "--out", str(tmp_path / "run"))
    assert run("train", *words, *settings, "--quiet")[0] == 0
    code, out, err = run("geometry", str(tmp_path / "run"), "--parts", "gradients", "--no-pictures")
    assert code == 0, err
    assert "on 30 rows" in out


def test_what_is_refused(run: Inside, runs: Path, tmp_path: Path) -> None:
    plain = str(runs / "plain")
    for words, says in (
        ((), "at least one run folder"),
        ((plain, "--parts", "spectrun"), "Did you mean 'spectrum'"),
        ((plain, "--weights", "average"), "averaged nothing"),
        ((plain, "--weights", "last,last"), "one word"),
        ((plain, "--weights", "best"), "last or average"),
        ((plain, "--split", "public"), "--data"),
        ((str(tmp_path),), "holds no run"),
        ((plain, "--rows", "0"), "rows"),
    ):
        assert says in run.refused("geometry", *words)
    assert not list(runs.rglob("geometry.json"))


def test_a_run_from_python_needs_data(run: Inside, tmp_path: Path) -> None:
    plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=2)
    data = sf.data.load("digits")
    sf.fit(sf.models.build("mlp"), data.train, plan, out=tmp_path / "own", progress=False)
    assert "--data" in run.refused("geometry", str(tmp_path / "own"), *QUICK)
    words = ("--data", "digits", "--parts", "gradients", "--split", "public")
    code, out, _ = run("geometry", str(tmp_path / "own"), *QUICK, *words)
    assert code == 0
    assert "no ε is needed" in out


def test_without_matplotlib_the_numbers_are_written(
    run: Inside, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("geometry", str(runs / "plain"), *QUICK, "--parts", "wideness")
    assert code == 0
    assert "saltflat[plot]" in err
    assert (runs / "plain" / "geometry.json").exists()
    assert "saltflat[plot]" in run.refused("geometry", "--toy", "--out", str(runs))


def test_the_toy_pictures(run: Inside, tmp_path: Path) -> None:
    code, out, _ = run("geometry", "--toy", "--out", str(tmp_path / "toy"), "--json")
    assert code == 0
    assert [Path(path).name for path in json.loads(out)["pictures"]] == [
        "two-minima.png",
        "two-minima-noise.png",
    ]


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from saltflat.cli.geometry import telling_of
    from saltflat.training.progress import NotedBar

    with NotedBar("", None, shown=True) as bar:
        told = telling_of("runs/a", bar)
        told("eigenvalues on 40 rows", 3, 300)
        told("landscape", 9, 9)
    said = capsys.readouterr().err
    assert "runs/a: landscape" in said
    assert "9/9" in said
