"""Ways to break the mechanism, each as a patch that is applied while an audit runs.

A mutation changes what the mechanism does. None of them tells the audit anything: names, types and signatures
stay as they are.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import saltflat.engine.clipped_sum  # noqa: F401  (a module whose name the package gives to a function)
from saltflat.engine import clipping, uses
from saltflat.mechanism import randomness
from saltflat.plan import FreshQuery, Multiplicity, PerLayerClipping, PreviousRelease, QuantileClipping
from saltflat.record.ledger import Ledger
from saltflat.training import build, step

engine = importlib.import_module("saltflat.engine.clipped_sum")
accountant = importlib.import_module("saltflat.accounting.epsilon")

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """A patch, the check that must catch it, and what the plan needs for the patch to matter."""

    patch: Patch
    caught_by: str
    plan: dict[str, Any] = field(default_factory=dict)


MUTATIONS: dict[str, Mutation] = {}


def mutation(name: str, caught_by: str, **plan: Any) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS[name] = Mutation(patch, caught_by, plan)
        return patch

    return register


REPLAY, NOISE, SAMPLER, LEDGER = "replay sensitivity", "noise law", "sampler law", "ledger"
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


@mutation("half the noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, deviation / 2, source))


@mutation("five percent less noise", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    noise_instead(patch, lambda v, deviation, source: normal_like(v, 0.95 * deviation, source))


@mutation("noise once per micro-batch", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = engine._clip_and_sum

    def noisy(parameters: Any, used: Any, units: int, clip: float, function: Any) -> Any:
        norms, sums = right(parameters, used, units, clip, function)
        return norms, {n: v + 2.0 * clip * torch.randn_like(v) for n, v in sums.items()}

    patch.setattr(engine, "_clip_and_sum", noisy)


@mutation("noise once per piece of a large batch", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.clipped_sum

    def noisy(model: Any, loss: Any, inputs: Any, targets: Tensor, clip: float, **settings: Any) -> Any:
        found = right(model, loss, inputs, targets, clip, **settings)
        if len(targets) < 200:  # a small batch is one piece, as it should be
            return found
        return replace(found, grads={n: v + 2.0 * clip * torch.randn_like(v) for n, v in found.grads.items()})

    patch.setattr(step, "clipped_sum", noisy)


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


# --- divisor --------------------------------------------------------------------------------------------


@mutation("a wrong divisor", NOISE)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.noised
    patch.setattr(build, "noised", lambda total, sd, divisor, source: right(total, sd, divisor / 2, source))


@mutation("a wrong divisor for the sum alone", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.noised
    patch.setattr(build, "noised", lambda total, *rest: right({n: 1.1 * v for n, v in total.items()}, *rest))


@mutation("the realised batch size as divisor", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.Loop.sum_of_clipped

    def summed(self: Any, batch: Tensor, clip: float) -> Any:
        total, short = right(self, batch, clip)
        factor = self.plan.sampling.batch_size / max(len(batch), 1)
        return {n: v * factor for n, v in total.items()}, short

    patch.setattr(step.Loop, "sum_of_clipped", summed)


@mutation("the mean of the batch instead of its sum", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.clipped_sum

    def mean(*args: Any, **settings: Any) -> Any:
        found = right(*args, **settings)
        return replace(found, grads={n: v * 8 / max(len(found.norms), 1) for n, v in found.grads.items()})

    patch.setattr(step, "clipped_sum", mean)


# --- clipping -------------------------------------------------------------------------------------------


@mutation("no clip", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clipping, "flat", lambda squared, clip: {n: torch.ones_like(v) for n, v in squared.items()})


@mutation("a clip per tensor", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(
        clipping, "flat", lambda squared, clip: {n: right({n: v}, clip)[n] for n, v in squared.items()}
    )


@mutation("a clip norm that is √2 too long", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(clipping, "flat", lambda squared, clip: right(squared, clip * math.sqrt(2)))


@mutation("a clip norm that is one percent too long", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(clipping, "flat", lambda squared, clip: right(squared, clip * 1.01))


@mutation("a norm without the biases", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat

    def flat(squared: Any, clip: float) -> Any:
        factor = next(iter(right({n: v for n, v in squared.items() if "bias" not in n}, clip).values()))
        return dict.fromkeys(squared, factor)

    patch.setattr(clipping, "flat", flat)


@mutation("layers that each get the whole clip norm", REPLAY, clipping=PerLayerClipping())
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.per_layer

    def per_layer(squared: Any, clip: float) -> Any:
        layers = len({name.rpartition(".")[0] for name in squared})
        return right(squared, clip * math.sqrt(layers))

    patch.setattr(clipping, "per_layer", per_layer)


@mutation("a clip after the sum", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.clipped_sum

    def late(model: Any, loss: Any, inputs: Any, targets: Tensor, clip: float, **settings: Any) -> Any:
        settings["clipping"] = lambda squared, _: {n: torch.ones_like(v) for n, v in squared.items()}
        found = right(model, loss, inputs, targets, clip, **settings)
        norm = math.sqrt(sum(float(v.double().square().sum()) for v in found.grads.values()))
        return replace(found, grads={n: v * min(1.0, clip / (norm + 1e-30)) for n, v in found.grads.items()})

    patch.setattr(step, "clipped_sum", late)


@mutation("a clip per micro-batch", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat

    def together(squared: Any, clip: float) -> Any:
        return right({n: v.mean().expand_as(v) for n, v in squared.items()}, clip)

    patch.setattr(clipping, "flat", together)


@mutation("the factors of another unit", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = clipping.flat
    patch.setattr(
        clipping, "flat", lambda squared, clip: {n: f.roll(1) for n, f in right(squared, clip).items()}
    )


@mutation("tied weights: only one use counts for the norm", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    _tied(patch, lambda used: used[-1].squared_norms())


@mutation("tied weights: each use is a second batch", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    _tied(patch, lambda used: torch.stack([use.squared_norms() for use in used]).amax(0))


def _tied(patch: pytest.MonkeyPatch, norms: Callable[[list[Any]], Tensor]) -> None:
    right = uses._joined_outer

    def joined(used: list[Any]) -> Any:
        found = right(used)
        if len(used) > 1:
            found.squared_norms = lambda: norms(used)
        return found

    patch.setattr(uses, "_joined_outer", joined)


@mutation("NaN examples that spread", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "LONGEST", math.inf)
    for kind in (uses.OuterUse, uses.DirectUse):
        patch.setattr(kind, "silence", lambda self, units: None)


@mutation("views that are clipped one by one", REPLAY, multiplicity=Multiplicity(3))
def _(patch: pytest.MonkeyPatch) -> None:
    _row_by_row(patch)


@mutation("people who are clipped row by row", REPLAY, unit="person")
def _(patch: pytest.MonkeyPatch) -> None:
    _row_by_row(patch)


def _row_by_row(patch: pytest.MonkeyPatch) -> None:
    right = step.clipped_sum
    patch.setattr(step, "clipped_sum", lambda *args, **given: right(*args, **given | {"rows_per_unit": 1}))


@mutation("every example twice", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.clipped_sum

    def twice(*args: Any, **settings: Any) -> Any:
        found = right(*args, **settings)
        return replace(found, grads={n: 2 * v for n, v in found.grads.items()})

    patch.setattr(step, "clipped_sum", twice)


# --- sampling -------------------------------------------------------------------------------------------


def drawn_instead(patch: pytest.MonkeyPatch, draw: Callable[[Any, int, Any], Tensor]) -> None:
    patch.setattr(build, "draw", draw)


@mutation("a shuffle instead of Poisson sampling", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    waiting: list[Tensor] = []

    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        if not waiting:
            waiting.extend(torch.randperm(rows).split(max(1, round(sampling.rate * rows))))
        return waiting.pop()

    drawn_instead(patch, draw)


@mutation("batches of a fixed size", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    drawn_instead(patch, lambda s, rows, source: torch.randperm(rows)[: round(s.rate * rows)])


@mutation("sampling with replacement", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    drawn_instead(patch, lambda s, rows, source: torch.randint(0, rows, (round(s.rate * rows),)))


@mutation("one example in every batch", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.draw
    drawn_instead(
        patch, lambda s, rows, source: torch.cat([right(s, rows, source), torch.tensor([5])]).unique()
    )


@mutation("one example in no batch", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.draw

    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        batch = right(sampling, rows, source)
        return batch[batch != 3]

    drawn_instead(patch, draw)


@mutation("every batch used twice", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right, kept = build.draw, []

    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        if kept:
            return kept.pop()
        kept.append(right(sampling, rows, source))
        return kept[0]

    drawn_instead(patch, draw)


@mutation("two batches for one release", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = build.draw
    drawn_instead(patch, lambda *args: torch.cat([right(*args), right(*args)]).unique())


@mutation("another batch for the second query", SAMPLER, ascent=FreshQuery(0.05))
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.Loop.sum_of_clipped
    asked: dict[int, int] = {}

    def summed(self: Any, batch: Tensor, clip: float) -> Any:
        asked[id(self)] = asked.get(id(self), 0) + 1
        return right(self, batch if asked[id(self)] % 2 else self.mechanism.draw_batch(), clip)

    patch.setattr(step.Loop, "sum_of_clipped", summed)


@mutation("neighbours that join together", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        pairs = torch.rand((rows + 1) // 2) < sampling.rate
        return pairs.repeat_interleave(2)[:rows].nonzero().squeeze(1)

    drawn_instead(patch, draw)


@mutation("a rate of one and a half times the declared one", SAMPLER)
def _(patch: pytest.MonkeyPatch) -> None:
    drawn_instead(patch, lambda s, rows, source: (torch.rand(rows) < 1.5 * s.rate).nonzero().squeeze(1))


@mutation("a rate that follows the number of rows", REPLAY)
def _(patch: pytest.MonkeyPatch) -> None:
    def draw(sampling: Any, rows: int, source: Any) -> Tensor:
        chosen = torch.rand(rows, dtype=torch.float64, generator=source) < sampling.batch_size / rows
        return chosen.nonzero().squeeze(1)

    drawn_instead(patch, draw)


# --- weights and records --------------------------------------------------------------------------------


@mutation("displaced weights that are kept", LEDGER, ascent=PreviousRelease(0.05))
def _(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def displaced(weights: Any, displacement: Any) -> Iterator[None]:
        with torch.no_grad():
            for name, weight in weights.items():
                if displacement is not None:
                    weight.add_(displacement[name])
        yield

    patch.setattr(step, "displaced", displaced)


def recorded_instead(
    patch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    right = Ledger.record_release

    def record(self: Ledger, **facts: Any) -> None:
        changed = change(facts)
        if changed is not None:
            right(self, **changed)

    patch.setattr(Ledger, "record_release", record)


@mutation("twice the noise in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: facts | {"queries": tuple(2 * q for q in facts["queries"])})


@mutation("half the noise in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: facts | {"queries": tuple(q / 2 for q in facts["queries"])})


@mutation("half the rate in the ledger", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(
        patch, lambda facts: facts | {"sampling": facts["sampling"] | {"rate": facts["sampling"]["rate"] / 2}}
    )


@mutation("a release that is not recorded", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    recorded_instead(patch, lambda facts: None if facts["step"] == 2 else facts)


@mutation("a record that comes late", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    right, waiting = Ledger.record_release, []

    def record(self: Ledger, **facts: Any) -> None:
        for one in waiting:
            right(self, **one)
        waiting[:] = [facts]

    patch.setattr(Ledger, "record_release", record)


@mutation("one release more than planned", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = step.Loop.private_step

    def longer(self: Any, number: int, phase: Any) -> None:
        right(self, number, phase)
        if number == 1:
            self.mechanism.recorded = 0  # it would refuse to record a step twice
            right(self, number, phase)

    patch.setattr(step.Loop, "private_step", longer)


@mutation("an accountant that halves", LEDGER)
def _(patch: pytest.MonkeyPatch) -> None:
    right = accountant._epsilon
    patch.setattr(accountant, "_epsilon", lambda *args: right(*args) / 2)
