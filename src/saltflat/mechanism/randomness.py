"""Where random numbers come from: three tiers. A seeded source is for tests, and says so wherever it goes."""

from __future__ import annotations

import os
import secrets
import weakref
from dataclasses import dataclass

import torch

from saltflat.errors import check_known
from saltflat.mechanism.streams import CryptographicStream

TIER_FAST, TIER_SECURE, TIER_EXACT = "fast", "secure", "exact"
TIERS = (TIER_FAST, TIER_SECURE, TIER_EXACT)

Source = torch.Generator | CryptographicStream


def check_tier(randomness: object) -> None:
    """Refuse a tier that does not exist."""
    expected = "'fast', 'secure' or 'exact'"
    check_known("randomness", randomness, TIERS, expected, problem="is not a tier of randomness")


@dataclass(eq=False)
class Randomness:
    """Independent sources for sampling and for noise, and the tier they belong to.

    ``fast``: float64 noise from torch's generator, which the operating system seeds. Unpredictable to anyone
    who does not see the generator's state, but not a cryptographic stream; floating-point attacks are not
    covered. ``secure``: a cryptographic stream for both; floating-point attacks are not covered. ``exact``:
    the same stream, integers on a grid, and a Gaussian that is rounded to it exactly.

    With a seed the noise is predictable, and nothing that it protects is private. A process that forks leaves
    its child with new randomness, so that two processes never draw the same noise; a seeded one does not.
    """

    sampling: Source
    noise: Source
    tier: str = TIER_FAST
    seeded: bool = False

    def __post_init__(self) -> None:
        check_tier(self.tier)
        if not self.seeded:
            _unseeded.add(self)

    @staticmethod
    def fresh(device: torch.device | str = "cpu", tier: str = TIER_FAST) -> Randomness:
        """Seeded by the operating system, differently each time.

        >>> Randomness.fresh(tier="secure").tier
        'secure'
        """
        check_tier(tier)
        if tier == TIER_FAST:
            return Randomness(
                _generator(secrets.randbits(63), "cpu"), _generator(secrets.randbits(63), device)
            )
        return Randomness(CryptographicStream.fresh(), CryptographicStream.fresh(), tier)

    @staticmethod
    def from_seed(seed: int, device: torch.device | str = "cpu", tier: str = TIER_FAST) -> Randomness:
        """Repeatable, for tests. The run's certificate will say that it is not private."""
        check_tier(tier)
        if tier == TIER_FAST:
            return Randomness(_generator(2 * seed, "cpu"), _generator(2 * seed + 1, device), seeded=True)
        sampling, noise = (CryptographicStream.from_seed(seed, purpose) for purpose in ("sampling", "noise"))
        return Randomness(sampling, noise, tier, seeded=True)

    def renew(self) -> None:
        """Seed both sources anew."""
        for source in (self.sampling, self.noise):
            if isinstance(source, CryptographicStream):
                source.renew()
            else:
                source.manual_seed(secrets.randbits(63))

    def state(self) -> dict[str, torch.Tensor]:
        """Where the sources of a seeded test run stand. Those of a private run are never handed out."""
        if not self.seeded:
            return {}
        return {"sampling": self.sampling.get_state(), "noise": self.noise.get_state()}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from where a seeded test run stood."""
        self.sampling.set_state(state["sampling"])
        self.noise.set_state(state["noise"])


def seed_torch(seed: int | None) -> None:
    """What a model and augmentations draw by themselves, from torch's own generators: anew, or from a test's seed.

    Dropout masks are dealt by place in the batch, so one more row changes the masks of all that come after it. While
    nobody can know them, every row's masks are as likely in both worlds, and rows move the sum by the clip norm at
    most. Under a known seed one row would move it by many times that.
    """
    torch.manual_seed(secrets.randbits(63) if seed is None else seed)


# What a forked child must not share with its parent.
_unseeded: weakref.WeakSet[Randomness] = weakref.WeakSet()


def _renew_all() -> None:
    for randomness in list(_unseeded):
        if randomness.noise.device.type == "cpu":  # a child cannot use its parent's other devices
            randomness.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


def _generator(seed: int, device: torch.device | str) -> torch.Generator:
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    return generator
