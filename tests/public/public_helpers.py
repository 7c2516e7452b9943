"""Small public data, and the methods that look at it, written out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core_helpers import small_data
from saltflat.data.source import Examples
from saltflat.methods.public import public_rows

KEY = "key"


def small_public(rows: int = 24, seed: int = 9) -> Examples:
    """Rows of the same form as `small_data`, declared public."""
    return replace(small_data(rows, seed), provenance="public", declared_by="the tests", name="small")


def public_gradient(model: nn.Module, public: Examples, rows: Tensor) -> list[Tensor]:
    """The gradient of the mean loss on some rows, by autograd alone."""
    loss = F.cross_entropy(model(public.inputs[rows]), public.targets[rows])
    return list(torch.autograd.grad(loss, list(model.parameters())))


def drawn(public: Examples, size: int, purpose: str, step: int, count: int = 1) -> list[Tensor]:
    """The public rows of a step, as a run with this key draws them."""
    return public_rows(len(public), size, f"{KEY}:{purpose}", step, count)


def options(public: Examples) -> dict[str, Any]:
    return {"public": public, "public_key": KEY}
