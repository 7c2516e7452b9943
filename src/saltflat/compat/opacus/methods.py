"""Flat minima inside a loop that is not saltflat's: where gradients are taken, and when the search ends.

The ascent goes along the previous release. It is made of what left already, so it costs no privacy and, but for one
copy of the weights, no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from saltflat.errors import InputError, check_positive, is_number, nearest
from saltflat.methods.ascent import AscentState
from saltflat.plan import Averaging, NoAveraging, PreviousRelease
from saltflat.plan.averagings import AVERAGINGS

if TYPE_CHECKING:
    from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer

METHODS = ("dp-sgd", "dp-sat", "sai")
AVERAGES = [kind for kind in AVERAGINGS if kind != "none"]
"""The suffixes that are taken here. Optimizer and clipping have arguments of their own in Opacus's interface."""


@dataclass(frozen=True)
class Method:
    """A method by name, with the settings that saltflat's plans have under the same words.

    ``dp-sat`` (Park et al. 2023) takes each gradient at w + ρ g/‖g‖, g the previous release. ``sai`` (Wang et al.
    2025) does so up to the step ``switch``, a fraction of all steps or a step; from there it is DP-SGD with noise
    ``noise_ratio`` times as large. ``averaging`` changes nothing in training.

    >>> Method.by_name("dp-sat+ema", rho=0.1).averaging.kind
    'ema'
    """

    name: str = "dp-sgd"
    rho: float = 0.03
    switch: float | int = 0.4
    noise_ratio: float = 1.5
    averaging: Averaging = field(default_factory=NoAveraging)

    @classmethod
    def by_name(cls, method: str, **settings: Any) -> Method:
        """A method with at most one suffix: ``dp-sat+ema``, ``sai+swa``."""
        name, *suffixes = str(method).split("+")
        if not suffixes:
            return cls(name, **settings)
        if len(suffixes) > 1 or suffixes[0] not in AVERAGES:
            raise InputError(
                "method", method, f"one suffix of {', '.join('+' + each for each in AVERAGES)}, or none",
                problem="has another suffix",
                cure="Pass the optimizer itself, and clipping='adaptive' or 'automatic'; saltflat.fit has the rest.",
            )  # fmt: skip
        return cls(name, averaging=AVERAGINGS[suffixes[0]](), **settings)

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise InputError("method", self.name, "a known method", cure=nearest(self.name, list(METHODS)))
        if not is_number(self.rho) or not 0 <= self.rho < float("inf"):
            raise InputError("rho", self.rho, "a finite rho >= 0")
        check_positive("noise_ratio", self.noise_ratio)
        if not is_number(self.switch) or self.switch < 0:
            raise InputError("switch", self.switch, "a fraction of the steps, or a step")

    def first_steps(self, steps: int | None) -> int | None:
        """How many steps the search for flatness has; None for all of them."""
        if self.name != "sai":
            return None if self.name == "dp-sat" else 0
        steps = declared(steps, "method='sai' has two phases")
        whole = isinstance(self.switch, int) and not isinstance(self.switch, bool)
        first = int(self.switch) if whole else round(float(self.switch) * steps)
        return min(max(first, 0), steps)

    def history(self, sigma: float, sample_rate: float, steps: int) -> list[tuple[float, float, int]]:
        """What will be released, for calibration."""
        if self.name != "sai":
            return [(sigma, sample_rate, steps)]
        first = self.first_steps(steps) or 0
        phases = [(sigma, sample_rate, first), (sigma * self.noise_ratio, sample_rate, steps - first)]
        if first == 0:
            phases[1] = (sigma, sample_rate, steps)
        return [phase for phase in phases if phase[2]]


def declared(steps: int | None, why: str) -> int:
    """The number of steps, which must be known before the first one."""
    if steps is None:
        raise InputError(
            "steps", None, "how many steps will be taken, declared before the first one",
            problem=f"is missing: {why}",
            cure="Pass steps= to make_private, or use make_private_with_epsilon, which knows the epochs.",
        )  # fmt: skip
    return steps


@dataclass
class FlatSearch:
    """Displaces the weights at which gradients are taken, while the search goes on."""

    method: Method
    parameters: Sequence[nn.Parameter]
    first_steps: int | None
    optimizer: DPOptimizer
    steps: int = 0  # releases so far
    raised: bool = False  # whether the optimizer has the noise of the second phase
    state: AscentState = field(default_factory=AscentState)
    _weights: list[Tensor] | None = None

    @property
    def searching(self) -> bool:
        """Whether gradients are still taken at displaced weights."""
        return self.first_steps is None or self.steps < self.first_steps

    def weights(self) -> list[Tensor] | None:
        """The weights at which the next gradients are taken; None for those of the model."""
        if not self.searching:
            return None
        if self._weights is None:
            moved = self.state.displacement(PreviousRelease(self.method.rho))
            if moved is None:
                return None
            self._weights = [p.detach() + moved[str(i)] for i, p in enumerate(self.parameters)]
        return self._weights

    def before_release(self) -> None:
        """The second phase has its own noise, before anything of it is recorded or drawn."""
        second = self.method.name == "sai" and self.first_steps and self.steps >= self.first_steps
        if second and not self.raised:  # once, also where a release that failed is tried again
            self.optimizer.noise_multiplier *= self.method.noise_ratio
            self.raised = True

    def after_release(self) -> None:
        """Remember the release."""
        self.steps += 1
        self._weights = None
        if self.searching:
            release = {str(i): p.grad.detach() for i, p in enumerate(self.parameters) if p.grad is not None}
            self.state.observe(PreviousRelease(self.method.rho), release)
        else:
            self.state.memory = {}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: plain values and tensors."""
        return {
            "method": self.method.name,
            "steps": self.steps,
            "direction": self.state.memory.get("direction"),
            "first_steps": self.first_steps,
            "noise_multiplier": float(self.optimizer.noise_multiplier),
            "raised": self.raised,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there. The phases of ``sai`` share one budget: switch and noise are those of the checkpoint."""
        if saved["method"] != self.method.name:
            raise InputError(
                "method", self.method.name, f"method={saved['method']!r}, as in the checkpoint",
                problem="is not the method of the checkpoint",
            )  # fmt: skip
        direction = saved["direction"]
        self.state.memory = {} if direction is None else {"direction": direction}
        self.steps, self._weights = int(saved["steps"]), None
        # Older files do not say whether the noise was raised; the next release then raises it.
        if self.method.name == "sai" and "raised" in saved:
            self.first_steps, self.raised = int(saved["first_steps"]), bool(saved["raised"])
            self.optimizer.noise_multiplier = float(saved["noise_multiplier"])
