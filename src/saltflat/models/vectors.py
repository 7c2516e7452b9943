"""Models of flat inputs: logistic and linear regression, and a small perceptron."""

from __future__ import annotations

from torch import nn

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
