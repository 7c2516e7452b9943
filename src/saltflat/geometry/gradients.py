"""Gradients of single examples, and how the iterates and releases of a run scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.engine import clipped_sum
from saltflat.errors import check_count, check_positive
from saltflat.geometry.loss import Loss
from saltflat.training.step import Step


@dataclass(frozen=True)
class GradientNorms:
    """How long the gradients of single examples are, and the share that a clip at ``clip_norm`` would shorten."""

    clip_norm: float
    share_clipped: float
    median: float
    largest: float
    edges: list[float]
    counts: list[int]


def gradient_norms(loss: Loss, clip_norm: float, bins: int = 40) -> GradientNorms:
    """A histogram of per-example gradient norms, with edges evenly apart on a logarithmic scale.

    The norm of one example's gradient is an exact number about that example: **not covered by ε**.

    Reference: Park et al. 2023 (DP-SAT), Figure 3.

    >>> import saltflat as sf
    >>> found = gradient_norms(Loss(sf.models.build("mlp"), sf.data.load("digits").test, rows=30), 1.0)
    >>> sum(found.counts), 0 <= found.share_clipped <= 1
    (30, True)
    """
    check_positive("clip_norm", clip_norm)
    check_count("bins", bins)
    norms = clipped_sum(
        loss.model, loss.loss_fn, loss.inputs, loss.targets, clip_norm, micro_batch=loss.micro_batch
    ).norms.double()
    finite = norms[norms.isfinite() & (norms > 0)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (clip_norm, clip_norm)
    low, high = min(low, clip_norm / 2) * 0.999, max(high, clip_norm * 2) * 1.001
    edges = torch.logspace(math.log10(low), math.log10(high), bins + 1, dtype=torch.float64)
    # what is zero or not finite belongs to the ends: every example is counted
    inside = norms.nan_to_num(nan=high, posinf=high).clamp(low, high)
    counts = torch.histogram(inside.cpu(), edges).hist.long().tolist()
    return GradientNorms(
        clip_norm, float((norms > clip_norm).double().mean()), float(norms.median()), float(norms.max()),
        edges.tolist(), counts,
    )  # fmt: skip


def variance_of_last(values: Sequence[float], last: int = 10) -> float | None:
    """The variance of an accuracy over the last iterates that were evaluated; None if there is but one.

    Reference: Indri, Drucks and Gärtner 2023 (DP-SWA): the stability of a solution.

    >>> variance_of_last([0.1, 0.75, 1.0], last=2)
    0.03125
    """
    check_count("last", last, 2)
    chosen = list(values)[-last:]
    if len(chosen) < 2:
        return None
    middle = sum(chosen) / len(chosen)
    return sum((value - middle) ** 2 for value in chosen) / (len(chosen) - 1)


class Cosines:
    """A callback for `saltflat.fit`: the cosine of each release with the one before it.

    Near one, releases agree and the previous release is a good ascent direction (DP-SAT); near zero, they are
    noise. Computed from releases alone, so it costs nothing and is covered by the run's ε.

    Reference: Park et al. 2023 (DP-SAT), Figure 12, which looks at sums before the noise; those are private.

    >>> import saltflat as sf
    >>> plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=4)
    >>> cosines = Cosines()
    >>> run = sf.fit(sf.models.build("mlp"), sf.data.load("digits").train, plan, callbacks=[cosines], progress=False)
    >>> [row["step"] for row in cosines.history], all(-1 <= row["cosine"] <= 1 for row in cosines.history)
    ([2, 3, 4], True)
    """

    wants_releases = True
    covered = "computed from releases: covered by the run's ε"

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []
        self._last: Mapping[str, Tensor] | None = None

    def __call__(self, step: Step) -> None:
        """Remember the release of this step."""
        release, before = step.release, self._last
        if release is not None and before is not None:
            inner = sum(float(torch.sum(release[name] * before[name])) for name in release)
            lengths = _length(release) * _length(before)
            self.history.append({"step": step.number, "cosine": inner / lengths if lengths else 0.0})
        self._last = release


def _length(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in tensors.values()))
