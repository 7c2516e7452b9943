"""Models, data and the usual training loop, to be run with Opacus and with what stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import saltflat.compat.opacus as ours
from saltflat.compat.opacus.layers import DPLSTM, DPMultiheadAttention


class Attention(nn.Module):
    """Tokens through an embedding, attention and a norm, to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.attention = DPMultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.norm(x + self.attention(x, x, x)[0])
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    """The last state of an LSTM, to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.cell = DPLSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.table(tokens))[0][:, -1])


class Tied(nn.Module):
    """One table at the input and at the output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.middle = nn.Linear(4, 4)
        self.out = nn.Linear(4, 11)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.table(tokens).mean(1))))


class Bare(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)
        self.bare = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).matmul(self.bare)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 3),
    ),
    "sequence": lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(16, 3)),
    "tied": Tied,
    "bare": Bare,
}
SHAPES = {"linear": (5,), "convolution": (2, 6, 6), "sequence": (4, 5), "bare": (5,)}


def rows_for(name: str, rows: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and labels."""
    torch.manual_seed(seed)
    if name not in SHAPES:
        return torch.randint(0, 11, (rows, 4)), torch.randint(0, 3, (rows,))
    return torch.randn(rows, *SHAPES[name]) * 3, torch.randint(0, 3, (rows,))


def made_private(library: Any = ours, name: str = "linear", **changes: Any) -> SimpleNamespace:
    """A model, its optimizer and its loader, made private by a library; the same weights for the same name."""
    rows = changes.pop("rows", 24)
    batch_size, rate = changes.pop("batch_size", 8), changes.pop("lr", 0.5)
    engine_options = {key: changes.pop(key) for key in ("accountant", "secure_mode") if key in changes}
    make_model = changes.pop("model", MODELS.get(name))
    data = changes.pop("data", None)
    shuffle = changes.pop("shuffle", False)
    inputs, labels = rows_for(name, rows) if data is None else data
    torch.manual_seed(1)
    model = make_model()
    optimizer = changes.pop("optimizer", lambda p: torch.optim.SGD(p, lr=rate))(model.parameters())
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=batch_size, shuffle=shuffle)
    engine = library.PrivacyEngine(**engine_options)
    options = {"noise_multiplier": 0.0, "max_grad_norm": 0.7} | changes
    make = engine.make_private
    if "target_epsilon" in options:
        del options["noise_multiplier"]
        make = engine.make_private_with_epsilon
    found = make(module=model, optimizer=optimizer, data_loader=loader, **options)
    names = (
        ("module", "optimizer", "criterion", "loader")
        if len(found) == 4
        else ("module", "optimizer", "loader")
    )
    return SimpleNamespace(engine=engine, plain=model, **dict(zip(names, found)))


def train(
    made: SimpleNamespace,
    epochs: int = 1,
    criterion: Any = None,
    loader: Any = None,
    steps: int | None = None,
    call: Any = None,
) -> None:
    """The loop that everybody writes."""
    criterion = criterion or getattr(made, "criterion", None) or nn.CrossEntropyLoss()
    taken = 0
    for _ in range(epochs):
        for x, y in loader or made.loader:
            made.optimizer.zero_grad()
            criterion((call or made.module)(x), y).backward()
            made.optimizer.step()
            taken += 1
            if taken == steps:
                return


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights, by their names in the plain model."""
    return {name.removeprefix("_module."): p.detach().clone() for name, p in model.named_parameters()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], **tolerances: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=lambda m, n=name: f"{n}: {m}", **tolerances)
