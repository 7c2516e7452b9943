"""Samples in a file: what it holds, that it goes on after a stop, and what `evaluate` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from synthesis_helpers import public_digits, trained

from saltflat import synthesis
from saltflat.data import Examples, load
from saltflat.errors import InputError
from saltflat.synthesis import DiscriminatorSettings, evaluate, read_samples, sample


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("synthesis") / "model")


def test_the_file_says_what_it_is(model: Path, tmp_path: Path) -> None:
    path = sample(model, tmp_path / "s.npz", count=25, steps=2)
    with np.load(path) as held:
        assert held["X"].dtype == np.uint8
        assert held["X"].shape == (25, 1, 8, 8)
        assert held["y"].tolist() == [i % 10 for i in range(25)]
        assert str(held["provenance"]) == "synthetic-from-public"
        origin = json.loads(str(held["made_from"]))
    assert origin["public"]["rows"] == 140
    assert origin["public"]["name"] == "digits"
    assert origin["sampler"]["steps"] == 2
    examples, again = read_samples(path)
    assert examples.provenance == "synthetic"
    assert again == origin
    loaded = load(path, provenance="synthetic").train
    assert torch.equal(loaded.inputs, examples.inputs)
    assert torch.equal(loaded.targets, examples.targets)


def test_a_sampling_that_was_cut_off_goes_on(model: Path, tmp_path: Path) -> None:
    """The same samples, and the first batch is not drawn again. Fails when batches share a stream (tried)."""
    asked = {"count": 25, "steps": 2, "batch_size": 10, "dtype": "float32"}
    whole, _ = read_samples(sample(model, tmp_path / "whole.npz", **asked))

    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        sample(model, tmp_path / "cut.npz", **asked, progress=stop)
    assert not (tmp_path / "cut.npz").exists()
    (kept,) = tmp_path.glob(".cut.npz.*.parts/*.npz")
    drawn_at = kept.stat().st_mtime_ns
    seen: list[int] = []
    sample(
        model,
        tmp_path / "cut.npz",
        **asked,
        progress=lambda done, total: seen.append(kept.stat().st_mtime_ns),
    )
    assert set(seen) == {drawn_at}
    cut, _ = read_samples(tmp_path / "cut.npz")
    assert torch.equal(whole.inputs, cut.inputs)
    assert not list(tmp_path.glob(".cut*"))
    assert not torch.equal(whole.inputs[:10], whole.inputs[10:20])  # the same classes, other noise
    other, _ = read_samples(sample(model, tmp_path / "other.npz", **asked, seed=1))
    assert not torch.equal(whole.inputs, other.inputs)


def test_guidance_changes_samples_and_is_recorded(model: Path, tmp_path: Path) -> None:
    asked = {"count": 10, "steps": 3, "dtype": "float32", "discriminator": DiscriminatorSettings(steps=5)}
    plain, _ = read_samples(sample(model, tmp_path / "plain.npz", **asked))
    assert not (model / "discriminator.safetensors").exists()
    guided, origin = read_samples(sample(model, tmp_path / "guided.npz", guidance=5.0, **asked))
    assert not torch.equal(plain.inputs, guided.inputs)
    told = origin["sampler"]["discriminator"]
    assert told["settings"]["steps"] == 5
    assert 0 <= told["held_out_accuracy"] <= 1
    written = (model / "discriminator.safetensors").stat().st_mtime_ns
    again, _ = read_samples(sample(model, tmp_path / "again.npz", guidance=5.0, **asked))
    assert torch.equal(again.inputs, guided.inputs)
    assert (model / "discriminator.safetensors").stat().st_mtime_ns == written


def test_refusals(model: Path, tmp_path: Path) -> None:
    for wrong in ({"guidance": -1.0}, {"dtype": "int8"}, {"count": 0}, {"steps": 0}):
        with pytest.raises(InputError):
            sample(model, tmp_path / "s.npz", **{"count": 2, "steps": 2, **wrong})
    np.savez(
        tmp_path / "own.npz", X=np.zeros((2, 1, 8, 8)), y=np.zeros(2), provenance="private", made_from="{}"
    )
    with pytest.raises(InputError, match="provenance is 'private'"):
        read_samples(tmp_path / "own.npz")


def test_quality_knows_good_samples_from_bad(tmp_path: Path) -> None:
    """Fresh digits as samples, and noise as samples: every measure must see the difference."""
    digits = load("digits")
    fresh = Examples(digits.train.inputs[:300], digits.train.targets[:300], "synthetic", "fresh", 10)
    noise = Examples(torch.rand(300, 1, 8, 8), torch.arange(300) % 10, "synthetic", "noise", 10)
    public = public_digits()
    good = evaluate(fresh, public, test=digits.test, classifier_steps=80, out=tmp_path)
    bad = evaluate(noise, public, test=digits.test, classifier_steps=80)
    assert good.accuracies["samples"] > 0.85 > 0.4 > bad.accuracies["samples"]
    assert good.samples.precision > bad.samples.precision + 0.3
    assert good.samples.recall > bad.samples.recall + 0.3
    assert good.samples.frechet_distance < bad.samples.frechet_distance / 3
    assert good.samples.class_score > bad.samples.class_score
    # copies of public rows: as faithful as can be
    assert good.copies == bad.copies
    assert "private test rows" in good.scored_on
    assert "140 public rows" in good.features
    assert all(Path(p).stat().st_size > 1_000 for p in good.pictures)
    assert len(good.pictures) == 2
    json.dumps(good.to_dict(), allow_nan=False)
    assert "not covered by ε" in str(good)


def test_scattering_is_another_space_and_needs_no_test_rows() -> None:
    public = public_digits()
    alike = Examples(public.inputs, public.targets, "synthetic", "copies", 10)
    found = evaluate(alike, public, features="scattering", classifier_steps=20)
    assert "scattering" in found.features
    assert found.samples.copied == 1
    assert found.samples.frechet_distance == pytest.approx(0, abs=1e-6)
    assert found.scored_on == "public rows"
    assert set(found.accuracies) == {"samples"}


def test_the_door_is_complete() -> None:
    for name in synthesis.__all__:
        assert getattr(synthesis, name) is not None
