"""A linear layer on features less their mean, where the mean is learned privately in the same gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import check_positive
from saltflat.models.registry import check_counts, register


class CentredLinear(nn.Module):
    """Logits of x - m, with m a running estimate of the mean of x.

    A feature that is alike in all examples tells no classes apart, but makes every gradient longer, and what is
    clipped away of it is signal. The mean is private too, so it is learned by DP-SGD itself: the loss of
    `centring_loss` adds a pull of m towards x, of length ``share`` times that of x - m, to each example's gradient
    before the clip. The logits take m as a constant. All of it is one gradient of one model: the plan's ε holds
    as for any other.

    ``unit`` is what a learning rate of one moves m by, as the rate of the weights is too large for it.
    """

    def __init__(self, in_features: int, classes: int, share: float, unit: float) -> None:
        super().__init__()
        self.share, self.unit = share, unit
        self.mean = nn.Parameter(torch.zeros(in_features))
        self.head = nn.Linear(in_features, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        centred = x - self.unit * self.mean
        logits = self.head(x - self.unit * self.mean.detach())
        return logits, centred * (self.share / self.unit) ** 0.5


def centring_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy per example, and half the squared length of what `CentredLinear` returns beside its logits.

    A label outside the classes adds nothing: a private step never raises.
    """
    logits, centred = outputs
    valid = (targets >= 0) & (targets < logits.shape[1])
    losses = F.cross_entropy(logits, torch.where(valid, targets, 0).long(), reduction="none")
    return (losses + 0.5 * centred.square().sum(1)) * valid


@register(
    "centred-linear", "a linear layer on features less their mean, learned with it", input_shape=(3969,),
    parameters=43_669, paper="none",
)  # fmt: skip
def centred_linear(
    *, in_features: int = 3969, classes: int = 10, share: float = 0.1, unit: float = 0.01
) -> nn.Module:
    """For rows of features of one length, such as those of `saltflat.recipes`. All weights start at zero."""
    check_counts(in_features=in_features, classes=classes)
    check_positive("share", share)
    check_positive("unit", unit)
    return CentredLinear(in_features, classes, share, unit)
