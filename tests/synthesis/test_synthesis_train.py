"""Training: only public rows, resumable to the last bit, and it learns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from synthesis_helpers import public_digits, quick, trained

from saltflat import synthesis
from saltflat.data import load, public_part, public_split
from saltflat.errors import InputError
from saltflat.record.canonical import DamagedError
from saltflat.record.lock import FolderLock, InUseError
from saltflat.synthesis import SynthesisFolder, resume, train
from saltflat.synthesis.train import Trainer


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    found = SynthesisFolder(folder).load()
    assert found is not None
    return found[0]


def assert_same(first: Path, second: Path) -> None:
    one, two = state_of(first), state_of(second)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


class Stopped(Exception):
    pass


def test_private_rows_are_refused_with_the_cure(tmp_path: Path) -> None:
    private = load("digits").train
    for attempt in (
        lambda: train(private, quick()),
        lambda: train(private, quick(), out=tmp_path / "a"),
        lambda: Trainer(quick(), synthesis.train(public_digits(), quick(1)).frame, private),
        lambda: synthesis.evaluate(public_digits(), private),
    ):
        with pytest.raises(InputError, match=r"public=.*marked private") as error:
            attempt()
        assert error.value.argument == "public"
        assert "public_fraction" in error.value.cure
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("at", [1, 5])
def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path: Path, at: int) -> None:
    """Fails when Adam's moments are not restored, and when noise goes on from the global generator (tried)."""
    whole = trained(tmp_path / "whole")

    def stop(step: int, total: int, loss: float) -> None:
        torch.rand(step)  # somebody else draws, too
        if step == at:
            raise Stopped

    with pytest.raises(Stopped):
        train(
            public_digits(),
            quick(),
            out=tmp_path / "cut",
            source={"data": "digits"},
            checkpoint_every=0,
            grids=0,
            progress=stop,
        )
    resume(tmp_path / "cut", grids=0)
    assert_same(whole, tmp_path / "cut")
    assert (whole / "metrics.jsonl").read_text() == (tmp_path / "cut" / "metrics.jsonl").read_text()


def test_more_steps_equal_more_steps_from_the_start(tmp_path: Path) -> None:
    trained(tmp_path / "short", steps=4)
    resume(tmp_path / "short", steps=6, grids=0)
    trained(tmp_path / "long", steps=6)
    assert_same(tmp_path / "long", tmp_path / "short")


def test_killed_it_loses_no_more_than_an_interval(tmp_path: Path) -> None:
    """A process that is killed outright, and one that goes on from what it left."""
    folder = tmp_path / "model"
    options = "--public digits --public-fraction 0.1 --size tiny --batch-size 8 --steps 100000"
    options += f" --checkpoint-every 0 --out {folder}"
    command = [sys.executable, "-m", "saltflat", "synthesize", "train", *options.split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
    until = time.monotonic() + 200
    while not (folder / "metrics.jsonl").exists():  # written after a checkpoint
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    found = SynthesisFolder(folder).load()
    assert found is not None
    step = found[1]["step"]
    assert step >= 1
    made = resume(folder, steps=step + 1, grids=0)
    assert made.origin["trained_steps"] == step + 1


def test_it_learns() -> None:
    """The loss of knowing nothing is one; eighty small steps know a good deal."""
    losses: list[float] = []
    settings = synthesis.settings_for("tiny", steps=80, batch_size=16, rampup=160, learning_rate=4e-3)
    train(public_digits(), settings, progress=lambda step, total, loss: losses.append(loss))
    assert np.mean(losses[:5]) > 0.8
    assert np.mean(losses[-20:]) < 0.7


def test_the_folder_says_what_it_was_made_from(tmp_path: Path) -> None:
    digits = load("digits").train
    part, rows = public_part(digits, 0.1, seed=3)
    train(
        part,
        quick(1),
        out=tmp_path / "model",
        rows=rows,
        grids=1,
        source={"data": "digits", "public_fraction": 0.1},
    )
    folder = SynthesisFolder(tmp_path / "model")
    facts = folder.facts()
    assert facts["public"]["provenance"] == "public"
    assert (facts["public"]["name"], facts["public"]["rows"], facts["public"]["data"]) == (
        "digits",
        140,
        "digits",
    )
    with np.load(tmp_path / "model" / "public.npz") as held:
        assert np.array_equal(held["rows"], public_split(digits.targets.numpy(), 0.1, 3)[0])
    assert torch.equal(folder.public().inputs, part.inputs)
    assert folder.settings() == quick(1)
    assert len(list((tmp_path / "model" / "grids").glob("*.png"))) == 1


def test_refusals(tmp_path: Path) -> None:
    trained(tmp_path / "model", steps=1)
    with pytest.raises(InputError, match="holds a diffusion model already"):
        train(public_digits(), quick(1), out=tmp_path / "model")
    with pytest.raises(InputError, match="holds no diffusion model"):
        resume(tmp_path / "nothing")
    lock = FolderLock(tmp_path / "model")
    with pytest.raises(InUseError):
        resume(tmp_path / "model", steps=2)
    lock.release()
    content = bytearray((tmp_path / "model" / "checkpoint.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model" / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(DamagedError, match="hash does not fit"):
        resume(tmp_path / "model", steps=2)
    facts = json.loads((tmp_path / "model" / "synthesis.json").read_text())
    (tmp_path / "model" / "synthesis.json").write_text(json.dumps(facts | {"format": 2}))
    with pytest.raises(DamagedError, match="format 2"):
        resume(tmp_path / "model")


def test_changed_public_rows_are_noticed(tmp_path: Path) -> None:
    trained(tmp_path / "model", steps=1)
    path = tmp_path / "model" / "public.npz"
    with np.load(path) as held:
        arrays = dict(held)
    arrays["X"][0, 0, 0, 0] += 1 / 16
    np.savez(path, **arrays)
    with pytest.raises(DamagedError, match="was changed"):
        SynthesisFolder(tmp_path / "model").public()


def test_only_images_can_be_learned() -> None:
    from saltflat.data import Examples

    table = Examples(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), "public", num_classes=2)
    with pytest.raises(InputError, match="does not hold images"):
        train(table, quick(1))
    with pytest.raises(InputError, match="size"):
        synthesis.settings_for("huge")
