"""What private training needs of every model, and what the papers say of some."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saltflat import models
from saltflat.models.dpnas import CIFAR_CELL, FMNIST_CELL, MNIST_CELL, Cell
from saltflat.models.layers import NORMALISATIONS, Normalise, WeightStandardisedConv2d
from saltflat.models.wide_resnet import WideBlock

NAMES = models.names()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def inputs_for(name: str, rows: int) -> torch.Tensor:
    return torch.rand(rows, *models.describe(name).input_shape)


class Joined(nn.Module):
    """A model that returns several tensors, with weights that are not zero, as one that returns a single one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for weight in model.parameters():
            nn.init.normal_(weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.model(inputs), 1)


def built(name: str) -> nn.Module:
    model = models.build(name)
    return Joined(model) if name == "centred-linear" else model


@pytest.mark.parametrize("name", NAMES)
def test_no_row_depends_on_another(name):
    """In training mode. Fails with a BatchNorm anywhere (tried in ``resnets``)."""
    model, inputs = built(name).train(), inputs_for(name, 3)
    changed = inputs.clone()
    changed[0] = torch.rand_like(inputs[0]) * 5
    before, after = model(inputs), model(changed)
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[0], after[0])
    assert torch.allclose(model(inputs[1:2]), before[1:2], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_used_and_nothing_works_in_place(name):
    model, inputs = built(name), inputs_for(name, 2)
    kept = inputs.clone()
    model(inputs).square().sum().backward()
    assert torch.equal(inputs, kept)
    unused = [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert unused == []
    assert not any(getattr(module, "inplace", False) for module in model.modules())


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_gives_no_rows(name):
    model = built(name)
    assert model(inputs_for(name, 0)).shape == (0, *model(inputs_for(name, 1)).shape[1:])


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_parameters_alone(name):
    """Constants of the architecture are not saved, so that weights fit any choice of them."""
    model = built(name)
    assert set(model.state_dict()) == {key for key, _ in model.named_parameters()}


def test_curvature_of_the_transformer_exists():
    """Hessian-vector products. Fails with torch's fused attention (tried)."""
    model = models.build("vit-tiny", depth=1, image_size=8)
    weights = list(model.parameters())
    loss = model(torch.rand(2, 3, 8, 8)).square().sum()
    slopes = torch.autograd.grad(loss, weights, create_graph=True)
    bends = torch.autograd.grad(sum(slope.square().sum() for slope in slopes), weights)
    assert all(bend.isfinite().all() for bend in bends)


def test_attention_is_torchs():
    ours = models.build("vit-tiny", depth=1).blocks[0].attend[1]
    theirs = nn.MultiheadAttention(192, 3, batch_first=True)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = (
        ours.query_key_value.weight,
        ours.query_key_value.bias,
    )
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    tokens = torch.randn(2, 7, 192)
    assert torch.allclose(ours(tokens), theirs(tokens, tokens, tokens)[0], atol=1e-5)


def test_the_transformer_knows_where_a_patch_is():
    """Fails without positions, when the class token sees the patches as a set."""
    model, images = models.build("vit-tiny", depth=2, image_size=8), torch.rand(1, 3, 8, 8)
    assert not torch.allclose(model(images), model(images.roll(4, dims=-1)), atol=1e-5)


# -- normalisation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constants", "mean", "std"),
    [
        ("cifar", [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
        ("svhn", [0.4377, 0.4438, 0.4728], [0.198, 0.201, 0.197]),
        ("mnist", [0.1307], [0.3081]),
        ("none", [0.0], [1.0]),
    ],
)
def test_constants_are_the_published_ones(constants, mean, std):
    images = torch.rand(2, len(mean), 4, 4)
    by_hand = torch.stack([(images[:, c] - mean[c]) / std[c] for c in range(len(mean))], dim=1)
    assert torch.allclose(Normalise(constants, len(mean))(images), by_hand)
    assert set(NORMALISATIONS) == {"cifar", "svhn", "mnist", "none"}


@pytest.mark.parametrize(("channels", "constants"), [(1, "mnist"), (3, "cifar"), (2, "none"), (4, "none")])
def test_constants_are_chosen_by_the_channels(channels, constants):
    assert Normalise("auto", channels).constants == constants


def test_normalisation_stands_inside_the_model():
    """The same weights with other constants see other images; normalised by hand, the same ones."""
    inside, outside = (models.build("cnn-tanh", normalisation=constants) for constants in ("svhn", "none"))
    outside.load_state_dict(inside.state_dict())
    images = torch.rand(2, 3, 32, 32)
    assert torch.allclose(inside(images), outside(Normalise("svhn", 3)(images)), atol=1e-5)
    assert not torch.allclose(inside(images), outside(images), atol=1e-3)


# -- plain networks ----------------------------------------------------------------------------------


def layers(model: nn.Sequential) -> str:
    """The layers in order: convolutions by their channels, linear layers by their units, others by name."""
    words = []
    for module in model:
        if isinstance(module, nn.Conv2d):
            words.append(f"{module.kernel_size[0]}x{module.kernel_size[1]}:{module.out_channels}")
        elif isinstance(module, nn.Linear):
            words.append(str(module.out_features))
        else:
            words.append({"MaxPool2d": "pool"}.get(type(module).__name__, type(module).__name__.lower()))
    return " ".join(words)


CNN = (
    "normalise 3x3:32 {0} 3x3:32 {0} pool 3x3:64 {0} 3x3:64 {0} pool "
    "3x3:128 {0} 3x3:128 {0} pool flatten 128 {0} 10"
)


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("cnn-selu", {}, CNN.format("selu")),
        ("cnn-tanh", {}, CNN.format("tanh")),
        ("fed-cnn", {}, "normalise 5x5:32 pool relu 5x5:64 pool relu flatten 512 relu 62"),
        ("mlp", {}, "flatten 64 tanh 10"),
        ("logistic", {}, "flatten 10"),
        ("linear", {}, "flatten 1"),
        ("scatter-linear", {}, "groupnorm flatten 10"),
        ("scatter-cnn", {}, "groupnorm 3x3:16 tanh 3x3:32 tanh flatten 32 tanh 10"),
        ("scatter-cnn", {"in_channels": 3}, "groupnorm 3x3:64 tanh pool 3x3:64 tanh flatten 10"),
    ],
)
def test_layers_are_the_papers(name, overrides, expected):
    assert layers(models.build(name, **overrides)) == expected


@pytest.mark.parametrize(
    ("name", "stem", "head"),
    [("dpnas-cifar", 48, "selu"), ("dpnas-mnist", 32, "tanh"), ("dpnas-fmnist", 32, "tanh")],
)
def test_dpnas_networks_are_three_cells_between_a_stem_and_a_head(name, stem, head):
    expected = f"normalise 3x3:{stem} groupnorm {'cell pool ' * 3}1x1:128 groupnorm flatten 128 {head} 10"
    assert layers(models.build(name)) == expected


# -- DPNASNet ----------------------------------------------------------------------------------------


def test_nodes_sum_their_edges_and_the_output_leaves_out_node_0():
    cell = Cell((("id",), ("id", "id"), ("zero", "zero", "id")), in_channels=8, channels=8)
    x = torch.randn(2, 8, 4, 4)
    node0 = cell.project(x)
    assert torch.allclose(cell(x), torch.cat([node0, 2 * node0, 2 * node0], dim=1))


def test_an_edge_is_a_depthwise_convolution_a_norm_and_an_activation():
    cell = Cell((("tanh",), ("max", "zero")), in_channels=8, channels=16)
    x = torch.randn(2, 8, 5, 5)
    node0 = F.group_norm(F.conv2d(x, cell.project[0].weight), 8)
    kernel = cell.nodes[0]["0"][0].weight
    assert kernel.shape == (16, 1, 3, 3)
    tanh = F.group_norm(F.conv2d(node0, kernel, padding=1, groups=16), 8).tanh()
    pooled = F.max_pool2d(node0, 3, stride=1, padding=1)
    assert torch.allclose(cell(x), torch.cat([tanh, pooled], dim=1), atol=1e-6)


# Into node; the edges from nodes 0, 1, ... in the networks for CIFAR, MNIST, Fashion-MNIST.
EDGES = """
1 | SELU                        | SELU                      | id
2 | max, SELU                   | Tanh, id                  | zero, SELU
3 | Tanh, max, zero             | zero, SELU, ReLU          | ReLU, SELU, id
4 | SELU, zero, zero, id        | zero, Tanh, zero, id      | zero, zero, Tanh, id
5 | SELU, SELU, Tanh, max, Tanh | max, zero, max, max, ReLU | SELU, Tanh, max, ReLU, max
"""


@pytest.mark.parametrize(("column", "table"), [(1, CIFAR_CELL), (2, MNIST_CELL), (3, FMNIST_CELL)])
def test_cells_have_the_papers_edges(column, table):
    """What is built, not what is written: an edge is known by its modules."""
    cell = Cell(table, in_channels=8, channels=8)
    for row in EDGES.strip().splitlines():
        cells = row.split("|")
        edges = cell.nodes[int(cells[0]) - 1]
        for source, kind in enumerate(cells[column].split(",")):
            if kind.strip() == "zero":
                assert str(source) not in edges
            else:
                last = list(edges[str(source)].modules())[-1]
                assert type(last).__name__ == {"max": "MaxPool2d", "id": "Identity"}.get(
                    kind.strip(), kind.strip()
                )
        assert len(edges) == len([kind for kind in cells[column].split(",") if kind.strip() != "zero"])


@pytest.mark.parametrize("name", ["dpnas-cifar", "dpnas-mnist", "dpnas-fmnist"])
def test_convolutions_start_with_variance_two_over_k_squared_channels_out(name):
    model = models.build(name)
    scaled = [
        module.weight.detach().flatten() * math.sqrt(module.kernel_size[0] ** 2 * module.out_channels / 2)
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    ]
    assert abs(torch.cat(scaled).std().item() - 1) < 0.02  # over 60,000 draws: seven standard errors
    assert all(0.8 < kernel.std().item() < 1.2 for kernel in scaled)  # depthwise ones have 288 draws or more
    assert all(not m.affine and m.num_groups == 8 for m in model.modules() if isinstance(m, nn.GroupNorm))


# -- residual networks -------------------------------------------------------------------------------


def test_scaled_standardisation_is_the_formula():
    conv = WeightStandardisedConv2d(3, 4, kernel_size=3, stride=2)
    for weight in conv.parameters():
        nn.init.normal_(weight)
    x = torch.randn(2, 3, 7, 7)
    kernels = []
    for kernel, gain in zip(conv.weight, conv.gain):
        mean = kernel.sum() / 27
        variance = (kernel - mean).square().sum() / 27
        kernels.append((kernel - mean) * gain / math.sqrt(max(variance.item() * 27, 1e-4)))
    assert torch.allclose(
        conv(x), F.conv2d(x, torch.stack(kernels), conv.bias, stride=2, padding=1), atol=1e-5
    )


def test_plain_standardisation_is_the_formula_and_forgets_scale_and_shift():
    conv = WeightStandardisedConv2d(3, 4, kernel_size=1, standardisation="plain")
    x = torch.randn(2, 3, 5, 5)
    kernels = torch.stack([(kernel - kernel.mean()) / (kernel.std() + 1e-5) for kernel in conv.weight])
    assert torch.allclose(conv(x), F.conv2d(x, kernels), atol=1e-6)
    moved = copy.deepcopy(conv)
    moved.weight.data = conv.weight.data * 7 + 2
    assert torch.allclose(conv(x), moved(x), atol=1e-3)


def test_constant_kernels_stay_finite():
    """Fails without the floor under the variance."""
    conv = WeightStandardisedConv2d(3, 4, kernel_size=3)
    nn.init.constant_(conv.weight, 0.5)
    conv(torch.rand(1, 3, 5, 5)).sum().backward()
    assert conv.weight.grad.isfinite().all()


def test_the_two_wide_networks_differ_in_the_order_of_norm_and_activation():
    kinds = {
        variant: [type(m) for m in WideBlock(16, 16, stride=1, first=False, variant=variant).residual[:2]]
        for variant in ("de-et-al", "public-data")
    }
    assert kinds == {"de-et-al": [nn.ReLU, nn.GroupNorm], "public-data": [nn.GroupNorm, nn.ReLU]}


def test_resolution_falls_by_eight_in_resnets_and_by_four_in_the_wide_one():
    for name, factor in (("gn-resnet10", 8), ("resnet18-gn", 8), ("wrn-16-4", 4)):
        model = models.build(name, in_channels=1)
        sizes = []
        pool = next(module for module in model if isinstance(module, nn.AdaptiveAvgPool2d))
        pool.register_forward_pre_hook(lambda _, inputs, seen=sizes: seen.append(inputs[0].shape[-1]))
        model(torch.rand(1, 1, 32, 32))
        assert sizes == [32 // factor]


def test_features_are_normed_in_27_groups_without_weights():
    """So a head does not change when a group of three maps is scaled, and does when one of them is."""
    for name in ("scatter-linear", "scatter-cnn"):
        model, features = models.build(name), inputs_for(name, 2)
        scaled = features.clone()
        scaled[:, 3:6] *= 10
        assert torch.allclose(model(features), model(scaled), atol=1e-4)
        features[:, 3] *= 10
        assert not torch.allclose(model(features), model(scaled), atol=1e-2)
