"""Measures of quality against cases whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from saltflat.errors import InputError
from saltflat.synthesis.quality import class_score, frechet_distance, nearest, precision_and_recall


def test_frechet_distance_of_gaussians_is_the_closed_form() -> None:
    """Whitened, then stretched: means and covariances are exact, so the answer is, too."""
    torch.manual_seed(0)
    drawn = torch.randn(500, 3, dtype=torch.float64)
    drawn = drawn - drawn.mean(0)
    white = drawn @ torch.linalg.inv(torch.linalg.cholesky(drawn.T.cov())).T
    spreads = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
    moved = white * spreads + torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    expected = 1 + 4 + float(((spreads - 1) ** 2).sum())
    assert frechet_distance(white, moved) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(moved, white) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(white, white) == pytest.approx(0, abs=1e-9)


def test_precision_sees_faithfulness_and_recall_diversity() -> None:
    """Fails when the two are exchanged (tried)."""
    torch.manual_seed(0)
    reference = torch.cat([torch.randn(100, 2), torch.randn(100, 2) + 20])
    one_mode = torch.randn(200, 2) * 0.9
    precision, recall = precision_and_recall(reference, one_mode)
    assert precision > 0.85
    assert recall < 0.6
    spread = torch.cat([reference + 0.01, torch.randn(200, 2) * 100])
    precision, recall = precision_and_recall(reference, spread)
    assert precision < 0.6
    assert recall > 0.9
    with pytest.raises(InputError, match="fewer neighbours"):
        precision_and_recall(reference[:3], spread)


def test_class_score_of_uneven_certainty() -> None:
    """Nine of ten samples of one class, all sure: the exponential of the entropy of the shares."""
    sure = torch.eye(2)[torch.tensor([0] * 9 + [1])]
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert class_score(sure) == pytest.approx(math.exp(entropy), rel=1e-6)


def test_copies_are_found_and_others_are_not() -> None:
    torch.manual_seed(0)
    public = torch.rand(50, 1, 8, 8)
    near = public[:10] + 0.01 * torch.randn(10, 1, 8, 8)
    far = torch.rand(30, 1, 8, 8)
    assert nearest(near, public).copied == 1
    assert nearest(far, public).copied == 0
    mixed = nearest(torch.cat([near, far]), public)
    assert mixed.copied == pytest.approx(0.25)
    assert mixed.rows[:10, 0].tolist() == list(range(10))
    assert (mixed.distances.diff(dim=1) >= 0).all()
