"""``saltflat synthesize``: train, sample, evaluate, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from cli_helpers import Inside

from saltflat.data import load, public_split

TRAIN = ["synthesize", "train", "--public", "digits", "--batch-size", "8", "--grids", "0", "--json"]


def test_from_public_rows_to_a_verdict(run: Inside) -> None:
    answer = run.answer(*TRAIN, "--public-fraction", "0.1", "--steps", "3", "--out", "model")
    assert (answer["size"], answer["steps"], answer["public"]["rows"]) == ("tiny", 3, 140)
    assert answer["public"]["public_fraction"] == 0.1
    with np.load("model/public.npz") as held:
        assert np.array_equal(held["rows"], public_split(load("digits").train.targets.numpy(), 0.1, 0)[0])
    code, out, err = run("synthesize", "train", "--resume", "model", "--steps", "5", "--grids", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["steps"] == 5
    answer = run.answer("synthesize", "sample", "model", "--count", "30", "--steps", "2", "--json")
    assert answer["provenance"] == "synthetic-from-public"
    assert answer["trained_steps"] == 5
    answer = run.answer("synthesize", "evaluate", "model", "samples.npz", "--classifier-steps", "5", "--json")
    assert set(answer["accuracies"]) >= {"samples", "as many augmented copies of public rows"}
    kept = json.loads(Path("model/evaluation/quality.json").read_text())
    assert kept == answer | {"samples_file": "samples.npz"}
    assert Path("model/evaluation/neighbours.png").exists()
    code, out, err = run("synthesize", "evaluate", "model", "samples.npz", "--classifier-steps", "5")
    assert code == 0
    assert "precision (faithful)" in out
    assert "not covered by ε" in out
    assert "measuring:" in err


def test_words_for_people(run: Inside) -> None:
    code, out, _ = run(*TRAIN[:-1], "--public-fraction", "0.1", "--steps", "1", "--out", "model")
    assert code == 0
    assert "trained on 140 public rows of digits" in out
    code, out, _ = run(
        "synthesize", "sample", "model", "--count", "10", "--steps", "2", "--guidance", "2",
        "--discriminator-steps", "2",
    )  # fmt: skip
    assert code == 0
    assert "10 samples in samples.npz, made from 140 public rows of digits" in out
    assert "of held-out images" in out


def test_bad_input_is_two_and_says_what_to_do(run: Inside, tmp_path: Path) -> None:
    cases = [
        (["synthesize", "train"], "--public FOLDER"),
        ([*TRAIN, "--public-fraction", "2"], "public_fraction"),
        (["synthesize", "train", "--resume", "nothing"], "holds no diffusion model"),
        (["synthesize", "train", "--resume", "nothing", "--public", "digits"], "A model goes on"),
        (["synthesize", "train", "--public", "digitts"], "Did you mean 'digits'"),
        ([*TRAIN, "--device", "nonsense"], "cpu always can"),
        (["synthesize", "sample", "nothing"], "holds no diffusion model"),
    ]
    for arguments, words in cases:
        assert words in run.refused(*arguments)


def test_public_is_a_declaration_but_a_file_that_says_private_is_refused(run: Inside) -> None:
    np.savez("rows.npz", X=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 2, provenance="private")
    err = run.refused("synthesize", "train", "--public", "rows.npz", "--steps", "1")
    assert "public='rows.npz' is marked private" in err
    assert not Path("runs").exists()
    np.savez("rows.npz", X=np.eye(8, dtype=np.uint8)[None].repeat(20, 0), y=np.arange(20) % 2)
    code, _, err = run("synthesize", "train", "--public", "rows.npz", "--steps", "1", "--grids", "0")
    assert code == 0, err
    assert "all training rows of rows.npz are taken as public, because --public says so" in err
