"""DP-AdamBC: Adam whose second moment is corrected for the noise that privacy added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class AdamBC(torch.optim.Optimizer):
    """m̂ / √max(v̂ − ν̂, floor), with ν̂ the bias-corrected β₂-average of the noise variance in each release.

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
