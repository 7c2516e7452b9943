"""The sum of clipped gradients over the units of a batch: the one part of a step that touches private rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saltflat.data.people import units_of
from saltflat.data.source import Source
from saltflat.engine.batch import LossFunction
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.engine.frame import Frame
from saltflat.mechanism.exact import Grid
from saltflat.methods.multiplicity import views_of
from saltflat.plan import Plan
from saltflat.training.alone import clipped_alone
from saltflat.training.build import clipping_function, trainable

# Rows are read this many at a time, so that memory does not grow with the batch.
ROWS_AT_ONCE = 512

Vectors = Mapping[str, Tensor]
Sum = tuple[dict[str, Tensor], float]
"""The clipped sum by the names of the weights, and Σ (b − ½) over units with b = [norm ≤ clip norm]."""


@dataclass
class Sums:
    """What is needed to sum the clipped gradients of some units: no noise, no sampler, no ledger."""

    model: nn.Module
    source: Source | None
    plan: Plan
    loss_fn: LossFunction
    device: torch.device
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        self.weights = trainable(self.model)
        self.dtype = next(iter(self.weights.values())).dtype
        self.clip = clipping_function(self.plan.clipping)

    def over(
        self,
        batch: Tensor,
        clip_norm: float,
        grid: Grid | None = None,
        displacements: Sequence[Vectors] | None = None,
        frame: Frame | None = None,
    ) -> Sum:
        """The clipped sum over a batch of any size, at the weights as they are.

        View k is taken at weights moved by ``displacements[k]``; a ``frame`` comes before the clip. Both are
        public, and the same for the whole batch. The results are private until noise is added. An empty batch
        gives zeros. On a ``grid`` (the exact tier) every unit is taken alone and rounded to it, so that nothing
        of one can touch the last bits of another.
        """
        assert self.source is not None
        total = {
            name: torch.zeros(weight.shape, dtype=torch.int64) if grid else torch.zeros_like(weight)
            for name, weight in self.weights.items()
        }
        multiplicity = self.plan.multiplicity
        short = 0.0
        # a source may ask for fewer: sparse rows become dense when they are fetched
        most = 1 if grid else getattr(self.source, "rows_at_once", ROWS_AT_ONCE)
        for indices in batch.split(most) if len(batch) else ():
            rows = units_of(self.source, indices, self.device)
            inputs, targets, each = rows.inputs, rows.targets, rows.each
            weights = None if rows.weights is None else rows.weights.to(self.dtype)
            if multiplicity.views > 1 or multiplicity.augmentations:
                views = multiplicity.views
                inputs, targets = views_of(inputs, multiplicity), targets.repeat_interleave(views, dim=0)
                if weights is None:
                    weights = torch.ones(len(targets) // views, dtype=self.dtype, device=self.device)
                weights, each = (weights / views).repeat_interleave(views), each * views
            part = (clipped_alone if grid else clipped_sum)(
                self.model, self.loss_fn, inputs, targets, clip_norm,
                clipping=self.clip, rows_per_unit=each, row_weights=weights,
                displacements=displacements, frame=frame, micro_batch=self.micro_batch,
            )  # fmt: skip
            for name, value in (grid.rounded(part.grads) if grid else part.grads).items():
                total[name] += value
            short += float((part.norms <= clip_norm).sum()) - 0.5 * len(part.norms)
        return total, short
