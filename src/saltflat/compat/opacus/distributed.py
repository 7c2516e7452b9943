"""Opacus's wrapper for several processes: it can be imported, and says what to use instead when it is made."""

from __future__ import annotations

from torch import nn


class DifferentiallyPrivateDistributedDataParallel(nn.Module):
    """Refused: here, several processes train through `saltflat.fit`, which draws noise and batches once for all.

    Scripts that train in one process import it as well, so the name is there.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        raise NotImplementedError(
            "DifferentiallyPrivateDistributedDataParallel: saltflat.compat.opacus trains in one process, on one "
            "device. For several, call saltflat.fit with a plan under torchrun (docs/scale.md)."
        )
