"""Callbacks during training, toy surfaces, and pictures."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from geometry_helpers import network

import saltflat as sf
from saltflat.errors import MissingDependencyError
from saltflat.geometry import Cosines, Flatness, Loss, Settings, compare, eigenvalues, measure, rows_of
from saltflat.geometry.pictures import draw, draw_interpolation, draw_wideness
from saltflat.geometry.rows import TRAIN
from saltflat.geometry.toy import (
    FLAT,
    SHARP,
    draw_toy,
    gradients,
    noise_against_sharpness,
    noisy_descent,
    sharpness,
    surface,
)

PNG = b"\x89PNG"


def trained(callbacks: Any = (), model: Any = None, **settings: Any) -> sf.Run:
    torch.manual_seed(0)
    model = model if model is not None else sf.models.build("mlp")
    plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=12)
    data = sf.data.load("digits")
    return sf.fit(model, data.train, plan, seed=0, callbacks=callbacks, progress=False, **settings)


def test_watching_changes_nothing() -> None:
    """Fails when the callback moves the model, its mode or torch's generator."""
    torch.manual_seed(0)
    model = sf.models.build("mlp")
    flatness, cosines = Flatness(model, sf.data.load("digits").test, rows=60, every=0.5), Cosines()
    watched, alone = trained([flatness, cosines], model), trained()
    for a, b in zip(watched.model.parameters(), alone.model.parameters()):
        assert torch.equal(a, b)
    assert [row["step"] for row in flatness.history] == [3, 6, 9, 12]
    final = Loss(model, sf.data.load("digits").test, rows=60)
    top = float(eigenvalues(final, 1, tolerance=1e-6).values[0])
    assert flatness.history[-1]["sharpness"] == pytest.approx(top, rel=2e-2)
    assert flatness.history[-1]["loss"] == pytest.approx(final.measure().loss)
    assert "not covered" in flatness.to_dict()["data"]["covered"]


def test_releases_are_handed_out_only_to_who_asks() -> None:
    steps: list[Any] = []
    trained([steps.append])
    assert all(step.release is None for step in steps)

    class Asks:
        wants_releases = True

        def __init__(self) -> None:
            self.seen: list[dict[str, torch.Tensor]] = []

        def __call__(self, step: Any) -> None:
            self.seen.append(step.release)

    asks, cosines = Asks(), Cosines()
    run = trained([asks, cosines], optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    flat = [torch.cat([value.flatten() for value in release.values()]) for release in asks.seen]
    expected = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairwise(flat)]
    assert [row["cosine"] for row in cosines.history] == pytest.approx(expected, abs=1e-5)
    # They are the releases: without momentum, what the weights moved by.
    torch.manual_seed(0)
    start = dict(sf.models.build("mlp").named_parameters())
    for name, weight in run.model.named_parameters():
        moved = sum(release[name] for release in asks.seen)
        torch.testing.assert_close(start[name] - weight, moved, rtol=1e-4, atol=1e-5)


def test_flatness_on_private_rows_says_so(tmp_path: Path) -> None:
    model = sf.models.build("mlp")
    rows = rows_of(sf.data.load("digits"), "train", private=True)
    flatness = Flatness(model, rows, rows=40)
    trained([flatness], model)
    assert flatness.covered == TRAIN
    assert flatness.to_dict()["data"]["split"] == "train"
    assert flatness.draw(tmp_path / "flatness.png").read_bytes().startswith(PNG)


def test_every_part_can_be_drawn(tmp_path: Path) -> None:
    model, rows = network("mlp")
    loss = Loss(model, rows)
    everything = ("spectrum", "density", "landscape", "wideness", "gradients")
    found = measure(loss, Settings(parts=everything, points=5, rays=2, probes=2), run="runs/a")
    found["landscape"]["loss"][0][0] = None  # a point where the loss was not finite
    paths = draw(found, tmp_path)
    assert [path.name for path in paths] == [
        f"geometry-{name}.png" for name in ("spectrum", "landscape", "wideness", "gradients")
    ]
    line = compare(loss, loss, Settings(rays=2), runs=("runs/a", "runs/b"), train=loss)
    paths += [
        draw_interpolation(line, tmp_path / "line.png"),
        draw_wideness([found, found], tmp_path / "wideness.png", -3.0),
    ]
    assert all(path.read_bytes().startswith(PNG) for path in paths)


def test_pictures_of_private_rows_carry_the_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are read off the figure as it is saved."""
    from matplotlib.figure import Figure

    said: list[tuple[str, Any]] = []
    save = Figure.savefig

    def noted(self: Figure, *args: Any, **kwargs: Any) -> None:
        said.append((self.get_supxlabel(), self._supxlabel.get_color()))  # type: ignore[attr-defined]
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", noted)
    model = sf.models.build("mlp")
    data = sf.data.load("digits")
    for split, private in (("test", False), ("train", True)):
        loss = Loss(model, rows_of(data, split, private=private), rows=10)  # type: ignore[arg-type]
        draw(measure(loss, Settings(parts=("landscape", "wideness"), points=3, rays=1)), tmp_path)
    words = [text for text, _ in said]
    assert words[0] == words[1] == "10 rows of digits · test rows, not trained on: not covered by ε"
    assert words[2] == words[3] == f"10 rows of digits · {TRAIN}"
    assert said[0][1] != said[2][1]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"saltflat\[plot\]"):
        draw_toy(tmp_path)


def test_the_toy_surface_has_two_minima_of_unlike_width() -> None:
    here = torch.tensor([FLAT, SHARP], dtype=torch.float64)
    assert float(surface(here).max()) < 1e-3
    around = torch.tensor([(1.0, 0.0), (0.0, 1.0), (-0.7, 0.7)], dtype=torch.float64)
    assert float(surface(here[0] + around).max()) < 0.05
    assert float(surface(here[1] + around).min()) > 0.4
    norms = sharpness(here[:, None, :].add(around).flatten(0, 1))
    assert float(norms[:3].max()) < float(norms[3:].min())
    step = torch.tensor([1e-6, 0.0], dtype=torch.float64)
    place = torch.tensor([[4.0, 5.0]], dtype=torch.float64)
    slope = float((surface(place + step) - surface(place - step)) / 2e-6)
    assert float(gradients(place)[0, 0]) == pytest.approx(slope, rel=1e-6)


def test_the_same_noise_hurts_more_in_the_sharp_minimum() -> None:
    """The claim of the picture: medians of 200 walks, and the gradient that noise turns."""
    flat, sharp = (surface(noisy_descent(centre))[:, 20:].median() for centre in (FLAT, SHARP))
    assert float(sharp) > 3 * float(flat)
    away = (1.0, 0.6)
    slow, fast = (noise_against_sharpness((c[0] + away[0], c[1] + away[1])) for c in (FLAT, SHARP))
    assert float(fast[0].max()) > 3 * float(slow[0].max())
    assert float(fast[1].max()) > 3 * float(slow[1].max())


def test_the_toy_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = draw_toy(tmp_path / "a"), draw_toy(tmp_path / "b")
    assert [path.name for path in one] == ["two-minima.png", "two-minima-noise.png"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
