"""Ghost mode by the names of Opacus: norms are shown, gradients are not, and clipping by hand is right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from saltflat.compat.opacus import PrivacyEngine
from saltflat.compat.opacus.grad_sample import (
    GradSampleHooksFastGradientClipping,
    GradSampleHooksFastGradientClippingTP,
    GradSampleModule,
    GradSampleModuleFastGradientClipping,
    GradSampleModuleFastGradientClippingTP,
)
from saltflat.compat.opacus.optimizers import DPOptimizerFastGradientClipping
from saltflat.compat.opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

X, Y = torch.linspace(-2, 2, 20).reshape(5, 4), torch.tensor([0, 1, 2, 0, 1])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def optimizer_of(model: nn.Module) -> DPOptimizerFastGradientClipping:
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return DPOptimizerFastGradientClipping(
        inner, noise_multiplier=0.0, max_grad_norm=0.3, expected_batch_size=5
    )


@pytest.mark.parametrize(
    "kind",
    [
        GradSampleModuleFastGradientClipping,
        GradSampleHooksFastGradientClipping,
        GradSampleModuleFastGradientClippingTP,
        GradSampleHooksFastGradientClippingTP,
    ],
)
def test_norms_are_shown_and_gradients_are_not(kind: Any) -> None:
    reference = GradSampleModule(network())
    nn.functional.cross_entropy(reference(X), Y).backward()
    model = network()
    wrapped = kind(model)
    called = wrapped if isinstance(wrapped, nn.Module) else model
    nn.functional.cross_entropy(called(X), Y).backward()
    for p, q in zip(model.parameters(), reference.parameters()):
        assert p.grad_sample is None
        torch.testing.assert_close(p._norm_sample, q.grad_sample.flatten(1).norm(dim=1))
    given = torch.ones(5, *p.shape)
    p.grad_sample = given  # what somebody assigned is shown
    assert p.grad_sample is given


def explicit() -> list[torch.Tensor]:
    """The mean of clipped gradients, from a backward pass for each example."""
    model = network()
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in zip(X, Y):
        loss = nn.functional.cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        factor = min(1.0, 0.3 / float(torch.cat([g.flatten() for g in grads]).norm()))
        total = [t + factor * g for t, g in zip(total, grads)]
    return [t / len(X) for t in total]


@pytest.mark.parametrize("mode", ["ghost", "ghost_tp"])
def test_a_model_that_is_not_wrapped_is_clipped_example_by_example(mode: str) -> None:
    """In Opacus ``ghost_tp`` clips at 1, whatever ``max_grad_norm`` says, and its step fails."""
    model = network()
    hooks, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=5), noise_multiplier=0.0, max_grad_norm=0.3,
        grad_sample_mode=mode, wrap_model=False,
    )  # fmt: skip
    criterion(model(X), Y).backward()
    assert hooks.max_grad_norm == 0.3
    assert (hooks.per_sample_gradient_norms > 0.3).any()
    assert model[0].weight.grad_sample is None
    loader.batch_sampler.drawn = 1  # so that the batch counts as drawn
    optimizer.step()
    for p, grad in zip(model.parameters(), explicit(), strict=True):
        torch.testing.assert_close(p.grad, grad)


def test_who_clips_by_hand_gets_the_same_step() -> None:
    """Two backward passes as in Opacus's own: norms after zero_grad(), then a sum of weighed losses, hooks off.

    With the second pass taken for a mean, its gradients are five times as long, and all are clipped.
    """
    by_loss = GradSampleModuleFastGradientClipping(network(), max_grad_norm=0.3)
    optimizer = optimizer_of(by_loss)
    DPLossFastGradientClipping(by_loss, optimizer, nn.CrossEntropyLoss())(by_loss(X), Y).backward()
    norms = by_loss.get_norm_sample()
    assert (norms > 0.3).any()
    optimizer.step()

    by_hand = GradSampleModuleFastGradientClipping(network(), max_grad_norm=0.3)
    optimizer = optimizer_of(by_hand)
    losses = nn.functional.cross_entropy(by_hand(X), Y, reduction="none")
    losses.mean().backward(retain_graph=True)
    optimizer.zero_grad()
    factors = by_hand.get_clipping_coef()
    by_hand.disable_hooks()
    (factors * losses).sum().backward()
    by_hand.enable_hooks()
    torch.testing.assert_close(by_hand.get_norm_sample(), norms)  # still those of the first pass
    optimizer.step()
    for p, q in zip(by_hand.parameters(), by_loss.parameters()):
        torch.testing.assert_close(p, q)


def test_weights_that_make_gradients_longer_are_clipped_all_the_same() -> None:
    """The second pass is clipped as any other: factors of a hundred move nothing further than the clip norm."""
    model = GradSampleModuleFastGradientClipping(network(), max_grad_norm=0.3)
    before = copy.deepcopy([p.detach() for p in model.parameters()])
    optimizer = optimizer_of(model)
    losses = nn.functional.cross_entropy(model(X), Y, reduction="none")
    losses.mean().backward(retain_graph=True)
    optimizer.zero_grad()
    model.disable_hooks()
    (100 * losses).sum().backward()
    model.enable_hooks()
    optimizer.step()
    moved = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before)]).norm()
    assert moved <= 0.1 * 0.3 * (1 + 1e-5)


def test_norms_end_with_the_batch() -> None:
    model = GradSampleModuleFastGradientClipping(network(), max_grad_norm=0.3)
    optimizer = optimizer_of(model)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    optimizer.zero_grad()
    assert all(p._norm_sample is None for p in model.parameters())
    plain = GradSampleModule(network())
    nn.functional.cross_entropy(plain(X), Y).backward()
    plain.zero_grad()
    assert all(p._norm_sample is None for p in plain.parameters())
