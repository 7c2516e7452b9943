"""``saltflat train`` with public data, and ``saltflat recipe``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Inside, killed_after

import saltflat as sf

WARM = ["--public-fraction", "0.2", "--warm-up-epochs", "2"]
SHORT = ["--data", "digits", "--delta", "1e-4", "--batch-size", "64", "--steps", "4"]


def trained(run: Inside, *arguments: str) -> dict[str, object]:
    code, out, err = run("train", *SHORT, *arguments, "--json")
    assert code == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def test_the_scenario_follows_from_what_is_given(run: Inside) -> None:
    np.savez("s.npz", X=np.zeros((20, 1, 8, 8), np.uint8), y=np.arange(20) % 10)
    views = ["--views", "2", "--augmentations", "crop", "--public-batch", "8"]
    assert trained(run, *WARM, "--out", "a")["scenario"] == "warm"
    assert trained(run, *WARM, "--synthetic", "s.npz", "--out", "b")["scenario"] == "warm-syn"
    assert trained(run, *WARM, "--scenario", "cold", "--out", "c")["scenario"] == "cold"
    found = trained(run, *WARM, "--method", "weight-multiplicity", *views, "--out", "d")
    assert (found["scenario"], found["private"]) == ("extended", True)
    assert "scenario" not in trained(run, "--out", "e")
    plan = sf.Plan.load("d/plan.json")
    assert (plan.multiplicity.views, plan.multiplicity.public_batch) == (2, 8)
    code, out, _ = run("verify", "d")
    assert code == 0, out


@pytest.mark.parametrize(
    "method", [[], ["--scenario", "extended", "--method", "dope-sgd", "--public-batch", "8"]]
)
def test_four_in_a_hundred_rows_are_public_if_none_are_named(method: list[str], run: Inside) -> None:
    """That is said, and kept."""
    words = [*SHORT, "--scenario", "warm", *method, "--warm-up-epochs", "1", "--out", "r"]
    code, _, err = run("train", *words)
    assert code == 0, err
    assert "a share of 0.04 of the training rows is declared public" in err
    public = sf.data.load("digits", public_fraction=0.04).public
    entry = json.loads(Path("r/certificate.json").read_text())["public"][0]
    assert (entry["rows"], entry["declared_by"]) == (len(public), public.declared_by)
    facts = json.loads(Path("r/run.json").read_text())["facts"]
    assert facts["options"]["public_fraction"] == 0.04, "what a run that goes on splits by"


def test_public_rows_of_ones_own_and_who_vouches(run: Inside, tmp_path: Path) -> None:
    digits = sf.data.load("digits").test
    np.savez("open.npz", X=(digits.inputs * 255).byte().numpy(), y=digits.targets.numpy())
    trained(run, "--public", "open.npz", "--public-by", "the clinics", "--warm-up", "sam", "--warm-up-epochs", "1",
            "--warm-up-augmentations", "crop,cutout", "--out", "r")  # fmt: skip
    (entry,) = json.loads(Path("r/certificate.json").read_text())["public"]
    assert (entry["declared_by"], entry["rows"], entry["used"]) == ("the clinics", 360, "warm-up")
    assert "on the word of the clinics" in Path("r/certificate.html").read_text(encoding="utf-8")


def image_folders(root: str, count: int, seed: int) -> None:
    """A folder of images for each of two classes."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    for name in ("healthy", "ill"):
        (Path(root) / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 255, (8, 8)).astype(np.uint8)
            Image.fromarray(pixels).save(f"{root}/{name}/{number}.png")


@pytest.mark.parametrize("command", ["train", "recipe"])
def test_a_public_folder_of_ones_own(command: str, run: Inside) -> None:
    """Its classes are those of the private folders, by name. Fails when they are taken for numbers (as they were)."""
    image_folders("scans", 60, seed=0)
    image_folders("open", 10, seed=1)
    words = [command, "--data", "scans", "--model", "mlp", "--scenario", "warm", "--epsilon", "3", "--delta", "1e-3",
             "--batch-size", "20", "--steps", "2", "--warm-up-epochs", "1"]  # fmt: skip
    own = ["--public", "open", "--public-by", "the clinics", "--out", "r"]
    code, _, err = run(*words, *own)
    assert code == 0, err
    folder = Path("r/run" if command == "recipe" else "r")
    (entry,) = json.loads((folder / "certificate.json").read_text())["public"]
    assert (entry["declared_by"], entry["rows"], entry["name"]) == ("the clinics", 20, "open")
    assert "not both" in run.refused(*words, *own, "--public-fraction", "0.1")
    err = run.refused(*words, "--public", "nowhere", "--out", "s")
    assert "public='nowhere' is neither known nor there" in err
    Path("scans/ill/3.png").rename("open/healthy/private.png")
    Path("scans/ill/3.png").write_bytes(Path("open/healthy/private.png").read_bytes())
    err = run.refused(*words, "--public", "open", "--public-by", "the clinics", "--out", "t")
    assert "public='open' holds a row of the private data" in err


def test_classes_of_public_rows_may_be_numbers(run: Inside) -> None:
    """In a file of arrays; a class that the private data does not have is refused by its own name."""
    image_folders("scans", 40, seed=0)
    pixels = np.random.default_rng(1).integers(0, 255, (20, 8, 8)).astype(np.uint8)
    words = ["train", "--data", "scans", "--model", "mlp", "--epsilon", "3", "--delta", "1e-3", "--batch-size", "20",
             "--steps", "2", "--warm-up-epochs", "1", "--public", "open.npz"]  # fmt: skip
    np.savez("open.npz", X=pixels, y=np.arange(20) % 2)
    code, _, err = run(*words, "--out", "r")
    assert code == 0, err
    np.savez("open.npz", X=pixels, y=np.arange(20) % 3)
    assert "healthy" in run.refused(*words, "--out", "s")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "dope-sgd"], "public data"),
        (["--warm-up", "sam"], "data that is not there"),
        (["--scenario", "extended"], "does not go with dp-sgd"),
        ([*WARM, "--scenario", "warm-syn"], "synthetic is missing"),
        ([*WARM, "--scenario", "extended"], "does not go with dp-sgd"),
        ([*WARM, "--public", "digits"], "is given beside the other"),
        (
            ["--public", "digits", "--warm-up-epochs", "1", "--method", "dope-sgd"],
            "holds a row of the private",
        ),
        ([*WARM, "--public-batch", "3"], "a setting of dp-sgd"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], words: str, run: Inside) -> None:
    assert words in run.refused("train", *SHORT, *arguments)


@pytest.mark.parametrize("option", ["--public", "--synthetic"])
def test_a_private_row_in_a_file_is_refused(option: str, run: Inside) -> None:
    """One among many, in warm and in warm-syn."""
    digits = sf.data.load("digits")
    rows = np.concatenate([digits.test.inputs.numpy(), digits.train.inputs[3:4].numpy()])
    np.savez("open.npz", X=rows, y=np.append(digits.test.targets.numpy(), digits.train.targets[3]))
    err = run.refused("train", *SHORT, option, "open.npz", "--warm-up-epochs", "1", "--out", "r")
    assert "holds a row of the private data" in err
    assert not Path("r").exists()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("features", [False, True])
def test_copies_inside_a_data_set_are_left_out_and_that_is_said(features: bool, run: Inside) -> None:
    """Once, and the population is what is left; also where features take the place of images."""
    digits = sf.data.load("digits").train
    images = digits.inputs[:200].repeat(2, 1, 1, 1).repeat_interleave(2, 2).repeat_interleave(2, 3)
    np.savez("twice.npz", X=images.numpy(), y=digits.targets[:200].repeat(2).numpy())
    arguments = ["--model", "scatter-linear"] if features else []
    code, _, err = run("train", "--data", "twice.npz", *SHORT[2:], *WARM, *arguments, "--out", "r")
    assert code == 0, err
    (said,) = [line for line in err.splitlines() if "warning" in line]
    assert said.endswith("Copies of public rows are left out of the private side.")
    assert sf.Plan.load("r/plan.json").sampling.population < 320


@pytest.mark.slow
def test_a_run_with_public_gradients_is_killed_and_resumed(run: Inside, tmp_path: Path) -> None:
    import sys

    command = [sys.executable, "-m", "saltflat", "train", *SHORT[:-1], "200", *WARM, "--method", "ada-dps",
               "--public-batch", "16", "--out", "r", "--quiet"]  # fmt: skip
    killed_after(4, command, tmp_path / "r", cwd=tmp_path)
    assert "public_seed=3 differs" in run.refused("train", "--resume", "r", "--public-seed", "3")
    assert run.answer("train", "--resume", "r", "--json")["method"] == "ada-dps"
    assert sf.verify("r").passed


def test_the_recipe(run: Inside) -> None:
    short = ["--data", "digits", "--model", "mlp", "--scenario", "warm", "--public-fraction", "0.2", "--delta", "1e-4",
             "--steps", "3", "--batch-size", "64", "--views", "2", "--augmentations", "crop", "--warm-up-epochs", "1",
             "--warm-up-augmentations", "crop", "--until", "run", "--out", "r"]  # fmt: skip
    code, out, err = run("recipe", *short)
    assert code == 0, err
    assert "warm-up: epoch 1 of 1" in err
    assert "accuracy of the averaged weights" in out
    code, out, _ = run("recipe", *short, "--json")
    found = json.loads(out)
    assert (code, found["run"], found["private"]) == (0, "r/run", True)
    assert "epsilon='3.0' differs" in run.refused("recipe", *short, "--epsilon", "3")
