"""Small models, data and loops that the chapters' tests share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from saltflat.data.people import People
from saltflat.data.source import Examples
from saltflat.engine.batch import LossFunction
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.errors import PrivacyWarning
from saltflat.plan import Budget, Optimizer, Phase, Plan, Poisson
from saltflat.record.ledger import Ledger
from saltflat.training.build import build_mechanism
from saltflat.training.losses import default_loss
from saltflat.training.step import Loop, build_optimizer

COMMON: dict[str, Any] = {
    "population": 40, "batch_size": 8, "steps": 10, "delta": 1e-3, "noise_multiplier": 3.0,
}  # fmt: skip
"""Settings of a short plan over `small_data`."""


def bounded(examples: int) -> settings:
    """The same few examples on every machine."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def small_net(seed: int = 0) -> nn.Module:
    """Two layers in float64, the same ones for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def small_data(rows: int = 40, seed: int = 0) -> Examples:
    """Rows of four numbers, a few of them far out, with one of three labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.randn(rows, 4, dtype=torch.float64, generator=generator)
    inputs[::7] *= 10
    return Examples(inputs, torch.randint(0, 3, (rows,), generator=generator), num_classes=3)


def stop_after(number: int) -> Callable[[Any], None]:
    """A callback that ends a run after a step, as Ctrl-C would."""

    def stop(step: Any) -> None:
        if step.number == number:
            raise KeyboardInterrupt

    return stop


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder, with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def loop_of(
    model: nn.Module,
    data: Examples,
    plan: Plan,
    *,
    seed: int | None = 3,
    loss_fn: LossFunction | None = None,
    groups: Tensor | None = None,
    ledger: Ledger | None = None,
    randomness: str = "fast",
    **options: Any,
) -> Loop:
    """What `fit` sets up, without its checks, folder and certificate. Global randomness starts at ``seed``."""
    source = data if groups is None else People(data, groups)
    loss = loss_fn or default_loss(data.targets)
    clipped_sum(model, loss, *data.fetch(torch.arange(3)), 1.0)  # the model is looked at here, not in a step
    ledger = Ledger() if ledger is None else ledger
    mechanism = build_mechanism(plan, source, ledger, torch.device("cpu"), seed, randomness)
    torch.manual_seed(3 if seed is None else seed)
    return Loop(model, source, plan, mechanism, loss, build_optimizer(plan, model, None), **options)


def weights_of(model: nn.Module) -> list[Tensor]:
    """A copy of the weights."""
    return [parameter.detach().clone() for parameter in model.parameters()]


@contextmanager
def other_size_declared() -> Iterator[None]:
    """Inside, data of another size than declared is meant to be so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The data has", PrivacyWarning)
        yield


CLIP = 0.5


def plan_of(*, steps: int = 1, sigma: float = 2.0, ascent: Any = None, **parts: Any) -> Plan:
    """A plan over 40 declared rows, 8 expected in a batch."""
    phase = Phase(steps, CLIP, sigma, 0.5, *([ascent] if ascent else []))
    return Plan(Poisson(40, 8), (phase,), Budget(100.0, 1e-5), **parts)


class Blind(nn.Module):
    """Three tensors of 120,000 numbers in all, and outputs that do not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(200, 200, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(40_000, dtype=torch.float64))
        self.c = nn.Parameter(torch.zeros(100, 400, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return 0.0 * (self.a.sum() + self.b.sum() + self.c.sum()) + inputs


def blind_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of zero gradients."""
    return outputs.sum(1) * 0.0


def blind_rows() -> Examples:
    """Forty rows for `Blind`."""
    return Examples(torch.zeros(40, 2, dtype=torch.float64), torch.zeros(40, dtype=torch.long))


def noise_of_steps(steps: int, *, seed: int | None = 11, **options: Any) -> list[list[Tensor]]:
    """The noise of each step and tensor, in units of what was declared, from the weights alone."""
    sigma, rate = 1.7, 0.3
    phase = Phase(steps, CLIP, sigma, rate)
    plan = Plan(Poisson(40, 8), (phase,), Budget(100.0, 1e-5), optimizer=Optimizer("sgd", {}))
    loop = loop_of(Blind(), blind_rows(), plan, loss_fn=blind_loss, seed=seed, **options)
    before, found = weights_of(loop.model), []
    for _ in loop:
        after = weights_of(loop.model)
        found.append([(b - a).flatten() * 8 / (rate * sigma * CLIP) for a, b in zip(after, before)])
        before = after
    return found


class Watch:
    """What a loop's mechanism was asked to release, before noise, and what it drew from."""

    def __init__(self, loop: Loop, batch: list[int]) -> None:
        self.loop, self.sums, self.counts = loop, [], []
        mechanism = loop.mechanism
        release, release_count = mechanism.release, mechanism.release_count

        def watched(total: Any, sigma: float, clip_norm: float) -> dict[str, Tensor]:
            self.sums.append(torch.cat([part.flatten().clone() for part in total.values()]))
            return release(total, sigma, clip_norm)

        def counted(count: float) -> float | None:
            self.counts.append(count)
            return release_count(count)

        mechanism.release = watched  # type: ignore[method-assign]
        mechanism.release_count = counted  # type: ignore[method-assign]
        mechanism.draw_batch = lambda: torch.tensor(batch, dtype=torch.long)  # type: ignore[method-assign]
