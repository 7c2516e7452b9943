"""At the edge of float32, or of a layer's definition: nothing is clipped too little, nothing read beyond its end."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_networks import Fn
from torch import Tensor, nn

from saltflat.engine import native
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.engine.lengths import lengths

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def product(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is the targets."""
    return (outputs * targets).flatten(1).sum(1)


def moved_by_last(model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor) -> float:
    """By how many clip norms the last row moves the sum."""
    without = clipped_sum(model, loss, inputs[:-1], targets[:-1], 1.0).grads
    with_it = clipped_sum(model, loss, inputs, targets, 1.0).grads
    return float(torch.cat([(with_it[k] - without[k]).double().flatten() for k in without]).norm())


def explicit_in_float64(model: nn.Module, loss: Any, inputs: Any, targets: Tensor) -> dict[str, Tensor]:
    """The sum of gradients clipped to 1, one by one."""
    exact = copy.deepcopy(model).double()
    total = {name: torch.zeros_like(p) for name, p in exact.named_parameters()}
    for i in range(len(targets)):
        row = inputs[i : i + 1].double() if inputs.is_floating_point() else inputs[i : i + 1]
        grads = torch.autograd.grad(loss(exact(row), targets[i : i + 1]).sum(), list(exact.parameters()))
        norm = float(torch.cat([g.flatten() for g in grads]).norm())
        for name, g in zip(total, grads):
            total[name] += g * min(1.0, 1.0 / max(norm, 1e-300))
    return total


def assert_same(model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor) -> None:
    found, expected = clipped_sum(model, loss, inputs, targets, 1.0).grads, explicit_in_float64(
        model, loss, inputs, targets
    )  # fmt: skip
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-4, atol=1e-5)


# --- lengths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [8, 16])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("how", ["compiled", "torch"])
def test_terms_that_are_too_large_for_float32_are_not_taken_for_resolved(
    steps: int, twice: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finite row whose Gram matrices overflow, and whose terms cancel: its length came out as zero.

    Fails when a unit is called resolved because its terms are infinite (tried: one row moves the sum by 2e14).
    """
    if how == "torch":
        monkeypatch.setattr(native, "fits", lambda *_: False)
    torch.manual_seed(0)
    layer = nn.Linear(256, 256, bias=False)
    model = Fn(lambda self, x: F.linear(x, self.weight), weight=layer.weight)
    if twice:
        model = Fn(
            lambda self, x: torch.cat([F.linear(part, self.weight) for part in x.chunk(2, 1)], 1),
            weight=layer.weight,
        )
    inputs, targets = torch.randn(4, steps, 256), torch.randn(4, steps, 256)
    signs = torch.tensor([1.0, -1.0]).repeat(steps // 2)
    inputs[3], targets[3] = 0, 0
    inputs[3, :, 0], inputs[3, :, 1], targets[3, :, 0] = 1e12, 1e7 * signs, 2e6 * signs
    assert moved_by_last(model, product, inputs, targets) <= 1 + 1e-5


@pytest.mark.parametrize("width", [1 << 22, (1 << 20) + 7])
@pytest.mark.parametrize("how", ["compiled", "torch"])
def test_a_million_equal_numbers_are_as_long_as_they_are(
    width: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when squares are added up in float32 (tried: one row of four million moves the sum by 1.004)."""
    if how == "torch":
        monkeypatch.setattr(native, "fits", lambda *_: False)
    assert float(lengths(torch.full((1, width), 0.1))) == pytest.approx(0.1 * width**0.5, rel=1e-6)
    model, targets = nn.Linear(width, 1, bias=False), torch.ones(3, 1)
    assert moved_by_last(model, product, torch.full((3, width), 0.1234567), targets) <= 1 + 1e-5


def test_a_matrix_formed_from_a_sequence_is_as_long_as_it_is() -> None:
    """512 x 512 equal numbers, by a 1x1 kernel on a map. Fails as above (tried: 1.00015)."""
    model = nn.Conv2d(512, 512, 1, bias=False)
    inputs = torch.full((3, 512, 16, 16), 0.1234567)
    assert moved_by_last(model, product, inputs, torch.full((3, 512, 16, 16), 0.7654321)) <= 1 + 1e-5


# --- shapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (nn.Conv2d(32, 32, 3, padding=1), 64),
        (nn.Conv2d(128, 32, 3, padding=1), 64),
        (nn.Conv2d(64, 32, 3, padding=1, groups=2), 32),
        (nn.ConvTranspose2d(32, 16, 3), 64),
        (nn.GroupNorm(8, 32), 64),
        (nn.GroupNorm(8, 64), 32),
        (nn.Sequential(nn.Flatten(), nn.Linear(40_000, 10)), 512),
    ],
)
def test_what_torch_refuses_is_refused(layer: nn.Module, channels: int) -> None:
    """Fails when the loops in C are told a shape that they are not given (tried: numbers beyond a tensor's end)."""
    model, inputs = nn.Sequential(layer, nn.Flatten()), torch.randn(300, channels, 8, 8)
    with pytest.raises(RuntimeError):
        model(inputs)
    with pytest.raises(RuntimeError):
        clipped_sum(model, CROSS_ENTROPY, inputs, torch.zeros(300, dtype=torch.long), 1.0)


def test_a_bias_of_another_width_is_refused() -> None:
    model = Fn(
        lambda self, x: F.conv2d(x, self.weight, self.bias, padding=1).flatten(1),
        weight=nn.Parameter(torch.randn(32, 32, 3, 3)), bias=nn.Parameter(torch.randn(16)),
    )  # fmt: skip
    with pytest.raises(RuntimeError):
        clipped_sum(model, CROSS_ENTROPY, torch.randn(4, 32, 8, 8), torch.zeros(4, dtype=torch.long), 1.0)


def test_a_row_that_the_table_has_not_is_refused() -> None:
    """Beyond the rows that are tried first. Fails when an index is taken around the end (tried)."""
    model = Fn(lambda self, x: self.table[x].sum(1), table=nn.Parameter(torch.randn(10, 3)))
    tokens = torch.randint(-10, 10, (40, 4))
    assert_same(model, CROSS_ENTROPY, tokens, torch.zeros(40, dtype=torch.long))
    tokens[39, 2] = 12
    with pytest.raises(IndexError):
        clipped_sum(model, CROSS_ENTROPY, tokens, torch.zeros(40, dtype=torch.long), 1.0)


# --- definitions at their edges -------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
def test_prelu_at_zero(named: bool) -> None:
    """At exactly zero torch takes the slope of the negative side. Fails when it is that of the other (tried)."""

    def net(self: Any, x: Tensor) -> Tensor:
        hidden = F.linear(x, self.weight, self.shift)
        shaped = F.prelu(input=hidden, weight=self.slope) if named else F.prelu(hidden, self.slope)
        return F.linear(shaped, self.out, self.bias)

    torch.manual_seed(0)
    model = Fn(
        net, weight=nn.Parameter(torch.randn(6, 5)), shift=nn.Parameter(torch.zeros(6)),
        slope=nn.Parameter(torch.full((1,), 0.25)), out=nn.Parameter(torch.randn(3, 6)),
        bias=nn.Parameter(torch.zeros(3)),
    )  # fmt: skip
    inputs = torch.randn(40, 5)
    inputs[20:] = 0
    assert_same(model, CROSS_ENTROPY, inputs, torch.randint(0, 3, (40,)))
    kernel = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.PReLU(), nn.Flatten(), nn.Linear(144, 3))
    nn.init.zeros_(kernel[0].bias)
    images = F.pad(torch.randn(40, 1, 2, 2), (2, 2, 2, 2))  # black borders
    assert_same(kernel, CROSS_ENTROPY, images, torch.randint(0, 3, (40,)))


def test_a_bag_of_padding_alone_is_zero() -> None:
    """Fails when the largest of nothing is minus infinity (tried)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(9, 5, mode="max", padding_idx=0), nn.Linear(5, 3))
    bags = torch.randint(0, 9, (30, 4))
    bags[25:] = 0
    assert_same(model, CROSS_ENTROPY, bags, torch.randint(0, 3, (30,)))


def test_without_a_home_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a user whom nobody knows, as in some containers. Fails when that is not taken for a missing folder."""

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert native._library.__wrapped__() is None
