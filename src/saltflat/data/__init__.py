"""Data sets and how they are read: by name, from files of your own, or from tensors you already have.

>>> from saltflat import data
>>> digits = data.load("digits")
>>> len(digits.train), digits.num_classes
(1437, 10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saltflat.data.catalogue import names
    from saltflat.data.dataset import DataSet
    from saltflat.data.fetching import fetch
    from saltflat.data.loading import load
    from saltflat.data.places import Description, describe, locate
    from saltflat.data.source import Examples, as_source
    from saltflat.data.split import public_part, public_split

# Loaded when first used: who completes a word in a shell asks for the names alone, and must not wait for torch.
_HOMES = {
    "DataSet": "saltflat.data.dataset",
    "Description": "saltflat.data.places",
    "Examples": "saltflat.data.source",
    "as_source": "saltflat.data.source",
    "describe": "saltflat.data.places",
    "fetch": "saltflat.data.fetching",
    "load": "saltflat.data.loading",
    "locate": "saltflat.data.places",
    "names": "saltflat.data.catalogue",
    "public_part": "saltflat.data.split",
    "public_split": "saltflat.data.split",
}

__all__ = [
    "DataSet",
    "Description",
    "Examples",
    "as_source",
    "describe",
    "fetch",
    "load",
    "locate",
    "names",
    "public_part",
    "public_split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
