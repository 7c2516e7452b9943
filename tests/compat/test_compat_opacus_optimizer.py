"""The optimizer, and the models that an engine takes: what Opacus's own tests ask, and what its users found missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compat_helpers import assert_same, made_private, rows_for, train, weights
from torch import Tensor, nn

from saltflat.compat.opacus import GradSampleModule, ModuleValidator, PrivacyEngine
from saltflat.compat.opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from saltflat.compat.opacus.optimizers import DPOptimizer
from saltflat.compat.opacus.schedulers import ExponentialNoise, StepGradClip
from saltflat.compat.opacus.utils.module_utils import are_state_dict_equal
from saltflat.compat.opacus.validators import register_module_fixer
from saltflat.compat.opacus.validators.errors import ShouldReplaceModuleError, UnsupportedModuleError

pytestmark = pytest.mark.filterwarnings("ignore:poisson_sampling=False")
FIXED: dict[str, Any] = {"poisson_sampling": False}


def test_gradients_are_used_once() -> None:
    made = made_private(noise_multiplier=1.0, **FIXED)
    x, y = rows_for("linear", 8)
    made.optimizer.zero_grad()
    nn.CrossEntropyLoss()(made.module(x), y).backward()
    made.optimizer.step()
    with pytest.raises(ValueError, match="zero_grad"):
        made.optimizer.step()
    assert len(made.engine.accountant.history) <= 1


def test_poisson_sampling_refuses_accumulation() -> None:
    made = made_private()
    x, y = rows_for("linear", 8)
    nn.CrossEntropyLoss()(made.module(x), y).backward()
    with pytest.raises(ValueError, match="grad accumulation"):
        nn.CrossEntropyLoss()(made.module(x), y).backward()


def test_a_step_without_a_backward_pass_is_refused() -> None:
    made = made_private()
    with pytest.raises(ValueError, match="not initialized"):
        made.optimizer.step()


def test_schedulers_and_hooks() -> None:
    made = made_private(noise_multiplier=1.0, **FIXED)
    rates, seen = torch.optim.lr_scheduler.StepLR(made.optimizer, 1, gamma=0.5), []
    noise, clip = (
        ExponentialNoise(made.optimizer, gamma=2.0),
        StepGradClip(made.optimizer, step_size=1, gamma=0.5),
    )
    assert (noise.get_noise_multiplier(), clip.get_max_grad_norm()) == (1.0, 0.7)  # by Opacus's names
    made.optimizer.attach_step_hook(lambda optimizer: seen.append(optimizer.noise_multiplier))
    for _ in range(2):
        train(made)
        rates.step()
        noise.step()
        clip.step()
    assert made.optimizer.param_groups[0]["lr"] == pytest.approx(0.125)
    assert seen == [1.0] * 3 + [2.0] * 3
    assert made.optimizer.max_grad_norm == pytest.approx(0.7 / 4)
    assert made.engine.accountant.history == [(1.0, 1.0, 1), (2.0, 1.0, 1)]


def test_a_closure() -> None:
    made, reference = made_private(**FIXED), made_private(**FIXED)
    for x, y in made.loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            made.optimizer.zero_grad()
            loss = nn.CrossEntropyLoss()(made.module(x), y)
            loss.backward()
            return loss

        made.optimizer.step(closure)
    train(reference)
    assert_same(weights(made.module), weights(reference.module), atol=0, rtol=0)


def test_per_example_gradients_can_be_given() -> None:
    """As ``grad_sample_mode="no_op"`` is used: somebody else computes them."""
    layer = nn.Linear(3, 1, bias=False)
    optimizer = DPOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=1.0,
        expected_batch_size=2,
    )  # fmt: skip
    layer.weight.grad_sample = torch.tensor([[[3.0, 0.0, 4.0]], [[0.0, 0.5, 0.0]]])
    optimizer.step()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.3, 0.25, 0.4]]))


def test_a_wrapped_module_alone_leaves_both_gradients() -> None:
    x, y = rows_for("linear", 6)
    model = GradSampleModule(nn.Linear(5, 3))
    nn.CrossEntropyLoss()(model(x), y).backward()
    weight = model._module.weight
    torch.testing.assert_close(weight.grad_sample.mean(0), weight.grad)


@pytest.mark.parametrize("clipping", ["adaptive", "automatic"])
def test_other_clippings(clipping: str) -> None:
    more: dict[str, Any] = {}
    if clipping == "adaptive":
        more = {
            "target_unclipped_quantile": 0.0, "clipbound_learning_rate": 0.5, "max_clipbound": 10.0,
            "min_clipbound": 0.01, "unclipped_num_std": 1.0, "noise_multiplier": 0.5,
        }  # fmt: skip
    made = made_private(clipping=clipping, max_grad_norm=0.5, rows=64, batch_size=32, **more, **FIXED)
    train(made, epochs=4)
    if clipping == "adaptive":
        assert made.optimizer.max_grad_norm < 0.5
        assert made.optimizer.gradient_noise_multiplier() > 0.5
        with pytest.raises(ValueError, match="unclipped_num_std"):
            made_private(clipping=clipping, **more | {"noise_multiplier": 3.0})
    with pytest.raises(ValueError, match="Unsupported combination"):
        made_private(clipping="per_layer", max_grad_norm=[1.0] * 4, grad_sample_mode="ghost")


# --- validation -------------------------------------------------------------------------------------


def test_models_are_validated_and_fixed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    assert not ModuleValidator.is_valid(model)
    assert not PrivacyEngine().is_compatible(module=model)
    with pytest.raises(UnsupportedModuleError, match="statistics of the whole batch"):
        PrivacyEngine().validate(module=model)
    fixed = PrivacyEngine.get_compatible_module(model)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert fixed[2].inplace is False
    assert ModuleValidator.fix(model, num_groups=4)[1].num_groups == 4
    assert isinstance(ModuleValidator.fix(model, replace_bn_with_in=True)[1], nn.InstanceNorm2d)
    fixed.eval()
    assert not ModuleValidator.is_valid(fixed)
    assert isinstance(model[1], nn.BatchNorm2d), "the model that was passed in stays"


def test_validators_and_fixers_can_be_asked_and_replaced() -> None:
    """As in Opacus, tables by type of layer. Should fail when the own ones come first."""
    assert len(ModuleValidator.VALIDATORS[nn.BatchNorm1d](nn.BatchNorm1d(4))) == 1
    assert isinstance(ModuleValidator.FIXERS[nn.BatchNorm2d](nn.BatchNorm2d(4)), nn.GroupNorm)
    plain = nn.InstanceNorm1d(4, affine=True)
    assert ModuleValidator.FIXERS[nn.InstanceNorm1d](plain) is plain
    stored = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    fixed = ModuleValidator.FIXERS[nn.InstanceNorm1d](stored)
    assert not fixed.track_running_stats
    assert fixed.weight is stored.weight
    before = dict(ModuleValidator.FIXERS)
    try:
        register_module_fixer(nn.BatchNorm1d)(lambda layer, **_: nn.Identity())
        assert isinstance(ModuleValidator.fix(nn.Sequential(nn.BatchNorm1d(4)))[0], nn.Identity)
    finally:
        ModuleValidator.FIXERS.clear()
        ModuleValidator.FIXERS.update(before)


def test_a_norm_in_two_places_stays_one() -> None:
    norm = nn.BatchNorm2d(8)
    fixed = ModuleValidator.fix(nn.Sequential(norm, nn.ReLU(), norm))
    assert isinstance(fixed[0], nn.GroupNorm)
    assert fixed[0] is fixed[2]


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = nn.Linear(5, 3)
    with pytest.raises(ValueError, match="Module parameters are different"):
        made_private(
            model=lambda: nn.Linear(5, 3), optimizer=lambda _: torch.optim.SGD(model.parameters(), 0.1)
        )


def test_a_wrapped_module_with_other_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match="doesn't match"):
        made_private(model=lambda: GradSampleModule(nn.Linear(5, 3), loss_reduction="sum"))
    made = made_private(model=lambda: GradSampleModule(nn.Linear(5, 3)))
    train(made)
    with pytest.raises(ValueError, match="hooks twice"):
        GradSampleModule(made.plain._module)
    with pytest.raises(ValueError, match="Unexpected grad_sample_mode"):
        made_private(grad_sample_mode="magic")


@pytest.mark.parametrize(
    ("layer", "replacement"),
    [
        (nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), DPLSTM),
        (nn.GRU(3, 4, bias=False), DPGRU),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True), DPMultiheadAttention),
        (nn.MultiheadAttention(8, 2, bias=False, kdim=3, vdim=5), DPMultiheadAttention),
    ],
)
def test_layers_that_opacus_replaces_are_replaced_and_not_insisted_on(layer: Any, replacement: type) -> None:
    """Should fail when the validator says nothing, and when the engine refuses what it can compute."""
    found = ModuleValidator.validate(nn.Sequential(layer))
    assert [isinstance(fault, ShouldReplaceModuleError) for fault in found] == [True]
    with pytest.raises(UnsupportedModuleError, match=replacement.__name__):
        ModuleValidator.validate(nn.Sequential(layer), strict=True)
    assert PrivacyEngine().is_compatible(module=nn.Sequential(layer))
    fixed = ModuleValidator.FIXERS[type(layer)](layer)
    assert type(fixed) is replacement
    assert fixed.batch_first == layer.batch_first
    assert are_state_dict_equal(layer.state_dict(), fixed.state_dict())
    assert type(ModuleValidator.fix(nn.Sequential(layer))[0]) is replacement
    assert ModuleValidator.is_valid(ModuleValidator.fix(nn.Sequential(layer)))
