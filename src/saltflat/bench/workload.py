"""What the engines are timed on: a model with the same weights each time, random rows, and a loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saltflat import models
from saltflat.errors import InputError, check_known

OWN_LOSS = ("centred-linear",)
SCALED = "cnn-width-"  # cnn-width-2: the layers of cnn-selu, every one twice as wide


@dataclass(frozen=True)
class Workload:
    """A model by its name, and how many examples it is asked about.

    >>> work = Workload("mlp", 8)
    >>> work.inputs.shape, work.loss(work.fresh_model()(work.inputs), work.targets).shape
    (torch.Size([8, 1, 8, 8]), torch.Size([8]))
    """

    model: str
    examples: int
    dtype: torch.dtype = torch.float32

    def fresh_model(self) -> nn.Module:
        """A model of its own for each engine, with the same weights every time."""
        torch.manual_seed(0)
        return build(self.model).to(self.dtype)

    @cached_property
    def inputs(self) -> Tensor:
        """Rows of the shape that the model takes. For a model on fixed features these are the features."""
        generator = torch.Generator().manual_seed(1)
        return torch.rand(self.examples, *input_shape(self.model), generator=generator).to(self.dtype)

    @cached_property
    def outputs(self) -> int:
        """How many numbers the model gives an example."""
        with torch.no_grad():
            return self.fresh_model()(self.inputs[:1]).shape[1]

    @cached_property
    def targets(self) -> Tensor:
        """Labels, or real numbers where the model has a single output."""
        generator = torch.Generator().manual_seed(2)
        if self.outputs == 1:
            return torch.rand(self.examples, generator=generator).to(self.dtype)
        return torch.randint(0, self.outputs, (self.examples,), generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss an example."""
        if targets.is_floating_point():
            return 0.5 * (outputs.squeeze(1) - targets).square()
        return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class RepeatedRows:
    """A source of ``rows`` rows that holds only a few and repeats them: a large data set without its memory."""

    inputs: Tensor
    targets: Tensor
    rows: int

    def __len__(self) -> int:
        return self.rows

    def fetch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at ``indices``, copied as those of any data set in memory would be."""
        held = indices % len(self.targets)
        return self.inputs.index_select(0, held), self.targets.index_select(0, held)


def check_models(names: tuple[str, ...]) -> None:
    """Refuse names that no model has."""
    for name in names:
        expected = "names of models, separated by commas"
        check_known("models", name, models.names(), expected, problem="is not a model")
        if name in OWN_LOSS:
            raise InputError(
                "models", name, "models that give logits or a number alone", problem="needs a loss of its own",
                cure="A linear layer on features is scatter-linear.",
            )  # fmt: skip


def build(name: str) -> nn.Module:
    """A model of the registry, or the CNN of a chosen width."""
    return _scaled_cnn(float(name.removeprefix(SCALED))) if name.startswith(SCALED) else models.build(name)


def input_shape(name: str) -> tuple[int, ...]:
    """The shape of one example."""
    return (3, 32, 32) if name.startswith(SCALED) else models.describe(name).input_shape


def parameter_count(name: str) -> int:
    """How many trainable numbers the model has."""
    return sum(p.numel() for p in build(name).parameters() if p.requires_grad)


def _scaled_cnn(width: float) -> nn.Module:
    """The layers of cnn-selu with ``width`` times as many channels."""
    layers: list[nn.Module] = []
    channels = 3
    for base in (32, 64, 128):
        wide = round(base * width)
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.SELU()]
        layers += [nn.Conv2d(wide, wide, 3, padding=1), nn.SELU(), nn.MaxPool2d(2)]
        channels = wide
    hidden = round(128 * width)
    layers += [nn.Flatten(), nn.Linear(channels * 16, hidden), nn.SELU(), nn.Linear(hidden, 10)]
    return nn.Sequential(*layers)
