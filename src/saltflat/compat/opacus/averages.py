"""Averages of the weights inside a loop that is not saltflat's: post-processing of releases, which costs nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from saltflat.errors import InputError
from saltflat.methods.averaging import AverageState
from saltflat.plan import Averaging


class Averager:
    """Takes the trainable weights into an average after each step of the optimizer."""

    def __init__(self, module: nn.Module, averaging: Averaging, steps: int) -> None:
        self._module = module
        self._state = AverageState(averaging, steps)
        self._taken = 0

    @property
    def average(self) -> dict[str, Tensor] | None:
        """The averaged weights by their names in the plain model; None before the first that counts."""
        return self._state.average

    def after_step(self) -> None:
        """Look at the weights."""
        self._taken += 1
        # A weight with two names under both: else loading would put the last iterate over its average.
        named = self._module.named_parameters(remove_duplicate=False)
        self._state.observe(self._taken, {name: p.detach() for name, p in named if p.requires_grad})

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: plain values and tensors."""
        return {
            "averaging": self._state.averaging.kind,
            "taken": self._taken,
            "count": self._state.count,
            "average": self._state.average,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        own = self._state.averaging.kind
        if saved["averaging"] != own:
            raise InputError(
                "method", f"…+{own}", f"+{saved['averaging']}, as in the checkpoint",
                problem="averages in another way than the checkpoint",
            )  # fmt: skip
        self._taken, self._state.count = int(saved["taken"]), int(saved["count"])
        held = saved["average"]
        self._state.average = None if held is None else {name: value.clone() for name, value in held.items()}
