"""What Opacus's own tests ask of a privacy engine, and what its users found missing."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from compat_helpers import Attention, Recurrent, assert_same, made_private, rows_for, train, weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from saltflat.compat.opacus import GradSampleModule, PrivacyEngine
from saltflat.errors import InputError, RefusedError

pytestmark = pytest.mark.filterwarnings("ignore:poisson_sampling=False")
MODES = ["hooks", "ghost", "functorch", "ew"]
FIXED: dict[str, Any] = {"poisson_sampling": False}


def explicit(name: str, clip_norm: float, lr: float = 0.5) -> dict[str, Tensor]:
    """One clipped step on the first eight rows, gradient by gradient."""
    made = made_private(name=name, **FIXED)
    model = made.module.to_standard_module()
    x, y = rows_for(name)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(8):
        loss = nn.CrossEntropyLoss()(model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        length = torch.cat([g.flatten() for g in grads]).norm()
        for t, g in zip(total, grads):
            t += g * min(1.0, clip_norm / float(length))
    return {n: p.detach() - lr * t / 8 for (n, p), t in zip(model.named_parameters(), total)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["linear", "convolution", "tied"])
def test_without_noise_a_step_is_clipped_sgd(name: str, mode: str) -> None:
    made = made_private(name=name, max_grad_norm=0.05, grad_sample_mode=mode, **FIXED)
    train(made, steps=1)
    assert_same(weights(made.module), explicit(name, 0.05), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("name", "model"), [("linear", None), ("text", Attention), ("text", Recurrent)])
def test_a_huge_norm_and_no_noise_is_plain_training(name: str, model: Any) -> None:
    more = {} if model is None else {"model": model}
    made = made_private(name=name, max_grad_norm=1e20, **more, **FIXED)
    plain = copy.deepcopy(made.plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for x, y in made.loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(plain(x), y).backward()
        optimizer.step()
    train(made)
    assert_same(weights(made.module), weights(plain), atol=1e-6, rtol=1e-4)


@pytest.mark.statistical
@pytest.mark.parametrize("secure_mode", [False, True])
def test_the_noise_has_its_size(secure_mode: bool) -> None:
    """Zero gradients: what moves the weights is noise. 60,000 numbers: 2.5 % is more than eight deviations."""
    torch.manual_seed(0)
    made = made_private(
        model=lambda: nn.Linear(200, 300), data=(torch.zeros(40, 200), torch.zeros(40)), noise_multiplier=2.0,
        max_grad_norm=0.5, secure_mode=secure_mode, lr=1.0,
    )  # fmt: skip
    for p in made.module.parameters():
        p.data.zero_()
    x, _ = next(iter(made.loader))
    made.optimizer.zero_grad()
    (made.module(x) * 0.0).sum().backward()
    made.optimizer.step()
    noise = torch.cat([p.detach().flatten() for p in made.module.parameters()])
    assert noise.std().item() == pytest.approx(2.0 * 0.5 / made.optimizer.expected_batch_size, rel=0.025)
    assert abs(noise.mean().item()) < 6 * noise.std().item() / noise.numel() ** 0.5


def test_a_seed_repeats_a_run_and_two_runs_differ() -> None:
    def run(seed: int | None) -> dict[str, Tensor]:
        made = made_private(noise_multiplier=1.0)
        if seed is not None:
            torch.manual_seed(seed)
        train(made)
        return weights(made.module)

    assert_same(run(5), run(5), atol=0, rtol=0)
    assert not torch.equal(run(5)["0.weight"], run(6)["0.weight"])


def test_a_generator_for_the_noise() -> None:
    def run(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        made = made_private(noise_multiplier=1.0, noise_generator=generator, **FIXED)
        train(made)
        return weights(made.module)

    assert_same(run(1), run(1), atol=0, rtol=0)
    assert not torch.equal(run(1)["0.weight"], run(2)["0.weight"])
    with pytest.raises(ValueError, match="secure mode"):
        made_private(secure_mode=True, noise_generator=torch.Generator())


def test_secure_mode_ignores_seeds() -> None:
    def run() -> dict[str, Tensor]:
        made = made_private(noise_multiplier=1.0, secure_mode=True)
        torch.manual_seed(0)
        train(made)
        return weights(made.module)

    assert not torch.equal(run()["0.weight"], run()["0.weight"])


# --- the module -------------------------------------------------------------------------------------


def test_the_wrapped_module_looks_like_opacus() -> None:
    made = made_private(name="convolution")
    assert all(key.startswith("_module.") for key in made.module.state_dict())
    assert made.module._module is made.plain
    assert getattr(made.module, "0") is made.plain[0]
    with pytest.raises(AttributeError):
        _ = made.module.nothing
    again = made_private(name="convolution")
    again.module.load_state_dict(made.module.state_dict())
    standard = made.module.to_standard_module()
    assert standard is made.plain
    assert not any(hasattr(p, "grad_sample") for p in standard.parameters())
    assert all(type(p) is nn.Parameter for p in standard.parameters())


def test_evaluation_is_not_recorded() -> None:
    made = made_private(**FIXED)
    x, y = (rows[:8] for rows in rows_for("linear"))
    made.module.eval()
    made.module(x)
    made.module.train()
    with torch.no_grad():
        made.module(x)
    kept = made.module(x)  # a call in training mode whose loss nobody computes
    made.optimizer.zero_grad()
    nn.CrossEntropyLoss()(made.module(x), y).backward()
    made.optimizer.step()
    reference = made_private(**FIXED)
    train(reference, steps=1)
    assert_same(weights(made.module), weights(reference.module), atol=1e-6, rtol=1e-4)
    assert kept.shape == (8, 3)


def test_cleared_gradients_stay_cleared() -> None:
    """Also those of a pass that waits for another one. Should fail when these come back with the next call."""
    made = made_private()
    x, y = rows_for("linear", 8)
    kept = made.module(x)
    nn.CrossEntropyLoss()(made.module(x), y).backward()
    made.optimizer.zero_grad()
    nn.CrossEntropyLoss()(made.module(x), y).backward()
    assert made.optimizer.accumulated_iterations == 1
    assert kept.shape == (8, 3)


def test_the_model_may_stay_unwrapped() -> None:
    made = made_private(wrap_model=False, **FIXED)
    train(made, call=made.plain)
    reference = made_private(**FIXED)
    train(reference)
    assert_same(weights(made.plain), weights(reference.module), atol=1e-6, rtol=1e-5)
    copied = copy.deepcopy(made.plain)
    copied[0].weight.data.zero_()
    x, _ = rows_for("linear", 4)
    assert not torch.equal(copied(x), made.plain(x))
    made.module.cleanup()
    assert "forward" not in made.plain.__dict__
    assert not hasattr(made.plain[0].weight, "grad_sample")


def test_frozen_parameters_stay() -> None:
    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        made[0].requires_grad_(False)
        return made

    made = made_private(model=model, noise_multiplier=1.0)
    before = weights(made.module)
    train(made)
    after = weights(made.module)
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])
    assert not hasattr(made.plain[0].weight, "grad_sample")


def test_an_optimizer_over_a_part_clips_that_part() -> None:
    """Should fail when the norm is taken over all trainable parameters."""
    made = made_private(
        model=lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), max_grad_norm=0.1,
        optimizer=lambda p: torch.optim.SGD(list(p)[2:], lr=1.0), rows=1, batch_size=1, **FIXED,
    )  # fmt: skip
    before = weights(made.module)
    train(made)
    after = weights(made.module)
    moved = torch.cat([(after[n] - before[n]).flatten() for n in ("2.weight", "2.bias")])
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-4)


def test_a_parameter_that_is_not_used_gets_noise_alone() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(5, 3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    made = made_private(model=Idle, noise_multiplier=1.0)
    before = weights(made.module)
    with pytest.warns(UserWarning, match=r"idle\.weight, idle\.bias"):
        train(made, steps=1)
    assert (weights(made.module)["idle.weight"] != before["idle.weight"]).all()


def test_models_that_mix_examples_are_refused() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x - x.mean(0))

    made = made_private(model=Centred)
    with pytest.raises(RefusedError, match="examples mix"):
        train(made)


def test_a_bad_row_hurts_nobody() -> None:
    x, y = rows_for("linear", 8)
    x[3] = float("nan")
    made = made_private(data=(x, y), rows=8, **FIXED)
    train(made)
    assert all(torch.isfinite(p).all() for p in made.module.parameters())


def test_batches_in_the_second_dimension() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRU(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:  # time x batch x features
            return self.out(self.cell(x)[0][-1])

    torch.manual_seed(0)
    steps, labels = torch.randn(6, 5, 3), torch.randint(0, 2, (6,))
    first = GradSampleModule(Steps(), batch_first=False)
    nn.CrossEntropyLoss()(first(steps.movedim(0, 1)), labels).backward()
    for p in first.parameters():
        assert p.grad_sample.shape == (6, *p.shape)
        torch.testing.assert_close(p.grad_sample.mean(0), p.grad, atol=1e-6, rtol=1e-4)
    one = copy.deepcopy(first._module)
    nn.CrossEntropyLoss()(one(steps[2:3].movedim(0, 1)), labels[2:3]).backward()
    for p, alone in zip(first.parameters(), one.parameters()):
        torch.testing.assert_close(p.grad_sample[2], alone.grad, atol=1e-6, rtol=1e-4)


def test_dropout_is_drawn_once() -> None:
    """The gradients that are read later are those of the same draw. Should fail when they are drawn anew."""
    made = made_private(
        model=lambda: nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 3)),
        max_grad_norm=1e9,
        **FIXED,
    )
    train(made, steps=1)
    for p in made.module.parameters():
        torch.testing.assert_close(p.grad_sample.sum(0) / 8, p.grad, atol=1e-6, rtol=1e-4)


def test_outputs_may_be_dicts_with_a_loss() -> None:
    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.layer(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    x, y = rows_for("linear", 8)
    model = GradSampleModule(Speaker())
    model(x=x, labels=y)["loss"].backward()
    plain = GradSampleModule(copy.deepcopy(model._module.layer))
    nn.CrossEntropyLoss()(plain(x), y).backward()
    torch.testing.assert_close(model._module.layer.weight.grad_sample, plain._module.weight.grad_sample)


def test_no_warning_in_the_usual_loop() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = made_private(noise_multiplier=1.0)
        train(made, epochs=2)
    assert [str(each.message) for each in told] == []
    assert made.engine.accountant.history == [(1.0, 1 / 3, 6)]


@pytest.mark.parametrize("change", [{"max_grad_norm": -1.0}, {"max_grad_norm": [1.0, 0.0]}, {"epochs": 0}])
def test_what_would_promise_nothing_is_refused(change: dict[str, Any]) -> None:
    """Fails when the noise of no step is calibrated to a budget (tried: ε was 1,871 where 3 was asked for)."""
    model, rows = nn.Linear(4, 3), TensorDataset(torch.randn(32, 4), torch.zeros(32, dtype=torch.long))
    asked: dict[str, Any] = {"epochs": 1, "max_grad_norm": 1.0} | change
    with pytest.raises(InputError, match=next(iter(change))):
        PrivacyEngine().make_private_with_epsilon(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(rows, batch_size=8), target_epsilon=3.0, target_delta=1e-3, **asked,
        )  # fmt: skip
