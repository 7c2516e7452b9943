"""Calling models and losses on some rows of a batch: shared by the engine and its probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.errors import InputError


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model with a tensor, a tuple of positional or a dict of named inputs."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def leaves(inputs: Any) -> list[Tensor]:
    """The tensors of an input, in order; an input may hold further tuples, lists and dicts."""
    if isinstance(inputs, dict | tuple | list):
        values = inputs.values() if isinstance(inputs, dict) else inputs
        return [t for value in values for t in leaves(value)]
    return [inputs] if isinstance(inputs, Tensor) else []


def map_tensors(change: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    """The same form of input, with each of its tensors changed."""
    if isinstance(inputs, dict):
        return {key: map_tensors(change, value) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(map_tensors(change, value) for value in inputs)
    return change(inputs) if isinstance(inputs, Tensor) else inputs


def take(inputs: Any, part: Any) -> Any:
    """Some rows of an input of any form."""
    return map_tensors(lambda rows: rows[part], inputs)


def check_losses(losses: Any, rows: int) -> None:
    """Refuse a loss that is not one number an example: it cannot be clipped per example."""
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            "loss_fn", str(found), f"one loss per example, a tensor of shape ({rows},)",
            problem="is the shape of what the loss function returned",
            cure='Use reduction="none", and average over any dimension but the first.',
        )  # fmt: skip


def has_compiled_parts(model: nn.Module) -> bool:
    """Whether some part of the model was compiled by torch."""
    return any(
        type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        for module in model.modules()
    )


def without_compilation(model: nn.Module) -> AbstractContextManager[Any]:
    """Run compiled parts of the model eagerly: the tape must see their operations."""
    return torch.compiler.set_stance("force_eager") if has_compiled_parts(model) else nullcontext()


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type to which ``torch.autocast`` shortens operations here and now; None if it does not."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def shortened(device: torch.device, kind: torch.dtype | None) -> AbstractContextManager[Any]:
    """Autocast to a type, for a forward pass: the weights are cast anew, as they may have changed since."""
    torch.clear_autocast_cache()
    return nullcontext() if kind is None else torch.autocast(device.type, dtype=kind)


def in_full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast: it is for forward passes. Norms, factors and sums that it shortened would not keep the bound."""
    return torch.autocast(device.type, enabled=False) if autocast_type(device) is not None else nullcontext()


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put generators and buffers back as they were, also buffers that the model exchanged for others."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    with torch.random.fork_rng(devices={p.device.index for p in model.parameters() if p.is_cuda}):
        try:
            yield
        finally:
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer
                if buffer.shape == before.shape:
                    buffer.data.copy_(before)


@contextmanager
def holding(tensors: Sequence[Tensor], values: Sequence[Tensor] | None) -> Iterator[None]:
    """The same tensor objects with other numbers inside the block, if any are given; nothing is copied."""
    if values is None:
        yield
        return
    before = [t.data for t in tensors]
    try:
        for t, value in zip(tensors, values, strict=True):
            t.data = value
        yield
    finally:
        for t, value in zip(tensors, before, strict=True):
            t.data = value
