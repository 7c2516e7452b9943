"""Schedules of noise and of the clip norm, by epoch. What is used is what is accounted, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer

__all__ = [
    "ExponentialGradClip", "ExponentialNoise", "LambdaGradClip", "LambdaNoise", "StepGradClip", "StepNoise",
]  # fmt: skip


class _Scheduler:
    """Sets one attribute of an optimizer at each ``step()``; the first one is made when it is built."""

    attribute = ""

    def __init__(self, optimizer: DPOptimizer, *, last_epoch: int = -1) -> None:
        if not hasattr(optimizer, self.attribute):
            raise ValueError(
                f"This scheduler requires your optimizer to have a .{self.attribute} attr. "
                "Are you sure you are using a DPOptimizer?"
            )
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.step()

    def following(self) -> float:
        """What the attribute becomes; a schedule of one's own overrides this, or Opacus's name for it below."""
        raise NotImplementedError

    def step(self) -> None:
        """Go to the next epoch."""
        self.last_epoch += 1
        setattr(self.optimizer, self.attribute, getattr(self, f"get_{self.attribute}")())

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions, which are not data."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer" and not callable(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.__dict__.update(state_dict)

    @property
    def now(self) -> float:
        """What the attribute is."""
        return float(getattr(self.optimizer, self.attribute))


class _NoiseScheduler(_Scheduler):
    attribute = "noise_multiplier"

    def get_noise_multiplier(self) -> float:
        """The next noise multiplier."""
        return self.following()


class _GradClipScheduler(_Scheduler):
    attribute = "max_grad_norm"

    def get_max_grad_norm(self) -> float:
        """The next clip norm."""
        return self.following()


class _Step(_Scheduler):
    def __init__(self, optimizer: DPOptimizer, *, step_size: int, gamma: float, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def following(self) -> float:
        stays = self.last_epoch == 0 or self.last_epoch % self.step_size != 0
        return self.now if stays else self.now * self.gamma


class _Exponential(_Scheduler):
    def __init__(self, optimizer: DPOptimizer, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def following(self) -> float:
        return self.now if self.last_epoch == 0 else self.now * self.gamma


class ExponentialNoise(_Exponential, _NoiseScheduler):
    """The noise multiplier times ``gamma`` at each epoch."""


class ExponentialGradClip(_Exponential, _GradClipScheduler):
    """The clip norm times ``gamma`` at each epoch."""


class StepNoise(_Step, _NoiseScheduler):
    """The noise multiplier times ``gamma`` every ``step_size`` epochs."""


class StepGradClip(_Step, _GradClipScheduler):
    """The clip norm times ``gamma`` every ``step_size`` epochs."""


class LambdaNoise(_NoiseScheduler):
    """The first noise multiplier times ``noise_lambda(epoch)``."""

    def __init__(
        self, optimizer: DPOptimizer, *, noise_lambda: Callable[[int], float], last_epoch: int = -1
    ) -> None:
        self.noise_lambda, self.base_noise_multiplier = noise_lambda, optimizer.noise_multiplier
        super().__init__(optimizer, last_epoch=last_epoch)

    def following(self) -> float:
        return self.base_noise_multiplier * self.noise_lambda(self.last_epoch)


class LambdaGradClip(_GradClipScheduler):
    """The first clip norm times ``scheduler_function(epoch)``."""

    def __init__(
        self, optimizer: DPOptimizer, *, scheduler_function: Callable[[int], float], last_epoch: int = -1
    ) -> None:
        self.scheduler_function, self.base_max_grad_norm = scheduler_function, optimizer.max_grad_norm
        super().__init__(optimizer, last_epoch=last_epoch)

    def following(self) -> float:
        return self.base_max_grad_norm * self.scheduler_function(self.last_epoch)
