"""Agreement with Opacus on the layers that both know."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_helpers import Fn, distance, length, smooth_loss, targets_for
from torch import Tensor, nn

from saltflat.engine import clipped_sum

opacus = pytest.importorskip("opacus", reason="Opacus is a peer, not a dependency")
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

ROWS = 6


def clipped_by_opacus(
    model: nn.Module, inputs: Tensor, targets: Tensor, clip_norm: float
) -> tuple[dict[str, Tensor], Tensor]:
    from opacus import GradSampleModule

    wrapped = GradSampleModule(model, loss_reduction="sum")
    smooth_loss(wrapped(inputs), targets).sum().backward()
    samples = {name: p.grad_sample for name, p in model.named_parameters() if p.requires_grad}
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples.values()]).norm(dim=0)
    factors = (clip_norm / norms).clamp(max=1.0)
    return {name: torch.einsum("n...,n->...", s, factors) for name, s in samples.items()}, norms


def dp_recurrent(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import opacus.layers

        return Fn(
            lambda self, x: self.layer(x)[0], layer=getattr(opacus.layers, name)(8, 4, batch_first=True)
        )

    return build


COMMON: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Linear": (lambda: nn.Linear(8, 3), lambda: torch.randn(ROWS, 5, 8)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), lambda: torch.randn(ROWS, 4, 9)),
    "Conv2d": (
        lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), lambda: torch.randn(ROWS, 4, 7, 7)
    ),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 2, stride=2), lambda: torch.randn(ROWS, 2, 4, 4, 4)),
    "GroupNorm": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)), lambda: torch.randn(ROWS, 4, 5, 5)
    ),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), lambda: torch.randn(ROWS, 5, 8)),
    "InstanceNorm": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, affine=True)),
        lambda: torch.randn(ROWS, 4, 5, 5),
    ),
    "Embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 3)), lambda: torch.randint(0, 10, (ROWS, 5))
    ),
    "a small network": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 5)
        ),
        lambda: torch.randn(ROWS, 3, 8, 8),
    ),
    "Opacus's LSTM": (dp_recurrent("DPLSTM"), lambda: torch.randn(ROWS, 5, 8)),
    "Opacus's GRU": (dp_recurrent("DPGRU"), lambda: torch.randn(ROWS, 5, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMON)
def test_opacus_agrees(name: str) -> None:
    """Fails when either forgets the bias in the norm (tried in the engine)."""
    torch.manual_seed(0)
    build, data = COMMON[name]
    model, inputs, targets = build().double(), data(), targets_for(ROWS)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    ours = clipped_sum(model, smooth_loss, inputs, targets, 0.4)
    theirs, norms = clipped_by_opacus(model, inputs, targets, 0.4)
    assert distance(ours.grads, theirs) <= 1e-10 * length(theirs)
    torch.testing.assert_close(ours.norms, norms)
