"""Mutations of the noise."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from audit_mutations import NOISE, mutation
from torch import Tensor

from saltflat.mechanism import randomness
from saltflat.plan import FreshQuery, QuantileClipping
from saltflat.training import build, step, sums

# the package gives the module's name to a function
engine = importlib.import_module("saltflat.engine.clipped_sum")

Vectors = dict[str, Tensor]


def normal_like(value: Tensor, deviation: float, source: Any) -> Tensor:
    return torch.empty(value.shape, dtype=torch.float64).normal_(0.0, deviation, generator=source)


def noise_instead(patch: pytest.MonkeyPatch, noise: Callable[[Tensor, float, Any], Tensor]) -> None:
    """Other noise on the sum."""

    def noised(total: Vectors, deviation: float, divisor: float, source: Any) -> Vectors:
        return {n: ((v + noise(v, deviation, source)) / divisor).to(v.dtype) for n, v in total.items()}

    patch.setattr(build, "noised", noised)


# --- noise --------------------------------------------------------------------------------------------


@mutation("no noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: torch.zeros_like(v))


@mutation("a public half that uses the sum before its noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    query, summed, kept = step.Loop.query, step.Loop.sum_of_clipped, []

    def keep(self: Any, batch: Tensor, clip: float) -> Any:
        kept[:] = [summed(self, batch, clip)]
        return kept[0]

    def leaking(self: Any, number: int, phase: Any) -> Any:
        released = query(self, number, phase)
        total, divisor = kept[0][0], self.plan.sampling.batch_size
        return replace(released, gradient={n: v / divisor for n, v in total.items()})

    patch.setattr(step.Loop, "sum_of_clipped", keep)
    patch.setattr(step.Loop, "query", leaking)


@mutation("half the noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, deviation / 2, source))


@mutation("five percent less noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, 0.95 * deviation, source))


@mutation("noise once per micro-batch", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = engine._Adder.add

    def noisy(self: Any, part: slice, workspace: Any) -> None:
        right(self, part, workspace)
        self.sums = {n: v + 2.0 * self.clip_norm * torch.randn_like(v) for n, v in self.sums.items()}

    patch.setattr(engine._Adder, "add", noisy)


@mutation("noise once per piece of a large batch", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = sums.clipped_sum

    def noisy(model: Any, loss: Any, inputs: Any, targets: Tensor, clip: float, **settings: Any) -> Any:
        found = right(model, loss, inputs, targets, clip, **settings)
        if len(targets) < 200:  # a small batch is one piece, as it should be
            return found
        return replace(found, grads={n: v + 2.0 * clip * torch.randn_like(v) for n, v in found.grads.items()})

    patch.setattr(sums, "clipped_sum", noisy)


@mutation("noise for the sum on the mean", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noised(total: Vectors, deviation: float, divisor: float, source: Any) -> Vectors:
        return {n: (v / divisor + normal_like(v, deviation, source)).to(v.dtype) for n, v in total.items()}

    patch.setattr(build, "noised", noised)


@mutation("noise for the mean on the sum", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noised(total: Vectors, deviation: float, divisor: float, source: Any) -> Vectors:
        noise = {n: normal_like(v, deviation / divisor, source) for n, v in total.items()}
        return {n: ((v + noise[n]) / divisor).to(v.dtype) for n, v in total.items()}

    patch.setattr(build, "noised", noised)


@mutation("a coordinate without noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        drawn = normal_like(v, deviation, source)
        drawn.view(-1)[-1] = 0.0
        return drawn

    noise_instead(patch, noise)


@mutation("a coordinate with a tenth of the noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        drawn = normal_like(v, deviation, source)
        drawn.view(-1)[0] *= 0.1
        return drawn

    noise_instead(patch, noise)


@mutation("a tensor without noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, deviation * (v.dim() > 1), source))


@mutation("the same noise in every step", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[int, ...], Tensor] = {}

    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        return kept.setdefault((*v.shape,), normal_like(v, 1.0, source)) * deviation

    noise_instead(patch, noise)


@mutation("opposite noise in every second step", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[int, ...], Tensor] = {}

    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        before = kept.pop((*v.shape,), None)
        if before is not None:
            return -before
        kept[(*v.shape,)] = normal_like(v, deviation, source)
        return kept[(*v.shape,)]

    noise_instead(patch, noise)


@mutation("the same noise in every tensor", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noised(total: Vectors, deviation: float, divisor: float, source: Any) -> Vectors:
        long = normal_like(torch.zeros(max(v.numel() for v in total.values())), deviation, source)
        return {n: ((v + long[: v.numel()].view(v.shape)) / divisor).to(v.dtype) for n, v in total.items()}

    patch.setattr(build, "noised", noised)


@mutation("the same noise in every row of a matrix", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(
        patch,
        lambda v, deviation, source: (
            normal_like(v[:1], deviation, source).expand(v.shape)
            if v.dim() > 1
            else normal_like(v, deviation, source)
        ),
    )


@mutation("noise cut off at three deviations", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        return normal_like(v, deviation, source).clamp(-3 * deviation, 3 * deviation)

    noise_instead(patch, noise)


@mutation("uniform noise of the same variance", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        drawn = torch.rand(v.shape, dtype=torch.float64, generator=source) - 0.5
        return drawn * math.sqrt(12) * deviation

    noise_instead(patch, noise)


@mutation("noise whose mean is taken out", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        drawn = normal_like(v, deviation, source)
        return drawn - drawn.mean()

    noise_instead(patch, noise)


@mutation("noise of exactly the expected length", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        drawn = normal_like(v, deviation, source)
        return drawn * deviation * math.sqrt(v.numel()) / drawn.norm()

    noise_instead(patch, noise)


@mutation("noise of one sign", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, deviation, source).abs())


@mutation("noise in half precision", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, deviation, source).half().double())


@mutation("noise drawn in float32", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def noise(v: Tensor, deviation: float, source: Any) -> Tensor:
        return torch.empty(v.shape).normal_(0.0, deviation, generator=source).double()

    noise_instead(patch, noise)


@mutation("noise from a fixed seed", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    def fresh(device: Any = "cpu", tier: str = "fast") -> Any:
        return randomness.Randomness(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), tier)

    patch.setattr(randomness.Randomness, "fresh", staticmethod(fresh))


@mutation("noise from the global generator", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: torch.randn(v.shape, dtype=torch.float64) * deviation)


@mutation("no noise on an empty sum", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, deviation * bool(v.any()), source))


@mutation("less noise where there are gradients", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(
        patch, lambda v, deviation, source: normal_like(v, deviation * (0.5 if v.any() else 1.0), source)
    )


@mutation("noise in the first steps only", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.Mechanism.release

    def release(self: Any, total: Vectors, sigma: float, clip: float) -> Vectors:
        return right(self, total, sigma if self.ledger.releases <= 2 else 0.0, clip)

    patch.setattr(build.Mechanism, "release", release)


@mutation("the first phase's noise in all phases", NOISE, method="sai", noise_ratio=3.0)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.Mechanism.release

    def release(self: Any, total: Vectors, sigma: float, clip: float) -> Vectors:
        return right(self, total, min(sigma, 2.0), clip)

    patch.setattr(build.Mechanism, "release", release)


@mutation("an ascent query without noise", NOISE, ascent=FreshQuery(0.05))
def _(patch: pytest.MonkeyPatch) -> None:
    _quieter_ascent(patch, 0.0)


@mutation("an ascent query with half the noise", NOISE, ascent=FreshQuery(0.05))
def _(patch: pytest.MonkeyPatch) -> None:
    _quieter_ascent(patch, 0.5)


def _quieter_ascent(patch: pytest.MonkeyPatch, factor: float) -> None:
    right = build.Mechanism.release
    asked: dict[int, int] = {}

    def release(self: Any, total: Vectors, sigma: float, clip: float) -> Vectors:
        asked[id(self)] = asked.get(id(self), 0) + 1
        return right(self, total, sigma * (factor if asked[id(self)] % 2 else 1.0), clip)

    patch.setattr(build.Mechanism, "release", release)


@mutation("a quantile's count without noise", NOISE, clipping=QuantileClipping(count_noise=2.0))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        build.Mechanism, "release_count", lambda self, count: count / self.plan.sampling.batch_size + 0.5
    )


@mutation("half the noise in the secure tier", NOISE, randomness="secure")
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.noised
    patch.setattr(build, "noised", lambda total, deviation, *rest: right(total, deviation / 2, *rest))


@mutation("half the noise in the exact tier", NOISE, randomness="exact")
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.noised_on_grid
    patch.setattr(
        build, "noised_on_grid", lambda total, grid, sigma, *rest: right(total, grid, sigma / 2, *rest)
    )
