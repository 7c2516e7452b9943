"""Drawn figures, and the metric learned on them: from a seed alone, and what it makes of known covariances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import saltflat as sf
from saltflat.recipes.features import Features
from saltflat.recipes.figures import Figures
from saltflat.recipes.metric import Metric
from saltflat.recipes.rows import LENGTH

SMALL = Metric(figures=12, drawings=6)


@pytest.mark.parametrize("colours", [1, 3])
def test_drawings_come_from_their_seed_and_never_twice(colours: int) -> None:
    """Fails when a drawing takes from torch's own generator."""
    which = torch.arange(8).repeat(2)

    def drawn(seed: int) -> torch.Tensor:
        return Figures.drawn(8, colours, seed=4).images(which, 16, torch.Generator().manual_seed(seed))

    images = drawn(1)
    torch.manual_seed(99)
    assert torch.equal(images, drawn(1))
    assert not torch.equal(images, drawn(2))
    assert not torch.equal(images[:8], images[8:])
    assert images.shape == (16, colours, 16, 16)
    assert 0 <= float(images.min()) < float(images.max()) <= 1


def test_drawings_of_one_figure_are_more_alike_than_those_of_two() -> None:
    """Fails when instances do not look up the figure of their class."""
    figures = Figures.drawn(20, 1, seed=6)
    images = figures.images(torch.arange(20).repeat_interleave(8), 28, torch.Generator().manual_seed(1))
    features = Features()(images)
    apart = torch.cdist(features, features)
    same = torch.arange(20).repeat_interleave(8)
    same = (same[:, None] == same) & ~torch.eye(160, dtype=torch.bool)
    other = ~same & ~torch.eye(160, dtype=torch.bool)
    assert float(apart[same].mean()) < 0.85 * float(apart[other].mean())


def test_all_figures_have_a_body_where_all_are_filled() -> None:
    assert bool(Figures.drawn(9, 1, filled=1.0).has_body.all())
    bare = Figures.drawn(9, 1, filled=0.0)
    assert not bool(bare.has_body.any())
    assert bool(bare.has_lines.all())  # nothing is empty


def test_known_covariances_give_known_directions() -> None:
    """One direction differs within classes alone, one between them alone, one equally. Without a ridge the variance
    within becomes one, and the shares say how much lies between."""
    within, between = torch.diag(torch.tensor([4.0, 1.0, 2.0])), torch.diag(torch.tensor([0.0, 9.0, 2.0]))
    learned = Metric(ridge=0.0)._directions(within, between, torch.zeros(3))
    axes, shares, mean = learned[:3], learned[3], learned[4]
    assert torch.allclose(axes.T @ within @ axes, torch.eye(3), atol=1e-5)
    assert torch.allclose(shares, torch.tensor([0.0, 0.5, 0.9]), atol=1e-5)
    assert torch.allclose(axes.abs(), torch.tensor([[0.5, 0, 0], [0, 0, 1], [0, 0.5**0.5, 0]]), atol=1e-5)
    assert not mean.any()


def test_new_figures_are_told_apart_better() -> None:
    """Of 100 figures that the metric has not seen, drawings go to the class whose mean is nearest. Fails when within
    and between are exchanged."""
    figures = Figures.drawn(100, 1, seed=8)
    images = figures.images(torch.arange(100).repeat_interleave(10), 12, torch.Generator().manual_seed(2))

    def accuracy(metric: Metric | None) -> float:
        rows = Features(metric=metric)(images).view(100, 10, -1)
        means, others = rows[:, :5].mean(1), rows[:, 5:]
        likeness = torch.einsum("ckd,md->ckm", others, means - means.mean(0))
        return float((likeness.argmax(2) == torch.arange(100)[:, None]).float().mean())

    found = {floor: accuracy(Metric(figures=200, drawings=15, floor=floor)) for floor in (0.0, 0.3)}
    assert min(found.values()) > accuracy(None) + 0.1


def test_a_metric_looks_at_no_image(tmp_path: Path) -> None:
    features = Features(metric=SMALL)
    images = torch.rand(4, 3, 8, 8)
    rows = features(images, tmp_path)
    assert torch.allclose(rows.norm(dim=1), torch.full((4,), LENGTH), rtol=1e-4)
    assert torch.allclose(features(images[2:3]), rows[2:3], atol=1e-3)
    learned = features.learned(2, (3, 8, 8), tmp_path)
    assert learned is not None
    assert learned.shape == (3, 81 * 4 + 2, 81 * 4)
    other = replace(features, metric=replace(SMALL, seed=5)).learned(2, (3, 8, 8), tmp_path)
    assert other is not None
    assert not torch.equal(learned, other)


def test_a_metric_is_kept_beside_its_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    features = Features(metric=SMALL)
    features(torch.rand(2, 1, 8, 8), tmp_path, lambda done, total: counted.append((done, total)))
    assert counted[-2:] == [(72, 72), (2, 2)]  # drawings, then images
    assert sorted(file.name.partition("-")[0] for file in tmp_path.iterdir()) == ["features", "metric"]
    monkeypatch.setattr("saltflat.recipes.features._LEARNED", {})
    monkeypatch.setattr(Metric, "learned", None)  # another process: it is read and not learned again
    assert features(torch.rand(3, 1, 8, 8), tmp_path).shape == (3, 324)


def test_each_colour_is_seen_along_its_own_axes() -> None:
    """A share of 0.25 under a floor of 0 halves what lies along an axis; under a floor of 1 nothing is scaled."""
    learned = torch.stack(
        [torch.cat([factor * torch.eye(2), torch.tensor([[0.25, 1.0], [1.0, 1.0]])]) for factor in (2.0, 3.0)]
    )
    rows = torch.tensor([[3.0, 2.0, 3.0, 4.0]])
    assert Metric(floor=0.0).seen(rows, learned).tolist() == [[2.0, 2.0, 3.0, 9.0]]
    assert Metric(floor=1.0).seen(rows, learned).tolist() == [[4.0, 2.0, 6.0, 9.0]]


def test_only_square_images_have_a_metric() -> None:
    with pytest.raises(sf.InputError, match=r"images='8 × 12' is not valid.\n.*square"):
        Features(metric=SMALL)(torch.rand(2, 1, 8, 12))
