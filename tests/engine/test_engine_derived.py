"""Weights that are made from parameters: norms by the fitted form, or unit by unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import Fn, assert_matches, distance, explicit, length, smooth_loss, targets_for
from torch import Tensor, nn

from saltflat.engine import clipped_sum, derived, native
from saltflat.engine.ghost import Centred
from saltflat.engine.kernels import Geometry
from saltflat.engine.rules.convolution import GhostKernelUse
from saltflat.models.layers import WeightStandardisedConv2d

Make = Callable[..., Tensor]


def standardised(weight: Tensor, gain: Tensor) -> Tensor:
    centred = weight - weight.mean((1, 2, 3), keepdim=True)
    return centred * gain.view(-1, 1, 1, 1) / weight.var((1, 2, 3), keepdim=True).sqrt()


def by_batch_norm(weight: Tensor, gain: Tensor) -> Tensor:
    """As timm writes it."""
    flat = F.batch_norm(weight.reshape(1, len(weight), -1), None, None, weight=gain, training=True, eps=1e-6)
    return flat.view_as(weight)


def normalised(weight: Tensor, gain: Tensor) -> Tensor:
    """A weight norm: the mean stays."""
    return weight * gain.view(-1, 1, 1, 1) / weight.square().sum((1, 2, 3), keepdim=True).sqrt()


def almost(weight: Tensor, gain: Tensor) -> Tensor:
    """Standardised, but for one number that is let through: the derivative differs by rank one."""
    return standardised(weight, gain) + 0.02 * F.pad(
        weight[:, :1, :1, :1], (0, 2, 0, 2, 0, weight.shape[1] - 1)
    )


def across(weight: Tensor, gain: Tensor) -> Tensor:
    """One scale for all channels."""
    return weight * gain.view(-1, 1, 1, 1) / weight.std()


def convolution(make: Make, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)

    def net(self: Any, x: Tensor) -> Tensor:
        return torch.tanh(F.conv2d(x, make(self.weight, self.gain), padding=1))

    weight = nn.Parameter(scale * torch.randn(6, 8, 3, 3))
    return Fn(net, weight=weight, gain=nn.Parameter(torch.rand(6) + 0.5))


@pytest.fixture(params=[True, False], ids=["native", "torch"], autouse=True)
def _loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(native, "_library", lambda: None)


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each derived weight was found to have the form."""
    found: list[bool] = []
    forms = derived._forms

    def noted(*args: Any) -> Any:
        result = forms(*args)
        found.append(result is not None)
        return result

    monkeypatch.setattr(derived, "_forms", noted)
    return found


@pytest.mark.parametrize("make", [standardised, by_batch_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardised_kernels_are_known_by_their_form(
    make: Make, dtype: torch.dtype, formed: list[bool]
) -> None:
    """Norms and sums. Fails when the part along the weight, or the mean, is left in."""
    model = convolution(make)
    assert_matches(model, torch.randn(5, 8, 4, 4), dtypes=(dtype,))
    assert formed
    assert all(formed)


@pytest.mark.parametrize("make", [normalised, almost, across])
def test_other_derivations_go_unit_by_unit(make: Make, formed: list[bool]) -> None:
    """Fails when a form is kept that does not explain the answers."""
    assert_matches(convolution(make), torch.randn(5, 8, 4, 4))
    assert formed
    assert not any(formed)


@pytest.mark.parametrize("kind", ["scaled", "plain"])
def test_the_models_own_layer(kind: Any, formed: list[bool]) -> None:
    torch.manual_seed(0)
    layer = WeightStandardisedConv2d(8, 6, 3, 1, kind)
    assert_matches(nn.Sequential(layer, nn.Tanh()), torch.randn(5, 8, 4, 4))
    assert all(formed)


def test_a_gradient_within_what_is_removed_is_not_understated() -> None:
    """The constant direction has no gradient left: what remains is rounding, and it is rounded up."""
    weight = Centred(F.normalize(torch.randn(2, 90)), torch.zeros(2), torch.ones(2))
    form = derived._Form(weight, torch.zeros(2), torch.ones(2))
    grads = torch.full((3, 2, 90), 1e4) + torch.randn(3, 2, 90)
    exact = grads.double() - grads.double().mean(2, keepdim=True)
    along = weight.along.double()
    exact = exact - along * (exact * along).sum(2, keepdim=True)
    moments = derived.moments_of(grads, weight.along)
    rest, vanishing = derived.rest_of(moments, torch.ones(2))
    found = form.squared_norms(moments[1], rest)
    assert vanishing.tolist() == [True] * 3
    assert bool((found.double() >= exact.square().sum((1, 2))).all())


def test_a_linear_layer_with_standardised_rows(formed: list[bool]) -> None:
    """Not only convolutions."""

    def net(self: Any, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean(1, keepdim=True)
        return torch.tanh(F.linear(x, centred / self.weight.std(1, keepdim=True)))

    torch.manual_seed(0)
    model = Fn(net, weight=nn.Parameter(torch.randn(4, 70)))
    assert_matches(model, torch.randn(5, 70))
    assert_matches(model, torch.randn(5, 3, 70))
    assert all(formed)


@pytest.fixture
def ghosts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each kernel whose moments were read off Gram matrices: whether the layer's outputs were still there."""
    found: list[bool] = []
    moments = GhostKernelUse.moments

    def noted(self: GhostKernelUse, weight: Centred) -> Any:
        found.append(self.outputs is not None)
        return moments(self, weight)

    monkeypatch.setattr(GhostKernelUse, "moments", noted)
    return found


def wide(after: Callable[[Tensor], Tensor], stride: int = 1) -> nn.Module:
    """Many channels on a small map: Gram matrices are less work than kernels."""
    torch.manual_seed(0)

    def net(self: Any, x: Tensor) -> Tensor:
        kernel = standardised(self.weight, self.gain)
        return after(F.conv2d(x, kernel, self.bias, padding=1, stride=stride)).flatten(1)

    parameters = {"weight": torch.randn(48, 40, 3, 3), "gain": torch.rand(48) + 0.5, "bias": torch.randn(48)}
    return Fn(net, **{name: nn.Parameter(value) for name, value in parameters.items()})


@pytest.mark.parametrize("stride", [1, 2])
def test_wide_standardised_kernels_need_no_gradients(
    stride: int, ghosts: list[bool], formed: list[bool]
) -> None:
    """Norms off Gram matrices and outputs. Fails when the bias is left in the outputs, or a patch's sum is wrong."""
    assert_matches(wide(torch.tanh, stride), torch.randn(5, 40, 4, 4))
    assert ghosts
    assert all(ghosts)
    assert all(formed)


def test_outputs_that_were_written_over_are_not_used(ghosts: list[bool]) -> None:
    """Fails when the outputs are read after the next layer has changed them."""
    assert_matches(wide(lambda y: torch.exp(y.mul_(0.1))), torch.randn(5, 40, 4, 4))
    assert ghosts
    assert not any(ghosts)


def test_units_of_several_rows_meet_in_one_gram_matrix(ghosts: list[bool]) -> None:
    model, inputs, targets = wide(torch.tanh).double(), torch.randn(6, 40, 3, 3).double(), targets_for(6)
    sums, norms = explicit(model, smooth_loss, inputs, targets, 0.3, rows_per_unit=2)
    found = clipped_sum(model, smooth_loss, inputs, targets, 0.3, rows_per_unit=2)
    torch.testing.assert_close(found.norms, norms)
    assert distance(found.grads, sums) < 1e-10 * length(sums)
    assert ghosts


def test_gradients_that_cancel_are_taken_in_double_precision() -> None:
    """Rows whose gradient nearly vanishes: lengths off float32 Gram matrices would be rounding alone."""
    torch.manual_seed(0)
    x = torch.randn(1, 40, 1, 1).expand(3, 40, 4, 4).clone()
    grad = torch.randn(3, 48, 4, 4)
    grad[1:] -= grad[1:].mean((2, 3), keepdim=True)
    weight = torch.randn(48, 40, 1, 1)
    flat = weight.flatten(1)
    mean, centred = flat.mean(1), flat - flat.mean(1, keepdim=True)
    longs = centred.norm(dim=1)
    geometry = Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)
    use = GhostKernelUse(x, grad, weight, geometry, 3)
    direction = Centred(centred / longs[:, None], mean, longs)
    found, doubtful = use.moments(direction)
    exact = torch.einsum("nchw,ndhw->ncd", grad.double(), x.double())
    assert doubtful.tolist() == [False, True, True]
    torch.testing.assert_close(found[2][0].sum().double(), exact[0].square().sum(), rtol=1e-4, atol=0)
    form = derived._Form(direction, torch.ones(48), torch.ones(48))
    graph = derived._Graph(weight, (), use, [form])
    left = exact - exact.mean(2, keepdim=True)  # with the same factor on what is along the weight
    lengths = left.square().sum((1, 2))
    norms = form.squared_norms(*graph.squared_lengths())
    assert bool((norms[1:] >= lengths[1:] * (1 - 1e-9)).all())
    torch.testing.assert_close(norms, lengths, rtol=1e-4, atol=0)


class Standardised(nn.Module):
    """Standardised rows, as a linear layer or a 3×3 convolution."""

    def __init__(self, kernel: bool, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, size // 9, 3, 3) if kernel else torch.randn(16, size))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)
        weight = flat.view_as(self.weight)
        return F.conv2d(x, weight, padding=1) if weight.dim() == 4 else F.linear(x, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["compiled", "torch", "map"])
def test_one_blank_row_moves_the_sum_by_at_most_the_clip_norm(
    dtype: torch.dtype, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is constant but for one number: standardisation removes all of its gradient but a rounding or so.

    Fails when the rest is read off the difference of lengths (tried: the row moves the sum by 1.6 clip norms with the
    compiled loops, by 7.9 without and in float64).
    """
    if how == "torch":
        monkeypatch.setattr("saltflat.engine.native.fits", lambda *_: False)
    torch.manual_seed(1)
    size, eps = 4608, torch.finfo(dtype).eps
    model = Standardised(how == "map", size).to(dtype)
    shape = (size // 9, 6, 6) if how == "map" else (size,)
    for value in (1.2342, 1.7, 1.999):
        for roundings in (0.0, 10.0, 40.0, 160.0, 640.0, 1e4):
            x = 1e-3 * torch.randn(4, *shape, dtype=dtype)
            x[3] = value * 2.0**20
            x[3].view(-1)[-1] += 2.0**20 * (roundings * eps * size * value**2) ** 0.5
            targets = torch.ones_like(model(x)).detach()
            without = clipped_sum(model, smooth_product, x[:3], targets[:3], 1.0).grads["weight"]
            with_it = clipped_sum(model, smooth_product, x, targets, 1.0).grads["weight"]
            assert float((with_it - without).double().norm()) <= 1 + 1e-5


def smooth_product(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is the targets."""
    return (outputs * targets).flatten(1).sum(1)
