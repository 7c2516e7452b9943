"""Predictions and accuracy, on data that is public or set aside for testing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.people import units_of
from saltflat.data.source import Examples, Source, as_source, map_tensors, tensors_in
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import call_model, take
from saltflat.training.losses import default_loss, found_logits, logits_of

BATCH = 512
NOT_COVERED = "not covered"
"""The label of exact numbers about private rows: no ε covers them."""


def coverage(data: Any) -> str | None:
    """The label that numbers measured on ``data`` carry; None if the rows are known not to be private.

    >>> from saltflat.data.source import Examples
    >>> coverage(Examples(torch.zeros(1, 1), torch.zeros(1), "public")), coverage((torch.zeros(1, 1), torch.zeros(1)))
    (None, 'not covered')
    """
    return None if isinstance(data, Examples) and data.provenance != "private" else NOT_COVERED


@torch.no_grad()
def predict(model: nn.Module, inputs: Any, device: torch.device | None = None) -> Tensor:
    """The model's outputs in evaluation mode, in batches."""
    # what a tokenizer returns is a mapping, and no dict
    tensors = map_tensors(torch.as_tensor, dict(inputs) if isinstance(inputs, Mapping) else inputs)
    outputs = []
    with evaluating(model):
        for some in torch.arange(len(tensors_in(tensors)[0])).split(BATCH):
            batch = map_tensors(lambda t: t.to(device), take(tensors, some))
            outputs.append(logits_of(call_model(model, batch)).cpu())
    return torch.cat(outputs)


def evaluate(
    model: nn.Module, data: Any, device: torch.device | None = None, loss_fn: LossFunction | None = None
) -> dict[str, float]:
    """Mean loss, and accuracy where targets are classes. Exact numbers about ``data``: not private."""
    source: Source = as_source(data)
    return figures(tally(model, source, torch.arange(len(source)), device, loss_fn))


@torch.no_grad()
def tally(
    model: nn.Module,
    source: Source,
    rows: Tensor,
    device: torch.device | None = None,
    loss_fn: LossFunction | None = None,
) -> Tensor:
    """Sum of losses, right answers, rows, and rows that could be right, over some rows: tallies can be added."""
    total, correct, counted = 0.0, 0, 0
    with evaluating(model):
        for indices in rows.split(BATCH) if len(rows) else ():
            found = units_of(source, indices, device)
            outputs, targets = call_model(model, found.inputs), found.targets
            total += float((loss_fn or default_loss(targets))(outputs, targets).sum())
            logits = found_logits(outputs)
            if not targets.is_floating_point() and logits is not None and logits.dim() == 2:
                counted += len(targets)
                correct += int((logits.argmax(1) == targets).sum())
    return torch.tensor([total, correct, len(rows), counted], dtype=torch.float64)


def figures(tallied: Tensor) -> dict[str, float]:
    """Mean loss and accuracy of a tally.

    >>> figures(torch.tensor([1.0, 3, 4, 4], dtype=torch.float64))
    {'loss': 0.25, 'accuracy': 0.75}
    """
    total, correct, seen, counted = tallied.tolist()
    result = {"loss": total / seen}
    return result | {"accuracy": correct / seen} if counted else result


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; each module's own mode after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def with_weights(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Other weights inside the block: an average instead of the last iterate."""
    if weights is None:
        yield
        return
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in weights}
    try:
        with torch.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(value)
        yield
    finally:
        with torch.no_grad():
            for name, value in before.items():
                parameters[name].copy_(value)
