"""What the engine is compared with: plain autograd, one unit at a time, without a line of the engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def rows_of(inputs: Any, rows: Any) -> Any:
    """Some rows of a tensor, or of each tensor of a tuple or dict."""
    if isinstance(inputs, dict):
        return {key: rows_of(value, rows) for key, value in inputs.items()}
    return tuple(rows_of(value, rows) for value in inputs) if isinstance(inputs, tuple) else inputs[rows]


def number_of_rows(inputs: Any) -> int:
    """How many rows each tensor of an input has."""
    while not isinstance(inputs, Tensor):
        inputs = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0]
    return len(inputs)


def called(model: nn.Module, inputs: Any) -> Any:
    """The model on a tensor, a tuple or a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Floating inputs in this precision; token numbers as they are."""
    if isinstance(inputs, dict):
        return {key: cast(value, dtype) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(cast(value, dtype) for value in inputs)
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def first_tensor(outputs: Any) -> Tensor:
    """The output that the loss looks at."""
    while not isinstance(outputs, Tensor):
        outputs = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs[0]
    return outputs


def smooth_loss(outputs: Any, targets: Tensor) -> Tensor:
    """One loss a row, in which every output has its own weight and none can explode."""
    flat = torch.tanh(first_tensor(outputs).flatten(1))
    weights = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)
    return (flat * weights).sum(1) / math.sqrt(flat.shape[1]) * targets


def explicit(
    model: nn.Module,
    loss_fn: Callable[[Any, Tensor], Tensor],
    inputs: Any,
    targets: Tensor,
    clip_norm: float,
    rows_per_unit: int = 1,
    row_weights: Tensor | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum of clipped gradients and the norms before the clip, by the definition."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    norms = []
    for start in range(0, len(targets), rows_per_unit):
        unit = slice(start, start + rows_per_unit)
        losses = loss_fn(called(model, rows_of(inputs, unit)), targets[unit])
        if row_weights is not None:
            losses = losses * row_weights[unit]
        grads = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        norm = math.sqrt(sum(float(g.abs().double().square().sum()) for g in grads if g is not None))
        norms.append(norm)
        factor = min(1.0, clip_norm / norm) if norm > 0 else 1.0
        for name, grad in zip(parameters, grads):
            if grad is not None:
                sums[name] += factor * grad
    return sums, torch.tensor(norms, dtype=torch.float64)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The length of the difference of two sums, as one vector."""
    assert set(a) == set(b)
    return math.sqrt(
        sum(float((a[name].to(b[name].dtype) - b[name]).abs().double().square().sum()) for name in a)
    )


def length(sums: dict[str, Tensor]) -> float:
    """The length of a sum, as one vector."""
    return math.sqrt(sum(float(value.abs().double().square().sum()) for value in sums.values()))


def targets_for(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Weights of either sign, none near zero."""
    return (
        torch.linspace(0.5, 1.5, rows, dtype=dtype)
        * torch.tensor([1.0, -1.0], dtype=dtype).repeat(rows)[:rows]
    )


def assert_matches(
    model: nn.Module,
    inputs: Any,
    *,
    dtypes: Iterable[torch.dtype] = (torch.float64, torch.float32),
    micro_batches: Iterable[int | None] = (None, 1, 3),
    loss_fn: Callable[[Any, Tensor], Tensor] = smooth_loss,
) -> dict[str, str]:
    """The engine's sum and norms are the explicit ones, in each precision and for each micro-batch.

    The reference is always taken in float64: what is measured is the engine's error, not the reference's.
    Returns the rule that each parameter went through, in the first run.
    """
    from saltflat.engine import clipped_sum

    exact = copy.deepcopy(model).double()
    targets = targets_for(number_of_rows(inputs))
    _, norms = explicit(exact, loss_fn, cast(inputs, torch.float64), targets, math.inf)
    clip_norm = float(norms.median())
    assert clip_norm > 0
    expected, _ = explicit(exact, loss_fn, cast(inputs, torch.float64), targets, clip_norm)
    rules: dict[str, str] = {}
    for dtype in dtypes:
        tried = copy.deepcopy(model).to(dtype)
        for micro_batch in micro_batches:
            found = clipped_sum(
                tried, loss_fn, cast(inputs, dtype), targets.to(dtype), clip_norm, micro_batch=micro_batch
            )
            where = f"{dtype}, micro_batch={micro_batch}, {sorted(set(found.rules.values()))}"
            # what cancels leaves its rounding behind: a short sum, or norm, is measured against the clip
            error = distance(found.grads, expected) / max(length(expected), clip_norm)
            worst = float(((found.norms.double() - norms) / norms.clamp(min=clip_norm / 10)).abs().max())
            assert error <= TOLERANCE[dtype], f"sum off by {error:.1e}: {where}"
            assert worst <= TOLERANCE[dtype], f"norm off by {worst:.1e}: {where}"
            rules = rules or found.rules
    return rules


class Fn(nn.Module):
    """A model from a function and its parts: ``Fn(lambda self, x: self.layer(x), layer=...)``."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def weight(*shape: int, scale: float = 0.4) -> nn.Parameter:
    """A parameter with something in it."""
    return nn.Parameter(torch.randn(shape) * scale)
