"""Small runs, the same ones in one process and on several ranks. Started by ``torchrun``, it trains them all.

Each rank leaves what it has in the end, and which rows it read, in a file of its own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saltflat as sf
from core_helpers import Blind, blind_loss, blind_rows, small_data, small_net
from saltflat.data.source import Examples
from saltflat.plan import (
    AutomaticClipping,
    Budget,
    Multiplicity,
    Optimizer,
    PerLayerClipping,
    Phase,
    Plan,
    Poisson,
    QuantileClipping,
    TruncatedPoisson,
)

SEED, CLIP, SIGMA, RATE, BATCH = 5, 0.5, 1.7, 0.3, 8
COMMON: dict[str, Any] = {
    "population": 40, "batch_size": BATCH, "steps": 12, "delta": 1e-3, "noise_multiplier": 2.0, "clip_norm": CLIP,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A plan, made when it is first asked for, and what `fit` is given besides."""

    make: Callable[[], Plan]
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Plan:
        return self.make()


def named(method: str, options: dict[str, Any] | None = None, **settings: Any) -> Case:
    return Case(partial(sf.plans.by_name, method, **COMMON | settings), options or {})


def cases() -> dict[str, Case]:
    """Every ascent, averaging, clipping, tier, unit and use of public data."""
    public = {"public": replace(small_data(24, 9), provenance="public", declared_by="the tests")}
    people = {"groups": torch.arange(40) // 2}
    return {
        "dp-sgd": named("dp-sgd"),
        "dp-sat": named("dp-sat"),
        "dp-sam": named("dp-sam"),
        "sai": named("sai"),
        "sai, automatic": named("sai", switch="automatic"),
        "sai+ema": named("sai+ema"),
        "dp-sgd+swa": named("dp-sgd+swa"),
        "dp-sgd+adam": named("dp-sgd+adam"),
        "dp-sgd+adam-bc": named("dp-sgd+adam-bc"),
        "quantile": named("dp-sgd", clipping=QuantileClipping(count_noise=1.0)),
        "automatic": named("dp-sgd", clipping=AutomaticClipping()),
        "per-layer": named("dp-sat", clipping=PerLayerClipping()),
        "gaussian views": named("dp-sgd", multiplicity=Multiplicity(views=3, deviation=0.1)),
        "secure": named("dp-sat", {"randomness": "secure"}),
        "exact": named("sai", {"randomness": "exact"}, clipping=QuantileClipping(count_noise=1.0)),
        "people": named("dp-sgd", people, unit="person", population=20),
        "truncated": Case(  # much noise: every process computes what it costs, and with little that takes seconds
            lambda: Plan(
                TruncatedPoisson(40, BATCH, cap=9), (Phase(12, CLIP, 8.0, RATE),), Budget(100.0, 1e-3)
            )
        ),
        "weight-multiplicity": named("weight-multiplicity", public),
        "dope-sgd": named("dope-sgd", public),
        "ada-dps": named("ada-dps", public),
        "mirror-descent": named("mirror-descent", public),
        "nearly empty": named("dp-sgd", batch_size=1),
    }


def fitted(case: Case, data: Any = None, model: nn.Module | None = None, **options: Any) -> sf.Run:
    settings = {"seed": SEED, "progress": False, "evaluate": small_data(9, 1)} | case.options | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sf.PrivacyWarning)
        return sf.fit(model or small_net(), small_data() if data is None else data, case.plan, **settings)


def result(run: sf.Run) -> dict[str, Any]:
    """What must be the same on all ranks, and in one process."""
    return {
        "weights": {name: value.clone() for name, value in run.model.state_dict().items()},
        "average": run.average,
        "history": run.history,
        "epsilon": run.plan.epsilon,
        "head": run.certificate.data["ledger_head"],
        "releases": run.certificate.data["recorded_releases"],
    }


# --- noise, without gradients ----------------------------------------------------------------------------


class Kept:
    """Keeps every release, as rank 0 hands it out."""

    wants_releases = True

    def __init__(self) -> None:
        self.releases: list[Tensor] = []

    def __call__(self, step: Any) -> None:
        self.releases.append(torch.cat([part.flatten().clone() for part in step.release.values()]))


def noise(tier: str) -> dict[str, Any]:
    """The releases of three steps of a private run on zero gradients, and the weights they led to."""
    plan = Plan(
        Poisson(40, BATCH),
        (Phase(3, CLIP, SIGMA, RATE),),
        Budget(100.0, 1e-3),
        optimizer=Optimizer("sgd", {}),
    )
    kept = Kept()
    run = fitted(
        Case(lambda: plan), blind_rows(), Blind(), loss_fn=blind_loss, seed=None, randomness=tier, callbacks=[kept],
        evaluate=None, check_gradients=False,
    )  # fmt: skip
    return {"releases": kept.releases, "weights": result(run)["weights"]}


# --- who reads what --------------------------------------------------------------------------------------


class Watched:
    """Rows that remember which of them were read."""

    def __init__(self, rows: int = 40) -> None:
        self.held, self.read = small_data(rows), []

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        return self.held[index]


def reads() -> list[int]:
    """Every read of one run, in order; first those of the checks before it."""
    rows = Watched()
    fitted(named("dp-sgd"), rows)
    return rows.read


# --- one row more ----------------------------------------------------------------------------------------


EXTRA: dict[str, Callable[[], Tensor]] = {
    "huge": lambda: torch.full((1, 4), 1e30, dtype=torch.float64),
    "not a number": lambda: torch.full((1, 4), float("nan"), dtype=torch.float64),
    "ordinary": lambda: torch.ones(1, 4, dtype=torch.float64),
}


def sums() -> dict[str, Tensor]:
    """The sum of clipped gradients of all rows without noise, of 40 rows and of these with one more."""
    phase = Phase(1, CLIP, 0.0, 1.0)
    plan = Plan(Poisson(40, 40), (phase,), Budget(float("inf"), 1e-3), optimizer=Optimizer("sgd", {}))
    rows = small_data()
    found = {}
    for name, extra in {"none": None, **EXTRA}.items():
        data = rows
        if extra is not None:
            data = Examples(torch.cat([rows.inputs, extra()]), torch.cat([rows.targets, torch.tensor([1])]))
        kept = Kept()
        fitted(Case(lambda: plan), data, seed=None, callbacks=[kept], evaluate=None)
        found[name] = kept.releases[0] * 40 if kept.releases else torch.zeros(0)
    return found


def steps() -> dict[str, Any]:
    """The open loop: where it was left, and the weights then."""
    model, numbers = small_net(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sf.PrivacyWarning)
        for step in sf.steps(model, small_data(), named("dp-sat").plan, seed=SEED):
            numbers.append(step.number)
            if step.number == 4:
                break
    return {"numbers": numbers, "weights": model.state_dict()}


def refusals() -> dict[str, str]:
    """What ranks are told that do not fit together; afterwards they can go on."""
    rank = torch.distributed.get_rank()
    tried: dict[str, Callable[[], Any]] = {
        "rows": lambda: fitted(named("dp-sgd"), small_data(40 + rank)),
        "model": lambda: fitted(
            named("dp-sgd"), model=small_net() if rank == 0 else nn.Linear(4, 3).double()
        ),
        "plan": lambda: fitted(named("dp-sgd" if rank == 0 else "dp-sat")),
        "labels on rank 1": lambda: fitted(
            named("dp-sgd"),
            small_data() if rank == 0 else Examples(small_data().inputs, torch.full((40,), 7), num_classes=3),
        ),
        "a bad argument": lambda: fitted(named("dp-sgd"), micro_batch=0),
        "tune": lambda: sf.tune(
            small_net(), small_data(), grid={"learning_rate": [1.0]}, epsilon=1, delta=1e-3
        ),
    }
    said = {}
    for name, attempt in tried.items():
        try:
            attempt()
        except sf.SaltflatError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def main(out: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found: dict[str, Any] = {"refusals": refusals(), "steps": steps()}
    found["runs"] = {
        # other weights on the other ranks: rank 0's are taken
        name: result(fitted(case, model=small_net(rank)))
        for name, case in cases().items()
    }
    found["noise"] = {tier: noise(tier) for tier in ("fast", "secure", "exact")}
    found["reads"] = reads()
    found["sums"] = sums()
    torch.save(found, out / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
