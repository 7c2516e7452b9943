"""The recipe: stages that are kept, taken up again, and never mixed up; at full size for a few steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import saltflat as sf
from saltflat.data import DataSet, Examples
from saltflat.data.shared_rows import rows_hash
from saltflat.errors import InputError
from saltflat.plan import Ema, Multiplicity
from saltflat.public import Recipe, WarmUp, recipe
from saltflat.public.recipe import planned
from saltflat.record.packed import unpacked

QUICK = Recipe(
    "digits", "mlp", epsilon=4.0, delta=1e-4, public_fraction=0.2, warm_up=WarmUp("sam", epochs=1),
    plan={"steps": 4, "batch_size": 64, "public_batch": 8, "multiplicity": Multiplicity(2, ("crop",))}, count=40,
)  # fmt: skip


class Synthesis(ModuleType):
    """The door of `saltflat.synthesis`, with samples that are noise, and a note of every call."""

    def __init__(self, fails: str = "") -> None:
        super().__init__("saltflat.synthesis")
        self.calls: list[str] = []
        self.fails = fails

    def SynthesisFolder(self, path: Path) -> Any:
        found = ModuleType("folder")
        found.exists = (Path(path) / "synthesis.json").exists()  # type: ignore[attr-defined]
        return found

    def settings_for(self, size: str, **changes: Any) -> Any:
        return size, changes

    def train(self, public: Examples, settings: Any, *, out: Path, progress: Any, **_: Any) -> None:
        assert public.provenance == "public"
        self.calls.append("train")
        self.public = public
        out.mkdir(parents=True)
        (out / "synthesis.json").write_text("{}")
        if self.fails == "train":
            self.fails = ""
            raise KeyboardInterrupt
        for step in range(1, 41):
            progress(step, 40, 0.5)

    def resume(self, out: Path, *, progress: Any, **_: Any) -> None:
        self.calls.append("resume")
        progress(40, 40, 0.25)

    def sample(self, folder: Path, out: Path, *, count: int, progress: Any = None, **_: Any) -> None:
        self.calls.append("sample")
        if progress is not None:
            progress(count, count)
        told = {
            "public": {"name": self.public.name, "sha256": rows_hash(self.public.inputs, self.public.targets)}
        }
        shape = tuple(self.public.inputs.shape[1:])
        images = np.random.default_rng(0).integers(0, 255, (count, *shape)).astype(np.uint8)
        np.savez(out, X=images, y=np.arange(count) % 10, made_from=np.array(json.dumps(told)))


@pytest.fixture
def synthesis(monkeypatch: pytest.MonkeyPatch) -> Synthesis:
    found = Synthesis()
    monkeypatch.setattr(sf, "synthesis", found)
    return found


def test_every_stage_leaves_its_file_and_is_not_made_again(synthesis: Synthesis, tmp_path: Path) -> None:
    """Cut off in the diffusion model, then given again and again, each time one stage further."""
    synthesis.fails = "train"
    out = tmp_path / "recipe"
    with pytest.raises(KeyboardInterrupt):
        recipe(out, QUICK, until="diffusion")
    assert recipe(out, QUICK, until="diffusion") is None
    assert recipe(out, QUICK, until="samples") is None
    assert synthesis.calls == ["train", "resume", "resume", "sample"]
    assert recipe(out, QUICK, until="warm-up") is None
    warmed = (out / "warm-up.safetensors").read_bytes()
    tensors, facts = unpacked(warmed)
    assert [entry["provenance"] for entry in facts["public"]] == ["public", "synthetic"]
    run = recipe(out, QUICK, until="run", progress=False)
    assert run is not None
    assert run.folder == out / "run"
    again = recipe(out, QUICK, until="run", progress=False)
    assert again is not None
    assert again.certificate.data == run.certificate.data, "a finished run is given back"
    assert (out / "warm-up.safetensors").read_bytes() == warmed
    assert synthesis.calls == ["train", "resume", "resume", "sample"]
    assert [entry["used"] for entry in run.certificate.data["public"]] == [
        "warm-up", "warm-up", "gradients in every private step",
    ]  # fmt: skip
    assert run.plan.averaging == Ema(0.9999)
    assert run.epsilon <= 4.0
    assert sf.verify(out / "run").passed
    assert set(tensors) == set(run.model.state_dict())


def test_long_stages_say_how_far_they_are(
    synthesis: Synthesis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for every tenth, or a bar. Fails when the diffusion model is trained in silence (as it once was)."""
    said: list[str] = []
    recipe(tmp_path / "r", QUICK, until="diffusion", announce=said.append, progress=False)
    assert said[1:3] == ["diffusion: 4 of 40, loss 0.5000", "diffusion: 8 of 40, loss 0.5000"]
    assert len(said) == 11
    said.clear()
    recipe(tmp_path / "r", QUICK, until="samples", announce=said.append, progress=False)
    assert said == [
        "diffusion: going on",
        "diffusion: 40 of 40, loss 0.2500",
        "samples: 40",
        "samples: 40 of 40",
    ]
    capsys.readouterr()
    recipe(tmp_path / "bar", QUICK, until="samples", announce=said.append, progress=True)
    assert "40/40" in capsys.readouterr().err
    assert said[4:] == [said[4], "samples: 40"], "one or the other"


def test_a_warm_up_that_was_cut_off_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Fails when it begins again from the first epoch (as it once did)."""
    settings = replace(
        QUICK, scenario="warm", method="dp-sgd", warm_up=WarmUp("sam", epochs=3), plan={"steps": 2}
    )

    def stop(text: str) -> None:
        if text.startswith("warm-up: epoch 2"):
            raise KeyboardInterrupt

    said: list[str] = []
    recipe(tmp_path / "whole", settings, until="warm-up")
    with pytest.raises(KeyboardInterrupt):
        recipe(tmp_path / "cut", settings, until="warm-up", announce=stop)
    assert (tmp_path / "cut" / "warm-up-state.safetensors").exists()
    recipe(tmp_path / "cut", settings, until="warm-up", announce=said.append)
    assert [text[:18] for text in said] == ["warm-up: going on ", "warm-up: epoch 3 o"]
    (ours, facts), (whole, expected) = (
        unpacked((tmp_path / name / "warm-up.safetensors").read_bytes()) for name in ("cut", "whole")
    )
    assert facts["losses"] == expected["losses"]
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    assert not (tmp_path / "cut" / "warm-up-state.safetensors").exists()


def test_a_private_training_that_was_cut_off_goes_on(
    synthesis: Synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no more releases than planned."""
    from saltflat.training.step import Loop

    use = Loop.use

    def interrupted(self: Loop, number: int, *rest: Any) -> None:
        use(self, number, *rest)
        if number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "use", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recipe(tmp_path / "r", QUICK, until="run", progress=False)
    monkeypatch.setattr(Loop, "use", use)
    run = recipe(tmp_path / "r", QUICK, until="run", progress=False)
    assert run is not None
    assert (run.certificate.data["recorded_releases"], run.certificate.data["resumed"]) == (4, 1)


def test_other_settings_are_refused(synthesis: Synthesis, tmp_path: Path) -> None:
    recipe(tmp_path / "r", QUICK, until="samples")
    for change, word in (
        ({"epsilon": 3.0}, "epsilon"),
        ({"public_seed": 1}, "public_seed"),
        ({"count": 50}, "count"),
    ):
        with pytest.raises(InputError, match=f"{word}=.*differs"):
            recipe(tmp_path / "r", replace(QUICK, **change), until="samples")
    digits = sf.data.load("digits", public_fraction=0.2, seed=7)
    with pytest.raises(InputError, match="has other public rows now"):
        recipe(tmp_path / "r", QUICK, data=digits, until="samples")


def test_samples_can_be_given(synthesis: Synthesis, tmp_path: Path) -> None:
    """And must be made from what is public here."""
    for seed, name in ((0, "good.npz"), (5, "bad.npz")):
        synthesis.public = sf.data.load("digits", public_fraction=0.2, seed=seed).public
        synthesis.sample(tmp_path, tmp_path / name, count=30)
    synthesis.calls.clear()
    given = replace(QUICK, samples=str(tmp_path / "good.npz"))
    assert recipe(tmp_path / "one", given, until="warm-up") is None
    assert synthesis.calls == []
    with pytest.raises(InputError, match="which are private now"):
        recipe(tmp_path / "two", replace(QUICK, samples=str(tmp_path / "bad.npz")), until="warm-up")


@pytest.mark.parametrize("where", ["public", "samples"])
def test_a_private_row_is_refused(where: str, synthesis: Synthesis, tmp_path: Path) -> None:
    """Before anything is trained. Fails when such rows are dropped, or samples not compared (as it once was)."""
    data = sf.data.load("digits", public_fraction=0.2)
    slipped = data.train.subset(torch.tensor([5]))
    settings = QUICK
    if where == "public":
        inputs = torch.cat([data.public.inputs, slipped.inputs])
        targets = torch.cat([data.public.targets, slipped.targets])
        data = replace(data, public=replace(data.public, inputs=inputs, targets=targets))
    else:
        np.savez(tmp_path / "s.npz", X=slipped.inputs.numpy(), y=slipped.targets.numpy())
        settings = replace(QUICK, samples=str(tmp_path / "s.npz"))
    with pytest.raises(InputError, match="holds a row of the private data"):
        recipe(tmp_path / "r", settings, data=data, until="warm-up")
    assert synthesis.calls == []
    assert not (tmp_path / "r" / "warm-up.safetensors").exists()


def test_copies_inside_a_data_set_leave_the_private_side(tmp_path: Path) -> None:
    """The plan's population is what is left."""
    digits = sf.data.load("digits").train
    np.savez(
        tmp_path / "twice.npz", X=digits.inputs[:200].repeat(2, 1, 1, 1), y=digits.targets[:200].repeat(2)
    )
    data = sf.data.load(tmp_path / "twice.npz", classes=10, public_fraction=0.2)
    settings = replace(QUICK, scenario="warm", method="dp-sgd", plan={"steps": 2, "batch_size": 16})
    with pytest.warns(sf.PrivacyWarning, match="Copies of public rows are left out"):
        run = recipe(tmp_path / "r", settings, data=data, until="run", progress=False)
    assert run is not None
    assert run.plan.sampling.population < len(data.train)


@pytest.mark.parametrize("scenario", ["cold", "warm"])
def test_scenarios_without_samples_need_no_diffusion(scenario: str, tmp_path: Path) -> None:
    settings = replace(QUICK, scenario=scenario, method="dp-sgd", plan={"steps": 2, "batch_size": 64})
    run = recipe(tmp_path / "r", settings, until="run", progress=False)
    assert run is not None
    assert run.plan.method == "dp-sgd"
    assert ("public" in run.certificate.data) == (scenario == "warm")


def test_the_paper_is_the_default_for_its_own_model() -> None:
    """B 4096, C 1, K 16, no momentum, an average; epochs, rate and ρ of its Table 10."""
    plan = planned(Recipe(epsilon=2.0), 48_000)
    assert plan.method == "weight-multiplicity"
    assert plan.multiplicity == Multiplicity(16, ("flip", "crop"), rho=0.1, public_batch=64)
    assert (plan.sampling.batch_size, plan.steps) == (4096, round(30 * 48_000 / 4096))
    assert (plan.phases[0].clip_norm, plan.phases[0].learning_rate) == (1.0, 0.5)
    assert plan.optimizer is not None
    assert plan.optimizer.settings == {"momentum": 0.0}
    assert plan.averaging == Ema(0.9999)
    assert planned(Recipe(epsilon=6.0), 48_000).phases[0].learning_rate == 2.0
    assert planned(Recipe(epsilon=1.0, plan={"rho": 0.3}), 48_000).multiplicity.rho == 0.3
    assert planned(Recipe(epsilon=5.0), 48_000).phases[0].learning_rate == 0.5  # not a budget of the paper
    assert planned(Recipe(epsilon=2.0, method="dope-sgd"), 48_000).multiplicity.views == 16


@pytest.mark.slow
def test_the_full_size_runs(tmp_path: Path) -> None:
    """WRN-16-4, 16 views at weights along public gradients, a SAM warm-up with augmentations, an average.

    That all batches are empty happens once in twenty thousand runs.
    """
    generator = torch.Generator().manual_seed(0)

    def images(rows: int, provenance: Any) -> Examples:
        inputs = torch.rand(rows, 3, 32, 32, generator=generator)
        return Examples(inputs, torch.arange(rows) % 10, provenance, "made up", 10, declared_by="the tests")

    data = DataSet(images(20, "private"), images(4, "private"), images(10, "public"), 10, "made up")
    np.savez(tmp_path / "s.npz", X=(images(10, "synthetic").inputs * 255).byte().numpy(), y=np.arange(10))
    settings = Recipe(
        epsilon=2.0, delta=1e-3, samples=str(tmp_path / "s.npz"), plan={"batch_size": 3, "steps": 3, "public_batch": 2},
        warm_up=WarmUp("sam", epochs=1, batch_size=10, augmentations=("crop", "flip", "cutout")),
    )  # fmt: skip
    run = recipe(tmp_path / "r", settings, data=data, until="run", progress=False)
    assert run is not None
    assert sum(p.numel() for p in run.model.parameters()) == 2_753_818
    assert run.plan.multiplicity.views == 16
    assert run.certificate.data["recorded_releases"] == 3
    assert all(bool(p.isfinite().all()) for p in run.model.parameters())
    assert run.average is not None
    assert sf.verify(tmp_path / "r" / "run").passed


@pytest.mark.slow
def test_from_pixels_to_report(tmp_path: Path) -> None:
    """Nothing exchanged: a diffusion model of digits, its samples, the report."""
    settings = replace(QUICK, synthesis={"size": "tiny", "steps": 3, "batch_size": 8}, count=20)
    run = recipe(tmp_path / "r", settings, progress=False)
    assert run is not None
    assert run.certificate.is_private
    assert "<html" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")[:200]
    names = [entry["name"] for entry in run.certificate.data["public"]]
    assert names == ["digits", "samples from digits", "digits + samples from digits"]
