"""Named optimizers, stepping with a release as if it were a gradient: torch.optim's own, and Adam with its bias by
noise taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from saltflat.errors import InputError, check_known
from saltflat.plan import Optimizer

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class AdamBC(torch.optim.Optimizer):
    """DP-AdamBC: m̂ / √max(v̂ − ν̂, floor), with ν̂ the bias-corrected β₂-average of the noise variance in each release.

    Noise inflates Adam's second moment by (σC/B)², a public constant of the plan, which the training loop
    writes into ``noise_on_release`` before each step. When it changes (SAI's switch), the average follows
    exactly as v̂ does. There is no additive ε.

    Reference: Tang, Shpilevskiy, Lécuyer 2024.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> weight.grad = torch.ones(1)
    >>> AdamBC([weight], lr=0.1).step()
    >>> weight.data
    tensor([-0.1000])
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 1e-8,
        noise_on_release: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "floor": floor, "noise_on_release": noise_on_release}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with the gradients that are there."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return None

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if not state:
            state |= {
                "step": 0,
                "m": torch.zeros_like(parameter),
                "v": torch.zeros_like(parameter),
                "noise": 0.0,
            }
        state["step"] += 1
        state["m"].lerp_(grad, 1 - beta1)
        state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        state["noise"] = beta2 * state["noise"] + (1 - beta2) * group["noise_on_release"] ** 2
        first, second = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        variance = (state["v"] / second - state["noise"] / second).clamp_(min=group["floor"])
        parameter.addcdiv_(state["m"] / first, variance.sqrt_(), value=-group["lr"])


REGISTRY: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adam-bc": AdamBC,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}

DEFAULT = Optimizer("sgd", {"momentum": 0.9})


def check_name(name: str) -> None:
    """Refuse an optimizer that has no entry here."""
    factory = "Or give fit(optimizer=) a factory."
    check_known("optimizer", name, REGISTRY, "the name of an optimizer", problem="is not known", cure=factory)


def build(
    optimizer: Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float
) -> torch.optim.Optimizer:
    """The torch optimizer that a plan names."""
    check_name(optimizer.name)
    settings: dict[str, Any] = dict(optimizer.settings)
    if "beta1" in settings or "beta2" in settings:
        settings["betas"] = (settings.pop("beta1", 0.9), settings.pop("beta2", 0.999))
    try:
        return REGISTRY[optimizer.name](parameters, lr=learning_rate, **settings)
    except (TypeError, ValueError) as error:
        raise InputError(
            "optimizer", str(optimizer), "settings that it knows", problem=f"failed: {error}"
        ) from error
