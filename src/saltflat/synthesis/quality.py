"""Measures of how like the public images samples are, and how unlike one another. Pure functions of features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.errors import InputError, check_count

COPIED = 1 / 3


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """‖μ₁ - μ₂‖² + tr(C₁ + C₂ - 2 (C₁C₂)^½) of two sets of features (Heusel et al. 2017).

    Zero for equal sets; the distance between Gaussians of the same means and covariances. With few rows it is biased
    upwards: compare only sets of equal size.

    >>> line = torch.tensor([[0.0], [1.0], [2.0]])
    >>> round(frechet_distance(line, line + 3), 6)
    9.0
    """
    (mean_1, covariance_1), (mean_2, covariance_2) = _moments(first), _moments(second)
    root = _root(covariance_1)
    middle = torch.linalg.eigvalsh(root @ covariance_2 @ root).clamp(min=0).sqrt().sum()
    found = (mean_1 - mean_2).square().sum() + covariance_1.trace() + covariance_2.trace() - 2 * middle
    return max(0.0, float(found))


def precision_and_recall(reference: Tensor, samples: Tensor, k: int = 3) -> tuple[float, float]:
    """The share of samples within the manifold of the reference, and the other way round (Kynkäänniemi et al. 2019).

    A set's manifold is the union of balls around its rows, each reaching to its k-th nearest neighbour in the set.

    >>> near, far = torch.arange(8.0)[:, None], torch.arange(8.0)[:, None] + 100
    >>> precision_and_recall(near, near), precision_and_recall(near, far)
    ((1.0, 1.0), (0.0, 0.0))
    """
    check_count("k", k)
    if min(len(reference), len(samples)) <= k:
        raise InputError("k", k, "fewer neighbours than rows in either set", cure="Bring more rows.")
    between = torch.cdist(samples, reference)
    precision = (between <= _reach(reference, k)[None]).any(dim=1).float().mean()
    recall = (between <= _reach(samples, k)[:, None]).any(dim=0).float().mean()
    return float(precision), float(recall)


def class_score(probabilities: Tensor) -> float:
    """exp E KL(p(y|x) ‖ p(y)): the inception score (Salimans et al. 2016), with any classifier's probabilities.

    One if the classifier says the same of all samples, the number of classes if it is sure of each, and all are even.

    >>> round(class_score(torch.eye(4)), 6), round(class_score(torch.full((5, 4), 0.25)), 6)
    (4.0, 1.0)
    """
    p = probabilities.double().clamp(min=1e-12)
    divergence = (p * (p.log() - p.mean(dim=0, keepdim=True).log())).sum(dim=1)
    return float(divergence.mean().exp())


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The public rows nearest to each sample, in pixels, with their distances; nearest first."""

    rows: Tensor
    distances: Tensor

    @property
    def copied(self) -> float:
        """The share of samples less than a third as far from the nearest public image as from the second.

        The usual sign of a memorised image (Yoon et al. 2023). Public rows that are twins of one another hide it.
        """
        return float((self.distances[:, 0] < COPIED * self.distances[:, 1]).float().mean())


def nearest(samples: Tensor, public: Tensor, k: int = 3) -> Neighbours:
    """Nearest public images, by Euclidean distance between pixels.

    >>> public = torch.eye(3).reshape(3, 1, 1, 3)
    >>> nearest(public, public).copied
    1.0
    """
    check_count("k", k, least=2)
    if len(public) < k:
        raise InputError("public", len(public), f"at least {k} rows", problem="rows are too few")
    flat = public.flatten(1)
    found = [torch.cdist(some.flatten(1), flat).topk(k, largest=False) for some in samples.split(500)]
    return Neighbours(torch.cat([f.indices for f in found]), torch.cat([f.values for f in found]))


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    if features.dim() != 2 or len(features) < 2:
        raise InputError("features", str(tuple(features.shape)), "two or more rows of features")
    wide = features.double()
    mean = wide.mean(dim=0)
    centred = wide - mean
    return mean, centred.T @ centred / (len(wide) - 1)


def _root(matrix: Tensor) -> Tensor:
    """The symmetric square root of a covariance."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T


def _reach(points: Tensor, k: int) -> Tensor:
    """How far each row's k-th nearest other row is."""
    return torch.cdist(points, points).topk(k + 1, largest=False).values[:, k]  # the first is the row itself
