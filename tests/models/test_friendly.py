"""Conversion: what mixes examples is replaced, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from saltflat.errors import InputError
from saltflat.models import build, make_private_friendly


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def mixing_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Conv2d(48, 8, 3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
        nn.SELU(inplace=True),
        nn.Flatten(),
        nn.Linear(8 * 36, 64),
        nn.BatchNorm1d(64),
        nn.Dropout(0.0, inplace=True),
        nn.Linear(64, 5),
    )


def test_examples_are_mixed_before_and_not_after():
    model, inputs = mixing_model(), torch.rand(4, 3, 8, 8)
    changed = inputs.clone()
    changed[0] *= 9
    assert not torch.equal(copy.deepcopy(model)(inputs)[1:], copy.deepcopy(model)(changed)[1:])
    friendly = make_private_friendly(model)
    assert torch.equal(friendly(inputs)[1:], friendly(changed)[1:])
    buffers_before = {name: value.clone() for name, value in friendly.named_buffers()}
    friendly(changed)
    assert {name: value.tolist() for name, value in friendly.named_buffers()} == {
        name: value.tolist() for name, value in buffers_before.items()
    }


def test_the_model_passed_in_is_left_alone():
    model = mixing_model()
    kinds = [(name, type(module), getattr(module, "inplace", None)) for name, module in model.named_modules()]
    friendly = make_private_friendly(model)
    with torch.no_grad():
        for weight in friendly.parameters():
            weight.zero_()
    assert kinds == [(n, type(m), getattr(m, "inplace", None)) for n, m in model.named_modules()]
    assert model[0].weight.abs().sum() > 0
    assert model[1].weight.abs().sum() > 0


def test_only_norms_and_the_inplace_flags_change():
    model = mixing_model()
    friendly = make_private_friendly(model)
    changed = {
        name: type(module).__name__
        for (name, module), before in zip(friendly.named_modules(), model.modules())
        if type(module) is not type(before)
    }
    assert changed == {"1": "GroupNorm", "7": "GroupNorm"}
    assert not any(getattr(module, "inplace", False) for module in friendly.modules())
    assert friendly[2](torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    weights, before = dict(friendly.named_parameters()), dict(model.named_parameters())
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[name], before[name]) for name in weights)


@pytest.mark.parametrize(
    ("norm", "groups"),
    [
        (nn.BatchNorm2d(64), 32),
        (nn.BatchNorm2d(48), 24),
        (nn.BatchNorm2d(100), 25),
        (nn.BatchNorm2d(37), 1),
        (nn.BatchNorm2d(3), 3),
        (nn.BatchNorm3d(16), 16),
        (nn.SyncBatchNorm(96), 32),
        (nn.BatchNorm1d(1024), 32),
        (nn.BatchNorm1d(64), 4),
        (nn.BatchNorm1d(10), 1),
    ],
)
def test_groups_divide_the_channels(norm, groups):
    new = make_private_friendly(norm)
    assert type(new) is nn.GroupNorm
    assert (new.num_groups, new.num_channels) == (groups, norm.num_features)


@pytest.mark.parametrize("channels", [2, 10, 32, 64, 1000])
def test_flat_inputs_keep_their_information(channels):
    """N × C: one channel a group would give a constant, two a sign. Fails at 32 groups for all (tried)."""
    friendly = make_private_friendly(nn.BatchNorm1d(channels))
    outputs = friendly(torch.randn(50, channels))
    assert outputs.shape == (50, channels)
    assert outputs.var(dim=0).min() > 0.1
    if channels > 2:
        assert len(outputs.round(decimals=3).unique()) > 20


def test_affine_weights_are_kept_and_their_absence_too():
    norm = nn.BatchNorm2d(8, eps=0.125)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.bias.requires_grad_(False)
    new = make_private_friendly(norm)
    assert torch.equal(new.weight, norm.weight)
    assert torch.equal(new.bias, norm.bias)
    assert (new.weight.requires_grad, new.bias.requires_grad, new.eps) == (True, False, 0.125)
    bare = make_private_friendly(nn.BatchNorm2d(8, affine=False))
    assert not bare.affine
    assert list(bare.parameters()) == []


def test_training_mode_type_and_device_are_kept():
    model = nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(8).eval()).to("meta", torch.float64)
    first, second = make_private_friendly(model)
    assert (first.training, second.training) == (True, False)
    assert {(weight.device.type, weight.dtype) for weight in first.parameters()} == {("meta", torch.float64)}


def test_a_shared_norm_stays_shared():
    """Also under two names of one parent, which ``named_children`` would show once (tried)."""
    shared = nn.BatchNorm2d(8)
    friendly = make_private_friendly(nn.Sequential(shared, nn.ReLU(), shared, nn.Sequential(shared)))
    assert type(friendly[0]) is nn.GroupNorm
    assert friendly[0] is friendly[2] is friendly[3][0]


def test_tied_affine_weights_stay_tied():
    first, second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
    second.weight = first.weight
    friendly = make_private_friendly(nn.Sequential(first, second))
    assert friendly[0].weight is friendly[1].weight


def test_instance_norm_stops_tracking_and_keeps_its_weights():
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    nn.init.normal_(norm.weight)
    new, plain = make_private_friendly(norm).eval(), nn.InstanceNorm2d(4, affine=True).eval()
    plain.load_state_dict(new.state_dict())  # strict: no running statistics are left
    images = torch.rand(2, 4, 5, 5)
    assert torch.equal(new(images), plain(images))
    assert torch.equal(new.weight, norm.weight)


def test_friendly_models_are_copied_as_they_are():
    model = build("gn-resnet10")
    friendly = make_private_friendly(model)
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(friendly(images), model(images))
    assert repr(friendly) == repr(model)
    assert friendly.saltflat_spec == model.saltflat_spec


class NormWithActivation(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


class NormWithAnotherName(nn.BatchNorm2d):
    pass


def test_a_norm_that_does_more_is_refused_by_its_place():
    """A plain GroupNorm would drop its activation without a word."""
    with pytest.raises(InputError, match=r"model='1\.0' is a NormWithActivation with a forward of its own"):
        make_private_friendly(nn.Sequential(nn.ReLU(), nn.Sequential(NormWithActivation(8))))
    assert type(make_private_friendly(NormWithAnotherName(8))) is nn.GroupNorm


def test_norms_without_a_counterpart_are_refused():
    with pytest.raises(InputError, match="one channel"):
        make_private_friendly(nn.BatchNorm1d(1))
    with pytest.raises(InputError, match="Run one batch"):
        make_private_friendly(nn.Sequential(nn.LazyBatchNorm2d()))
