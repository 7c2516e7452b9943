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


def iterates(made: Any, epochs: int) -> list[dict[str, Tensor]]:
    """The weights after each step."""
    found = []
    for _ in range(3 * epochs):
        train(made, steps=1)
        found.append(weights(made.module))
    return found


def test_ema_is_that_of_a_plan_and_leaves_training_alone() -> None:
    plain, averaged = (made_private(method=m, rho=0.3, **FIXED) for m in ("dp-sat", "dp-sat+ema"))
    assert averaged.engine.average is None
    train(plain, epochs=2)
    train(averaged, epochs=2)
    assert_same(weights(averaged.module), weights(plain.module), atol=0, rtol=0)
    assert averaged.engine.accountant.history == plain.engine.accountant.history
    assert plain.engine.average is None
    steps = iterates(made_private(method="dp-sat+ema", rho=0.3, **FIXED), 1)
    expected = steps[0]["0.weight"]
    for count, step in enumerate(steps[1:], start=2):
        decay = min(0.99, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * step["0.weight"]
    again = made_private(method="dp-sat+ema", rho=0.3, **FIXED)
    iterates(again, 1)
    torch.testing.assert_close(again.engine.average["0.weight"], expected)


def test_swa_is_the_mean_of_the_last_part() -> None:
    made = made_private(method="sai+swa", steps=6, switch=2, **FIXED)
    steps = iterates(made, 2)
    mean = torch.stack([step["0.weight"] for step in steps[4:]]).mean(0)  # seven tenths of six are four
    torch.testing.assert_close(made.engine.average["0.weight"], mean)
    made.plain.load_state_dict({**made.plain.state_dict(), **made.engine.average})
    with pytest.raises(InputError, match="swa begins at a fraction"):
        made_private(method="dp-sgd+swa", **FIXED)


def test_an_average_can_be_loaded_where_weights_are_tied() -> None:
    """Failed when a weight with two names was averaged under one of them."""
    made = made_private(name="tied", method="dp-sgd+ema", **FIXED)
    train(made, epochs=2)
    made.plain.load_state_dict({**made.plain.state_dict(), **made.engine.average})
    torch.testing.assert_close(made.plain.table.weight.detach(), made.engine.average["table.weight"])


def test_parts_of_a_batch_are_one_step_of_the_average() -> None:
    whole, parts = (made_private(method="dp-sgd+ema", **FIXED) for _ in range(2))
    train(whole, epochs=2)
    with BatchMemoryManager(
        data_loader=parts.loader, max_physical_batch_size=3, optimizer=parts.optimizer
    ) as loader:
        train(parts, epochs=2, loader=loader)
    assert_same(parts.engine.average, whole.engine.average, atol=2e-6, rtol=1e-4)


def test_other_suffixes_are_refused() -> None:
    for method in ("dp-sgd+adam", "dp-sat+ema+swa", "sai+"):
        with pytest.raises(InputError, match=r"\+ema, \+swa, or none(.|\n)*optimizer itself"):
            made_private(method=method)
    with pytest.raises(InputError, match="Did you mean 'dp-sat'"):
        made_private(method="dp-sta+ema")


def test_bad_methods() -> None:
    with pytest.raises(InputError, match="Did you mean 'dp-sat'"):
        made_private(method="dp-sta")
    with pytest.raises(InputError, match="steps"):
        made_private(method="sai")
    with pytest.raises(InputError, match="rho"):
        made_private(method="dp-sat", rho=-1.0)
    with pytest.raises(InputError, match="all trainable parameters"):
        made_private(method="dp-sat", optimizer=lambda p: torch.optim.SGD(list(p)[2:], lr=0.1))
