"""Accounts: what a release costs, given where its batch came from."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from saltflat.accounting import replace_one_epsilon
from saltflat.compat.opacus.accountants.accountant import IAccountant, events_of
from saltflat.compat.opacus.data_loader import passes_begun, sees_each_once
from saltflat.compat.opacus.utils.uniform_sampler import UniformWithReplacementSampler
from saltflat.errors import PrivacyWarning, RefusedError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer
    from saltflat.compat.opacus.privacy_engine import PrivacyEngine

FORMAT = 1


class PoissonAccount:
    """Each release is a sampled Gaussian at the rate of the loader's sampler, which must stay what it was."""

    sampling = "poisson"

    def __init__(self, accountant: IAccountant, loader: DataLoader[Any], sample_rate: float) -> None:
        self.accountant, self.sample_rate = accountant, sample_rate
        self._sampler = loader.batch_sampler
        self._record = accountant.get_optimizer_hook_fn(sample_rate=sample_rate)
        self.releases = self.elsewhere = 0

    def to_agree_on(self) -> dict[str, float]:
        """What must be the same on all ranks, if there are several, so that their shards do not overlap."""
        sampler: Any = self._sampler
        shards = ("sample_rate", "total_size", "num_replicas", "shuffle", "shuffle_seed")
        return {name: float(getattr(sampler, name, 0)) for name in shards}

    def __call__(self, optimizer: DPOptimizer) -> None:
        sampler = self._sampler
        if isinstance(sampler, UniformWithReplacementSampler):
            if not math.isclose(sampler.sample_rate, self.sample_rate, rel_tol=1e-9):
                raise RefusedError(
                    "This step",
                    f"the loader samples at {sampler.sample_rate}, and the accountant was told {self.sample_rate}.",
                    "Call make_private again with a loader of another batch size.",
                )
            if self.releases - self.elsewhere >= sampler.drawn:
                self.elsewhere += 1
                if self.elsewhere == 1:
                    warnings.warn(
                        "optimizer.step() was called more often than the private loader drew batches. ε is that of "
                        "batches from the loader that make_private returned; batches from elsewhere are not covered.",
                        PrivacyWarning,
                        stacklevel=4,
                    )  # fmt: skip
        self._record(optimizer)
        self.releases += 1


class FixedBatchesAccount:
    """A pass over disjoint batches is one release without sampling: each example is in one of them at most.

    Where a pass may hold an example twice (a sampler with replacement, a stream), each release counts alone.
    """

    sampling = "fixed batches"
    elsewhere = 0

    def __init__(self, accountant: IAccountant, loader: DataLoader[Any], sample_rate: float) -> None:
        self.accountant, self.sample_rate = accountant, sample_rate
        self._loader = loader
        self._disjoint = sees_each_once(loader)
        self._charged = 0
        self._noises: set[float] = set()
        self.releases = 0

    def to_agree_on(self) -> dict[str, float]:
        """What must be the same on all ranks, if there are several, so that their batches do not overlap."""
        sampler: Any = self._loader.sampler
        shards = ("total_size", "shuffle", "seed", "epoch")
        found = {f"the sampler's {name}": float(getattr(sampler, name, 0)) for name in shards}
        return found | {"the number of passes": float(passes_begun(self._loader) or 0)}

    def __call__(self, optimizer: DPOptimizer) -> None:
        noise = float(optimizer.noise_multiplier)
        begun = passes_begun(self._loader)
        self.releases += 1
        if not self._disjoint or not begun:
            self.accountant.step(noise_multiplier=noise, sample_rate=1.0)
            return
        if begun > self._charged:
            for _ in range(begun - self._charged):
                self.accountant.step(noise_multiplier=noise, sample_rate=1.0)
            self._charged, self._noises = begun, {noise}
        elif noise not in self._noises:  # an example may be in a batch with either noise
            self.accountant.step(noise_multiplier=noise, sample_rate=1.0)
            self._noises.add(noise)


def certified(engine: PrivacyEngine, delta: float) -> dict[str, Any]:
    """What an engine claims, as plain values. Infinite ε is the text "inf"."""
    accounts = engine._accounts
    history = engine.accountant.history
    found = engine.get_epsilon(delta)
    doubled = replace_one_epsilon(events_of(history), delta)
    doubts = []
    if any(account.elsewhere for account in accounts):
        doubts.append("some releases were made of batches that the private loader did not draw")
    if len({id(account.accountant) for account in accounts}) == 1 and len(accounts) > 1:
        doubts.append("several trainings share this account; it covers one data set")
    if engine._seeded:
        doubts.append(
            "the noise came from a generator that was handed in: who knows its seed knows the noise"
        )
    doubts += [
        f"no gradient reached {check.told()} in the first batch: noise alone moves them"
        for check in engine._use_checks
        if check.unused
    ]
    return {
        "format": FORMAT,
        "epsilon": _number(found),
        "delta": delta,
        "relation": "zero-out",
        "epsilon_replace_one": None if doubled is None else _number(doubled),
        "unit": "example",
        "accountant": engine.accountant.mechanism(),
        "history": [list(entry) for entry in history],
        "sampling": sorted({account.sampling for account in accounts}),
        "releases": sum(account.releases for account in accounts),
        "randomness": "secure" if engine.secure_mode else "torch's generators",
        "assumes": [
            "the size of the data set is public",
            "losses are computed row by row, and nothing but optimizer.step() used the gradients",
            "metrics on private rows that were printed or chosen by are not covered",
            *([f"{engine._ranks} ranks were given the same rows in the same order"] * (engine._ranks > 1)),
        ],
        "doubts": doubts,
    }


def _number(value: float) -> float | str:
    return "inf" if math.isinf(value) else value
