"""Flat minima in the usual loop: the gradient at displaced weights, the step at the weights themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compat_helpers import assert_same, made_private, rows_for, train, weights
from torch import Tensor, nn

from saltflat.compat.opacus import BatchMemoryManager
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:poisson_sampling=False")
FIXED: dict[str, Any] = {"poisson_sampling": False}


def by_hand(name: str, rho: float, clip_norm: float, steps: int, searching: int) -> dict[str, Tensor]:
    """DP-SAT without noise, as its paper writes it, on saltflat's own clipped sum."""
    model = made_private(name=name, **FIXED).module.to_standard_module()
    x, y = rows_for(name)
    loss, previous = nn.CrossEntropyLoss(reduction="none"), None
    for step in range(steps):
        part = slice(8 * step % 24, 8 * step % 24 + 8)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        if previous is not None and step < searching:
            length = torch.sqrt(sum((g.double() ** 2).sum() for g in previous.values()))
            for n, p in model.named_parameters():
                p.data += rho * previous[n] / float(length)
        total = clipped_sum(model, loss, x[part], y[part], clip_norm)
        previous = {n: g / 8 for n, g in total.grads.items()}
        for n, p in model.named_parameters():
            p.data = before[n] - 0.5 * previous[n]
    return weights(model)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", ["linear", "convolution", "tied"])
def test_dp_sat(name: str, mode: str) -> None:
    """Should fail when the weights are left displaced, or when the gradient is taken at them."""
    made = made_private(name=name, method="dp-sat", rho=0.3, grad_sample_mode=mode, **FIXED)
    train(made, epochs=2)
    assert_same(weights(made.module), by_hand(name, 0.3, 0.7, 6, 6), atol=2e-6, rtol=1e-4)


def test_without_rho_it_is_dp_sgd_bit_for_bit() -> None:
    plain, still = made_private(**FIXED), made_private(method="dp-sat", rho=0.0, **FIXED)
    train(plain, epochs=2)
    train(still, epochs=2)
    assert_same(weights(plain.module), weights(still.module), atol=0, rtol=0)


def test_parts_of_a_batch_see_the_same_weights() -> None:
    whole, parts = (made_private(method="dp-sat", rho=0.3, **FIXED) for _ in range(2))
    train(whole, epochs=2)
    with BatchMemoryManager(
        data_loader=parts.loader, max_physical_batch_size=3, optimizer=parts.optimizer
    ) as loader:
        train(parts, epochs=2, loader=loader)
    assert_same(weights(parts.module), weights(whole.module), atol=2e-6, rtol=1e-4)


def test_evaluation_sees_the_weights_themselves() -> None:
    made = made_private(method="dp-sat", rho=5.0, **FIXED)
    train(made)
    x, _ = rows_for("linear", 4)
    kept = weights(made.module)
    made.module.eval()
    torch.testing.assert_close(made.module(x), torch.func.functional_call(made.plain, kept, x))
    made.module.train()
    assert not torch.allclose(made.module(x), torch.func.functional_call(made.plain, kept, x))
    assert_same(weights(made.module), kept, atol=0, rtol=0)


def test_sai_has_two_phases_in_one_budget() -> None:
    made = made_private(
        target_epsilon=3.0, target_delta=1e-3, epochs=4, method="sai", switch=0.25, noise_ratio=2.0
    )
    train(made, epochs=4)
    (first, rate, early), (second, other, late) = made.engine.accountant.history
    assert (early, late) == (3, 9)
    assert second == pytest.approx(2 * first)
    assert rate == other == 1 / 3
    assert 2.97 <= made.engine.get_epsilon(1e-3) <= 3.0


def test_sai_without_noise_is_its_paper() -> None:
    made = made_private(method="sai", rho=0.3, steps=6, switch=4, **FIXED)
    train(made, epochs=2)
    assert_same(weights(made.module), by_hand("linear", 0.3, 0.7, 6, 4), atol=2e-6, rtol=1e-4)


def test_the_ascent_costs_nothing() -> None:
    plain, flat = (made_private(noise_multiplier=1.0, method=m) for m in ("dp-sgd", "dp-sat"))
    train(plain)
    train(flat)
    assert plain.engine.accountant.history == flat.engine.accountant.history


def test_bad_methods() -> None:
    with pytest.raises(InputError, match="Did you mean 'dp-sat'"):
        made_private(method="dp-sta")
    with pytest.raises(InputError, match="steps"):
        made_private(method="sai")
    with pytest.raises(InputError, match="rho"):
        made_private(method="dp-sat", rho=-1.0)
    with pytest.raises(InputError, match="all trainable parameters"):
        made_private(method="dp-sat", optimizer=lambda p: torch.optim.SGD(list(p)[2:], lr=0.1))
