"""The optimizer on several ranks: each clips its own rows, rank 0 adds the noise, all step with the same sum."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer, DPOptimizerFastGradientClipping
from saltflat.compat.opacus.over_ranks import check_agreement, group_of
from saltflat.errors import LostRankError
from saltflat.ranks.vectors import flat_sums, from_flat_sums


class DistributedDPOptimizer(DPOptimizer):
    """A `DPOptimizer` whose release is made of the rows of all ranks.

    Guarantees: noise is drawn once, by rank 0, so the release is that of one process, whatever the number of ranks.
    Before a release is recorded, all ranks must be there and agree on its number, noise, clip norm and divisor. If a
    rank is lost, no gradient is left that an optimizer could use, and no batch is released again.

    ``expected_batch_size`` is that of one rank, as in Opacus. All ranks make the optimizer, in the same order.
    """

    def __init__(self, optimizer: Optimizer, **kwargs: Any) -> None:
        super().__init__(optimizer, **kwargs)
        self._group = group_of(optimizer)
        self.rank, self.world_size = self._group.rank, self._group.size
        self._begun = 0  # releases, this one included
        self._reduced = False

    def gradient_noise_multiplier(self) -> float:
        """The noise that this rank adds: all of it is rank 0's."""
        return super().gradient_noise_multiplier() if self._group.leads else 0.0

    def meet(self) -> None:
        """Wait for all ranks, and refuse to go on where they differ: before anything is recorded or drawn."""
        self._begun += 1
        self._reduced = False
        own = {
            "the number of steps": self._begun,
            "noise_multiplier": float(self.noise_multiplier),
            "max_grad_norm": float(self.max_grad_norm),
            "the batches that were accumulated": self.accumulated_iterations,
            "the expected batch size": float(self.expected_batch_size or 1),
        }
        if self.account is not None:
            own |= self.account.to_agree_on()  # type: ignore[attr-defined]
        check_agreement(self._group, own)

    def reduce_gradients(self) -> None:
        """Make ``p.grad`` the release of all ranks; called by the step, and a second time without effect."""
        if self._reduced:
            return
        self._reduced = True
        found = {str(i): p.grad for i, p in enumerate(self.params) if p.grad is not None}
        try:
            parts = {kind: self._group.add_up_for_all(part) for kind, part in flat_sums(found).items()}
        except LostRankError:
            for p in self.params:  # a part of the sum: on all ranks but one it has no noise
                p.grad = None
            raise
        total = from_flat_sums(parts, found)
        for i, p in enumerate(self.params):
            if str(i) in total:
                p.grad = total[str(i)].clone()
                if self.loss_reduction == "mean":
                    p.grad /= self.world_size


class DistributedDPOptimizerFastGradientClipping(DistributedDPOptimizer, DPOptimizerFastGradientClipping):
    """`DistributedDPOptimizer` for ``grad_sample_mode="ghost"``: per-example gradients are not kept for reading."""


class FSDPOptimizerFastGradientClipping(DistributedDPOptimizerFastGradientClipping):
    """The optimizer of ``grad_sample_mode="ghost_fsdp"``: the same, as every rank holds all parameters."""
