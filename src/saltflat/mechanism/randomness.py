"""Where random numbers come from. A seeded source is for tests, and says so wherever it goes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch

TIER_FAST = "fast"


@dataclass
class Randomness:
    """Independent generators for sampling and for noise, and the tier they belong to.

    ``fast``: float64 noise from torch's generator, which the operating system seeds. Unpredictable to anyone
    who does not see the generator's state, but not a cryptographic stream; floating-point attacks are not
    covered. With a seed the noise is predictable, and nothing that it protects is private.
    """

    sampling: torch.Generator
    noise: torch.Generator
    tier: str = TIER_FAST
    seeded: bool = False

    @staticmethod
    def fresh(device: torch.device | str = "cpu") -> Randomness:
        """Seeded by the operating system, differently each time."""
        return Randomness(_generator(secrets.randbits(63), "cpu"), _generator(secrets.randbits(63), device))

    @staticmethod
    def from_seed(seed: int, device: torch.device | str = "cpu") -> Randomness:
        """Repeatable, for tests. The run's certificate will say that it is not private."""
        return Randomness(_generator(2 * seed, "cpu"), _generator(2 * seed + 1, device), seeded=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Where the generators of a seeded test run stand. Those of a private run are never handed out."""
        if not self.seeded:
            return {}
        return {"sampling": self.sampling.get_state(), "noise": self.noise.get_state()}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from where a seeded test run stood."""
        self.sampling.set_state(state["sampling"])
        self.noise.set_state(state["noise"])


def _generator(seed: int, device: torch.device | str) -> torch.Generator:
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    return generator
