"""Tensors and facts in one file that any changed byte gives away: safetensors, with JSON and a hash in its header.

Reading never executes code: safetensors holds raw numbers, the header is JSON. The hash covers every byte of
the file, itself taken as zeros. It finds damage; against someone who can write it anew it proves nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saltflat.record.canonical import DamagedError

_MARK = b'"sha256":"'
_BLANK = b"0" * 64
# a header of more than this is none of ours; safetensors itself refuses at the same size
_LONGEST_HEADER = 100_000_000


def own_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: on the CPU, contiguous, none sharing memory with another."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        held = value.detach().cpu().contiguous()
        result[name] = held.clone() if held.untyped_storage().data_ptr() in seen else held
        seen.add(held.untyped_storage().data_ptr())
    return result


def packed(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytearray:
    """The bytes of a file that holds both.

    >>> import torch
    >>> content = packed({"w": torch.ones(2)}, {"step": 3})
    >>> unpacked(bytes(content))
    ({'w': tensor([1., 1.])}, {'step': 3})
    """
    header = {"facts": json.dumps(facts, allow_nan=False), "sha256": _BLANK.decode()}
    content = bytearray(save(own_copies(tensors), header))
    place = content.index(_MARK) + len(_MARK)
    content[place : place + 64] = hashlib.sha256(content).hexdigest().encode()
    return content


def unpacked(content: bytes, name: str = "this file") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `packed` wrote; anything else is a `DamagedError`."""
    try:
        length = int.from_bytes(content[:8], "little")
        if len(content) < 8 or length > min(len(content) - 8, _LONGEST_HEADER):
            raise DamagedError(f"{name} is cut short, or not a file of this kind.")
        header = content[8 : 8 + length]
        place = header.index(_MARK) + len(_MARK) + 8
        stated = content[place : place + 64].decode()
        found = hashlib.sha256(memoryview(content)[:place])
        found.update(_BLANK)
        found.update(memoryview(content)[place + 64 :])
        if found.hexdigest() != stated:
            raise DamagedError(f"{name} was changed or damaged: its hash does not fit.")
        facts = json.loads(json.loads(header)["__metadata__"]["facts"], parse_constant=_refused)
        if not isinstance(facts, dict):
            raise DamagedError(f"{name} holds no table of facts.")
        return load(content), facts
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, SafetensorError) as error:
        raise DamagedError(f"{name} cannot be read ({type(error).__name__}: {error}).") from error


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def plain_number(value: float) -> float | str:
    """A number as JSON can hold it: what is not finite becomes a word.

    >>> plain_number(0.5), plain_number(math.inf)
    (0.5, 'inf')
    """
    return value if math.isfinite(value) else str(value)


def number_from(value: Any) -> float:
    """What `plain_number` wrote; anything else is a ValueError."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in ("inf", "-inf", "nan")):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
