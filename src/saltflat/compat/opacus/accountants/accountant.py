"""Accountants: a history of releases, and its ε by saltflat's accounting."""

from __future__ import annotations

import abc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, ClassVar

from saltflat.accounting import SampledGaussian, epsilon, rdp_at_orders
from saltflat.errors import PrivacyWarning

History = list[tuple[float, float, int]]
"""Noise multiplier, sample rate, number of steps."""


class IAccountant(abc.ABC):
    """What an engine needs of an accountant; one's own can be registered."""

    @abc.abstractmethod
    def __init__(self) -> None:
        self.history: History = []

    @abc.abstractmethod
    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one release."""

    @abc.abstractmethod
    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """The ε of all releases so far."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of entries of the history."""

    @classmethod
    @abc.abstractmethod
    def mechanism(cls) -> str:
        """The name under which it is registered."""

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A function of a `DPOptimizer` that records its release."""

        def hook(optimizer: Any) -> None:
            self.step(
                noise_multiplier=float(optimizer.noise_multiplier),
                sample_rate=min(1.0, sample_rate * optimizer.accumulated_iterations),
            )

        hook.accountant, hook.sample_rate = self, sample_rate  # type: ignore[attr-defined]
        return hook

    def state_dict(self, destination: Any = None) -> Any:
        """History and mechanism, as plain values."""
        found = OrderedDict() if destination is None else destination
        found["history"] = deepcopy(self.history)
        found["mechanism"] = self.mechanism()
        return found

    def load_state_dict(self, state_dict: Any) -> None:
        """Go on from a saved history."""
        if not state_dict:
            raise ValueError(
                "state dict is either None or empty and hence cannot be loaded into Privacy Accountant."
            )
        for key in ("history", "mechanism"):
            if key not in state_dict:
                raise ValueError(
                    f"state_dict does not have the key `{key}`. Cannot be loaded into Privacy Accountant."
                )
        if self.mechanism() != state_dict["mechanism"]:
            raise ValueError(
                f"state_dict of {state_dict['mechanism']} cannot be loaded into Privacy Accountant with "
                f"mechanism {self.mechanism()}"
            )
        self.history = [
            (float(noise), float(rate), int(steps)) for noise, rate, steps in state_dict["history"]
        ]


def events_of(history: History) -> list[SampledGaussian]:
    """A history in the words of `saltflat.accounting`."""
    return [SampledGaussian(float(noise), float(rate), int(steps)) for noise, rate, steps in history]


class _Accountant(IAccountant):
    NAME: ClassVar[str]

    def __init__(self) -> None:
        self.history = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one release; equal ones in a row are counted together."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def __len__(self) -> int:
        return len(self.history)

    @classmethod
    def mechanism(cls) -> str:
        return cls.NAME


class PRVAccountant(_Accountant):
    """Tight composition by privacy loss distributions, in place of Opacus's PRV: an upper bound, without its error.

    >>> accountant = PRVAccountant()
    >>> accountant.history = [(1.5, 0.04, 2250)]
    >>> round(accountant.get_epsilon(delta=1e-5), 2)
    6.77
    """

    NAME = "prv"

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """By PLD; ``eps_error`` and ``delta_error`` are accepted and not needed."""
        return epsilon(events_of(self.history), delta)


class RDPAccountant(_Accountant):
    """Rényi divergences at the orders of Opacus: the same ε as there.

    >>> accountant = RDPAccountant()
    >>> accountant.history = [(1.5, 0.04, 2250)]
    >>> round(accountant.get_epsilon(delta=1e-5), 3)
    7.329
    """

    NAME = "rdp"
    DEFAULT_ALPHAS: list[float] = [1 + x / 10.0 for x in range(1, 100)] + [float(x) for x in range(12, 64)]

    def get_privacy_spent(
        self, *, delta: float, alphas: Sequence[float] | None = None
    ) -> tuple[float, float]:
        """ε, and the order at which it was found."""
        if not self.history:
            return 0.0, 0.0
        return rdp_at_orders(events_of(self.history), delta, alphas or self.DEFAULT_ALPHAS)

    def get_epsilon(
        self, delta: float, alphas: Sequence[float] | None = None, *args: Any, **kwargs: Any
    ) -> float:
        """By RDP."""
        return self.get_privacy_spent(delta=delta, alphas=alphas)[0]


class GaussianAccountant(PRVAccountant):
    """Accepted under its name, and computed by PLD: the central limit behind GDP understates ε."""

    NAME = "gdp"

    def __init__(self) -> None:
        warnings.warn(
            "accountant='gdp' rests on a central limit, and can understate ε. saltflat computes ε by privacy loss "
            "distributions instead, which is an upper bound and tight. accountant='prv' is the same.",
            PrivacyWarning,
            stacklevel=2,
        )  # fmt: skip
        super().__init__()
