"""Small networks in float64, and their Hessians written out in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from saltflat.geometry import Loss
from saltflat.geometry.loss import _arguments


class Tied(nn.Module):
    """One weight in two places, and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((3,), 0.7))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.scale


class Attention(nn.Module):
    """Layer norm, attention by the fused function, and a mean over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.last = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, dim=-1)
        return self.last(F.scaled_dot_product_attention(q, k, v).mean(1))


class Flattened(nn.Module):
    """Flattens by view, which maps with their channels last do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.selu(self.conv(x))
        return self.last(maps.view(maps.size(0), -1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SELU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.GroupNorm(2, 4, affine=False), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "convolutional": (_convolutional, (1, 4, 4)),
    "flattened by view": (Flattened, (1, 4, 4)),
    "tied": (Tied, (4,)),
    "attention": (Attention, (5, 4)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)), (4,),
    ),
    "recurrent": (Recurrent, (5, 4)),
    "frozen": (_frozen, (4,)),
}  # fmt: skip


def network(name: str, rows: int = 12) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network of the list in float64, with rows that fit it."""
    torch.manual_seed(3)
    build, shape = NETWORKS[name]
    model = build().double()
    return model, (torch.randn(rows, *shape, dtype=torch.float64), torch.randint(0, 3, (rows,)))


def explicit_hessian(loss: Loss) -> Tensor:
    """Written out by torch's own reverse mode, twice, with none of the code under test but the order of weights."""

    def of(vector: Tensor) -> Any:
        outputs = functional_call(loss.model, loss.named(vector), *_arguments(loss.inputs))
        return F.cross_entropy(outputs, loss.targets)

    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.hessian(of, loss.weights)  # type: ignore[return-value]
