"""DPNASNet: cells found by an architecture search under DP-SGD (Cheng et al., AAAI 2022).

A cell is data, a triangular table: row t holds the edges into node t from nodes 0, 1, ..., t - 1.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from saltflat.models.layers import Normalise, initialise_convolutions
from saltflat.models.registry import check_counts, check_image_size, register

Table = tuple[tuple[str, ...], ...]

# from node: 0       1       2       3       4
CIFAR_CELL: Table = (
    ("selu",),
    ("max", "selu"),
    ("tanh", "max", "zero"),
    ("selu", "zero", "zero", "id"),
    ("selu", "selu", "tanh", "max", "tanh"),
)
MNIST_CELL: Table = (
    ("selu",),
    ("tanh", "id"),
    ("zero", "selu", "relu"),
    ("zero", "tanh", "zero", "id"),
    ("max", "zero", "max", "max", "relu"),
)
FMNIST_CELL: Table = (
    ("id",),
    ("zero", "selu"),
    ("relu", "selu", "id"),
    ("zero", "zero", "tanh", "id"),
    ("selu", "tanh", "max", "relu", "max"),
)

ACTIVATIONS: dict[str, type[nn.Module]] = {"selu": nn.SELU, "tanh": nn.Tanh, "relu": nn.ReLU}
PAPER = (
    "Cheng et al., DPNAS: Neural Architecture Search for Deep Learning with Differential Privacy, AAAI 2022"
)


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels, affine=False)


def _edge(kind: str, channels: int) -> nn.Module:
    if kind == "id":
        return nn.Identity()
    if kind == "max":
        return nn.MaxPool2d(3, stride=1, padding=1)
    depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return nn.Sequential(depthwise, _norm(channels), ACTIVATIONS[kind]())


class Cell(nn.Module):
    """A cell from its table: node 0 projects the input, every later node sums its incoming edges.

    The output concatenates all nodes but node 0, so five nodes give ``5 * channels`` channels.

    >>> Cell(CIFAR_CELL, in_channels=8, channels=16)(torch.zeros(2, 8, 6, 6)).shape
    torch.Size([2, 80, 6, 6])
    """

    def __init__(self, table: Table, in_channels: int, channels: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Conv2d(in_channels, channels, 1, bias=False), _norm(channels))
        self.nodes = nn.ModuleList(
            nn.ModuleDict(
                {str(source): _edge(kind, channels) for source, kind in enumerate(row) if kind != "zero"}
            )
            for row in table
        )

    def forward(self, x: Tensor) -> Tensor:
        values = [self.project(x)]
        for edges in self.nodes:
            assert isinstance(edges, nn.ModuleDict)
            incoming = [edge(values[int(source)]) for source, edge in edges.items()]
            values.append(sum(incoming[1:], incoming[0]))
        return torch.cat(values[1:], dim=1)


def _network(
    table: Table,
    stem: int,
    widths: tuple[int, ...],
    activation: str,
    *,
    classes: int = 10,
    in_channels: int,
    image_size: int,
    normalisation: str = "auto",
) -> nn.Module:
    """A stem, three cells that are each pooled, and a head."""
    check_counts(classes=classes, in_channels=in_channels)
    check_image_size(image_size, 2 ** len(widths), "halves the image three times")
    layers: list[nn.Module] = [
        Normalise(normalisation, in_channels),
        nn.Conv2d(in_channels, stem, 3, padding=1, bias=False),
        _norm(stem),
    ]
    channels = stem
    for width in widths:
        layers += [Cell(table, channels, width), nn.MaxPool2d(2)]
        channels = len(table) * width
    side = image_size // 2 ** len(widths)
    layers += [
        nn.Conv2d(channels, 128, 1, bias=False),
        _norm(128),
        nn.Flatten(),
        nn.Linear(128 * side * side, 128),
        ACTIVATIONS[activation](),
        nn.Linear(128, classes),
    ]
    model = nn.Sequential(*layers)
    initialise_convolutions(model)
    return model


# name, data, cell, stem, channels of the cells, activation in the head, shape of an image, parameters
_NETWORKS: tuple[tuple[str, str, Table, int, tuple[int, ...], str, tuple[int, int, int], int], ...] = (
    ("dpnas-cifar", "CIFAR-10 and SVHN", CIFAR_CELL, 48, (48, 96, 192), "selu", (3, 32, 32), 529_434),
    ("dpnas-mnist", "MNIST", MNIST_CELL, 32, (32, 32, 64), "tanh", (1, 28, 28), 213_418),
    ("dpnas-fmnist", "Fashion-MNIST", FMNIST_CELL, 32, (32, 32, 64), "tanh", (1, 28, 28), 214_570),
)
for _name, _data, _cell, _stem, _widths, _activation, _shape, _parameters in _NETWORKS:
    register(_name, f"DPNASNet for {_data}", input_shape=_shape, parameters=_parameters, paper=PAPER)(
        partial(_network, _cell, _stem, _widths, _activation, in_channels=_shape[0], image_size=_shape[1])
    )
