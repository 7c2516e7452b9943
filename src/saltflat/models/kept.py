"""Features that are computed once: files that go by the content of the images they were made from."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8


def content_key(settings: list[Any], images: Tensor) -> str:
    """A name for what these settings make of these images: their bytes, shape and type."""
    digest = hashlib.sha256(json.dumps([*settings, list(images.shape), str(images.dtype)]).encode())
    digest.update(_bytes(images))
    return digest.hexdigest()


def kept(file: Path, compute: Callable[[], Tensor]) -> Tensor:
    """The features in a file, or computed and put there if it is missing, broken or changed.

    Features of private images are as private as the images: the file is readable by its owner alone.
    """
    features = _read(file)
    if features is None:
        features = compute()
        _write(file, features)
    return features


def _bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor as bytes, without a copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(uint8).numpy().data


def _read(file: Path) -> Tensor | None:
    try:
        with safe_open(file, framework="pt") as opened:
            features: Tensor = opened.get_tensor("features")
            noted = (opened.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    return features if hashlib.sha256(_bytes(features)).hexdigest() == noted else None


def _write(file: Path, features: Tensor) -> None:
    """Write beside the file and rename, so that nobody ever reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
    os.close(handle)
    try:
        kept_ = features.cpu().contiguous()
        save_file({"features": kept_}, name, metadata={"sha256": hashlib.sha256(_bytes(kept_)).hexdigest()})
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
