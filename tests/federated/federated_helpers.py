"""Small clients, models and plans that the tests of rounds share."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from saltflat import plans
from saltflat.data.source import Examples
from saltflat.errors import PrivacyWarning
from saltflat.federated import Clients, Simulation, partition, prepare_rounds
from saltflat.plan import Plan
from saltflat.training.losses import cross_entropy
from saltflat.training.session import Session

COUNT = 30


def small_net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Two layers, the same ones for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def small_rows(rows: int = 150, seed: int = 0, dtype: torch.dtype = torch.float32) -> Examples:
    """Rows of four numbers whose label can be learned."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator, dtype=torch.float64).to(dtype)
    return Examples(inputs, inputs[:, :3].argmax(1), num_classes=3)


def small_clients(dtype: torch.dtype = torch.float32) -> Clients:
    """Rows dealt out to a few clients."""
    return partition(small_rows(dtype=dtype), COUNT)


def plan_of(method: str = "dp-fedavg", **changes: Any) -> Plan:
    """A short plan over those clients; whatever is not said is quick."""
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0, "clients": COUNT, "rate": 0.5, "rounds": 4, "local_epochs": 1, "delta": 1e-3,
        "local_batch_size": 4, "clip_norm": 0.3,
    }  # fmt: skip
    settings |= changes
    if "epsilon" in changes:
        del settings["noise_multiplier"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return plans.federated_by_name(method, **settings)


def session_of(
    plan: Plan, model: nn.Module | None = None, clients: Clients | None = None, **settings: Any
) -> Session:
    """Rounds that are ready to run; ``drop`` and ``tamper`` go to the simulation."""
    model = small_net() if model is None else model
    clients = small_clients() if clients is None else clients
    own = {key: settings.pop(key) for key in ("drop", "tamper", "together") if key in settings}
    engine = Simulation(model, clients, cross_entropy, **own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return prepare_rounds(model, engine, plan, **settings)


def weights_of(model: nn.Module) -> Tensor:
    """All weights as one vector, copied."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).clone()


def one_release(plan: Plan, model: nn.Module, clients: Clients, **settings: Any) -> Tensor:
    """The first release of a plan, as one vector: the mean of the updates, uphill."""
    session = session_of(plan, model, clients, **settings)
    released = session.loop.asked.query(session.loop, 1, plan.phases[0])
    assert released is not None
    return torch.cat([part.double().flatten() for part in released.gradient.values()])
