"""What may be in a checkpoint: tensors and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from saltflat.errors import InputError


def check_plain(value: Any, where: str = "checkpoint") -> None:
    """Refuse anything that could not be loaded as weights only."""
    if value is None or isinstance(value, Tensor | bool | int | float | str | bytes):
        return
    if isinstance(value, Mapping):
        for key, each in value.items():
            check_plain(key, f"a key of {where}")
            check_plain(each, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple | set):
        for i, each in enumerate(value):
            check_plain(each, f"{where}[{i}]")
    else:
        raise InputError(
            "checkpoint_dict", f"{where} is a {type(value).__name__}",
            "tensors, numbers, text, and lists, tuples and dicts of them",
            problem="cannot be saved without code", cure="Save its state_dict() instead.",
        )  # fmt: skip
