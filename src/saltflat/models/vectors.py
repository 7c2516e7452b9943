"""Models of flat inputs: logistic and linear regression, a small perceptron, and a linear layer that learns the mean
of its features, privately and in the same gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import check_positive
from saltflat.models.registry import check_counts, register

SWA_PAPER = "Indri et al., Can Stochastic Weight Averaging Improve Generalization in Private Learning?, 2023"


@register(
    "logistic", "multinomial logistic regression", input_shape=(1, 28, 28), parameters=7_850, paper=SWA_PAPER
)  # fmt: skip
def logistic(*, in_features: int = 784, classes: int = 10) -> nn.Module:
    """One linear layer to the classes' logits; inputs of any shape are flattened."""
    check_counts(in_features=in_features, classes=classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, classes))


@register("linear", "linear regression", input_shape=(256,), parameters=256, paper=SWA_PAPER)
def linear(*, in_features: int = 256, outputs: int = 1, bias: bool = False) -> nn.Module:
    """θᵀx, as generated in the paper: no bias unless asked for. The output is N × outputs."""
    check_counts(in_features=in_features, outputs=outputs)
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, outputs, bias=bias))


@register("mlp", "one hidden layer, for 8×8 digits", input_shape=(1, 8, 8), parameters=4_810, paper="none")
def mlp(*, in_features: int = 64, hidden: int = 64, classes: int = 10) -> nn.Module:
    """Linear, Tanh, linear; inputs of any shape are flattened."""
    check_counts(in_features=in_features, hidden=hidden, classes=classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


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
