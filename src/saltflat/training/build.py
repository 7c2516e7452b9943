"""From a plan to the parts that carry it out: the one place where mechanism and accounting meet.

Everything that decides privacy is read from the plan here and nowhere else: the sampler's rate, the clip
norm, the noise, the divisor, and, from the same fields, what goes into the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from saltflat.engine import clipping as clipping_functions
from saltflat.engine.clipping import ClippingFunction
from saltflat.mechanism.exact import Grid, noised_on_grid
from saltflat.mechanism.noise import GRID, gaussian, noised, noised_count
from saltflat.mechanism.randomness import TIER_EXACT, TIER_FAST, Randomness
from saltflat.mechanism.sampling import check_rows, draw
from saltflat.mechanism.streams import CryptographicStream
from saltflat.plan import AutomaticClipping, Clipping, PerLayerClipping, Phase, Plan, QuantileClipping
from saltflat.record.agreement import sampling_facts
from saltflat.record.ledger import Ledger, LedgerError


@dataclass
class Mechanism:
    """The private side of a plan: draws batches, adds noise, and records before it releases."""

    plan: Plan
    rows: int
    randomness: Randomness
    ledger: Ledger

    def __post_init__(self) -> None:
        check_rows(self.plan.sampling, self.rows)
        self.recorded = self.ledger.releases
        if not self.ledger.entries:
            self.ledger.open_run(
                plan_hash=self.plan.hash,
                randomness=self.randomness.tier,
                seeded=self.randomness.seeded,
                planned_releases=self.plan.steps,
            )

    def draw_batch(self) -> Tensor:
        """The indices of the next batch. Their number is private."""
        return draw(self.plan.sampling, self.rows, self.randomness.sampling)

    def record(self, step: int, phase: Phase, clip_norm: float) -> None:
        """Write the step's releases into the ledger, before any of them is drawn.

        A step is recorded once. Only a seeded test run may come to it again, after it was cut off: it draws
        the same numbers.
        """
        number, queries = self.plan.phase_number(step - 1), self.plan.query_noises(phase)
        if step <= self.recorded:
            if not self.randomness.seeded:
                raise LedgerError(f"Step {step} is recorded already: its release cannot be drawn again.")
            return
        self.ledger.record_release(
            step=step,
            phase=number,
            queries=queries,
            sampling=sampling_facts(self.plan),
            clip_norm=clip_norm,
            randomness=self.randomness.tier,
        )
        self.recorded = step

    def release_survey(self, counts: Tensor) -> Tensor:
        """The plan's survey: counts with noise, in float64. On record before its noise is drawn, and drawn once.

        ``counts`` are whole numbers, to which a row adds at most one in each of the survey's columns.
        """
        survey = self.plan.survey
        assert survey is not None
        if self.ledger.surveys:
            raise LedgerError("The survey is recorded already: it cannot be drawn again.")
        self.ledger.record_survey(columns=survey.columns, noise_multiplier=survey.noise_multiplier)
        if self.randomness.tier == TIER_EXACT:
            grid = Grid.for_clip_norm(survey.sensitivity)
            steps = counts.long() * round(1 / grid.step)  # the grid's step is a power of two, below one
            noisy = noised_on_grid({"counts": steps}, grid, survey.noise_multiplier, 1.0, self._stream())
            return noisy["counts"]
        if survey.deviation == 0:
            return counts.double()
        source = self.randomness.noise
        noise = gaussian(counts.shape, survey.deviation, source.device, source)
        return noise.cpu().add_(counts)

    def grid(self, clip_norm: float) -> Grid | None:
        """The grid of integers on which gradients are added up; None but in the exact tier."""
        return Grid.for_clip_norm(clip_norm) if self.randomness.tier == TIER_EXACT else None

    def release(
        self, total: Mapping[str, Tensor], noise_multiplier: float, clip_norm: float
    ) -> dict[str, Tensor]:
        """``(total + N(0, (σC)²)) / expected batch size``; in the exact tier, total and noise are integers."""
        divisor, grid = self.plan.sampling.batch_size, self.grid(clip_norm)
        if grid is not None:
            return noised_on_grid(total, grid, noise_multiplier, divisor, self._stream())
        deviation = noise_multiplier * clip_norm if noise_multiplier else 0.0
        return noised(total, deviation, divisor, self.randomness.noise)

    def release_count(self, count: float) -> float | None:
        """The share of gradients within the clip norm, noised; None unless the plan accounts for it.

        ``count`` is Σ (b − ½) over the batch: one unit moves it by at most ½.
        """
        clipping = self.plan.clipping
        if not isinstance(clipping, QuantileClipping):
            return None
        halves = round(count / GRID.step)  # they lie on the grid of one half
        return (
            noised_count(halves, 2 * clipping.count_noise, self.randomness) / self.plan.sampling.batch_size
            + 0.5
        )

    def _stream(self) -> CryptographicStream:
        assert isinstance(self.randomness.noise, CryptographicStream)
        return self.randomness.noise

    def noise_on_release(self, phase: Phase, clip_norm: float) -> float:
        """The standard deviation of the noise in each coordinate of a release: public."""
        return phase.sigma * clip_norm / self.plan.sampling.batch_size if phase.sigma else 0.0


class ClipNorms:
    """The clip norm of each step: the phase's own, or one that follows released counts."""

    def __init__(self, clipping: Clipping) -> None:
        self.clipping = clipping
        self.scale = 1.0

    def now(self, phase: Phase) -> float:
        """The clip norm of the next step."""
        return phase.clip_norm * self.scale

    def observe(self, share: float | None) -> None:
        """Move geometrically towards the quantile: C ← C · exp(−η (share − quantile))."""
        if share is not None and isinstance(self.clipping, QuantileClipping):
            step = -self.clipping.learning_rate * (share - self.clipping.quantile)
            self.scale *= math.exp(min(max(step, -1.0), 1.0))


def clipping_function(clipping: Clipping) -> ClippingFunction:
    """The engine's function for a plan's clipping."""
    if isinstance(clipping, AutomaticClipping):
        return partial(clipping_functions.automatic, stability=clipping.stability)
    if isinstance(clipping, PerLayerClipping):
        return clipping_functions.per_layer
    return clipping_functions.flat


def build_mechanism(
    plan: Plan,
    source: Sized,
    ledger: Ledger,
    device: torch.device,
    seed: int | None,
    randomness: str = TIER_FAST,
) -> Mechanism:
    """The mechanism of a plan over some data, with randomness of the tier that is asked for."""
    if seed is None:
        return Mechanism(plan, len(source), Randomness.fresh(device, randomness), ledger)
    return Mechanism(plan, len(source), Randomness.from_seed(seed, device, randomness), ledger)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a plan moves, by their first names."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
