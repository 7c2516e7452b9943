"""The registry: every model is what its description says, and a run folder can rebuild it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from saltflat import models
from saltflat.errors import InputError

PAPERS = {
    "centred-linear": 43_669,
    "cnn-selu": 550_570,
    "cnn-tanh": 550_570,
    "dpnas-cifar": 529_434,
    "dpnas-fmnist": 214_570,
    "dpnas-mnist": 213_418,
    "fed-cnn": 608_702,
    "gn-resnet10": 4_902_090,
    "linear": 256,
    "logistic": 7_850,
    "mlp": 4_810,
    "resnet18-gn": 11_173_962,
    "scatter-cnn": 33_066,
    "scatter-linear": 39_700,
    "vit-tiny": 2_693_578,
    "wrn-16-4": 2_753_818,
}


def count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_the_names_are_those_of_the_table():
    assert models.names() == sorted(PAPERS)


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_parameter_counts_are_the_papers(name):
    """Fails when a convolution gains a bias or a GroupNorm its affine weights (tried in ``dpnas``)."""
    assert count(models.build(name)) == PAPERS[name] == models.describe(name).parameters


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("fed-cnn", {"image_size": 32, "classes": 62}, 903_614),
        ("scatter-linear", {"in_channels": 3, "image_size": 32}, 155_530),
        ("scatter-cnn", {"in_channels": 3, "image_size": 32}, 187_210),
        ("wrn-16-4", {"variant": "public-data"}, 2_749_306),
    ],
)
def test_parameter_counts_of_the_papers_other_settings(name, overrides, expected):
    assert count(models.build(name, **overrides)) == expected


def test_the_public_data_variant_has_neither_gain_nor_bias_in_its_convolutions():
    """2.74 M in the paper: the difference is exactly a gain and a bias for each of 2,256 kernels."""
    standard, public = models.build("wrn-16-4"), models.build("wrn-16-4", variant="public-data")
    assert count(standard) - count(public) == 2 * 2_256


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_a_model_is_rebuilt_from_its_spec(name):
    """A spec survives JSON, and the rebuilt model takes the weights of the first."""
    first = models.build(name, **({"outputs": 3} if name == "linear" else {"classes": 3}))
    spec = json.loads(json.dumps(first.saltflat_spec))
    second = models.build(spec["name"], **spec["overrides"])
    second.load_state_dict(first.state_dict())
    inputs = torch.rand(2, *models.describe(name).input_shape)
    for one, other in zip(first(inputs), second(inputs)):
        assert torch.equal(one, other)


def test_the_spec_does_not_share_the_callers_dictionary():
    overrides = {"classes": 3}
    model = models.build("mlp", **overrides)
    overrides["classes"] = 5
    assert model.saltflat_spec == {"name": "mlp", "overrides": {"classes": 3}}


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(
        InputError, match=r"name='dpnas-cifra' is not a model(.|\n)*Did you mean 'dpnas-cifar'"
    ):
        models.build("dpnas-cifra")
    with pytest.raises(InputError, match="Known: centred-linear, cnn-selu, "):
        models.describe("")


def test_an_unknown_override_names_the_known_ones():
    with pytest.raises(InputError, match="clases=3 is not an override of mlp") as caught:
        models.build("mlp", clases=3)
    assert "Did you mean 'classes'? Known: in_features, hidden, classes." in str(caught.value)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("mlp", {"hidden": 0}),
        ("cnn-selu", {"classes": 2.5}),
        ("cnn-selu", {"image_size": 7}),
        ("dpnas-mnist", {"image_size": 4}),
        ("fed-cnn", {"image_size": 15}),
        ("gn-resnet10", {"in_channels": -1}),
        ("scatter-cnn", {"in_channels": 3, "image_size": 4}),
        ("vit-tiny", {"patch": 5}),
        ("vit-tiny", {"heads": 5}),
        ("wrn-16-4", {"variant": "de-at-al"}),
        ("dpnas-cifar", {"normalisation": "cifr"}),
        ("dpnas-mnist", {"normalisation": "cifar"}),
    ],
)
def test_bad_overrides_are_refused_by_name(name, overrides):
    with pytest.raises(InputError) as caught:
        models.build(name, **overrides)
    assert caught.value.argument in overrides


@pytest.mark.parametrize(
    ("name", "overrides", "shape"),
    [
        ("cnn-selu", {"image_size": 8}, (3, 8, 8)),
        ("fed-cnn", {"image_size": 16}, (1, 16, 16)),
        ("dpnas-fmnist", {"image_size": 8, "in_channels": 2}, (2, 8, 8)),
        ("scatter-linear", {"image_size": 30}, (81, 7, 7)),
        ("scatter-cnn", {"image_size": 32}, (81, 8, 8)),
        ("vit-tiny", {"image_size": 8, "depth": 1, "in_channels": 1}, (1, 8, 8)),
        ("resnet18-gn", {"in_channels": 1}, (1, 20, 20)),
        ("logistic", {"in_features": 12}, (3, 2, 2)),
    ],
)
def test_sizes_follow_the_input(name, overrides, shape):
    assert models.build(name, classes=4, **overrides)(torch.rand(2, *shape)).shape == (2, 4)


def test_one_line_registers_a_model_and_a_name_only_once():
    @models.register("tests-own", "a test's", input_shape=(2,), parameters=3, paper="none")
    def own(*, outputs: int = 1) -> nn.Module:
        return nn.Linear(2, outputs)

    try:
        assert models.describe("tests-own").overrides == ("outputs",)
        assert models.build("tests-own", outputs=2)(torch.zeros(1, 2)).shape == (1, 2)
        with pytest.raises(InputError, match="registered already"):
            models.register("tests-own", "", input_shape=(2,), parameters=3, paper="none")
    finally:
        models.unregister("tests-own")
    assert "tests-own" not in models.names()
