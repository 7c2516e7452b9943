"""CIFAR-10 and CIFAR-100 in the forms in which they are found: binary records, Python pickles, image folders.

A pickle is a program, so pickles are read by an interpreter that knows six harmless names and builds
nothing but lists, dictionaries, text, numbers and arrays of bytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saltflat.data.files import bad_file, read_all, tar_members
from saltflat.data.idx import check_labels
from saltflat.data.raw import Part, Raw

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Kind:
    """What tells CIFAR-10 and CIFAR-100 apart on disk. Batches are named without ``.bin``."""

    classes: tuple[str, ...]
    train: tuple[str, ...]
    test: str
    label_bytes: int  # in a binary record the last label byte is the fine one
    label_key: bytes

    @property
    def batches(self) -> tuple[str, ...]:
        """Every batch, the test batch last."""
        return (*self.train, self.test)


CIFAR10 = Kind(
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch", 1, b"labels",
)  # fmt: skip
CIFAR100 = Kind(
    (
        "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
        "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
        "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
        "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
        "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
        "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
        "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
        "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew",
        "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower",
        "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout",
        "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
    ),
    ("train",), "test", 2, b"fine_labels",
)  # fmt: skip


def read_binary(paths: Sequence[Path], kind: Kind) -> Raw:
    """The ``.bin`` batches, in the order of ``kind.batches``: records of the label bytes and 3072 pixels."""
    return _assemble([_records(read_all(path), path, kind) for path in paths], paths, kind)


def read_pickled(paths: Sequence[Path], kind: Kind) -> Raw:
    """The Python batches, in the order of ``kind.batches``: pickled dictionaries of pixels and labels."""
    return _assemble([_unpickled(read_all(path), path, kind) for path in paths], paths, kind)


def read_archive(paths: Sequence[Path], kind: Kind) -> Raw:
    """The tar archive of either form, as it is distributed, without unpacking it."""
    (path,) = paths
    parts: dict[str, Part] = {}
    for name, data in tar_members(path):
        stem, suffix = Path(name).stem, Path(name).suffix
        if stem in kind.batches and suffix in ("", ".bin"):
            read = _records if suffix else _unpickled
            parts[stem] = read(data, Path(f"{path}:{name}"), kind)
    missing = [batch for batch in kind.batches if batch not in parts]
    if missing:
        raise bad_file(path, f"lacks {', '.join(missing)}", f"an archive of {', '.join(kind.batches)}")
    return _assemble([parts[batch] for batch in kind.batches], [path] * len(kind.batches), kind)


def _assemble(parts: Sequence[Part], paths: Sequence[Path], kind: Kind) -> Raw:
    """Join the training batches, which are all of one length: a shorter one was cut between two records."""
    train, test = parts[:-1], parts[-1]
    for part, path in zip(train, paths):
        if len(part) != len(train[0]):
            raise bad_file(
                path, f"holds {len(part)} rows where {paths[0].name} holds {len(train[0])}", "equal batches"
            )
    pixels = np.concatenate([part.inputs for part in train])
    labels = np.concatenate([part.labels for part in train])
    return Raw(Part(pixels, labels), test, kind.classes)


def _records(data: bytes, path: Path, kind: Kind) -> Part:
    size = kind.label_bytes + _PIXELS
    if len(data) == 0 or len(data) % size:
        raise bad_file(path, f"has {len(data)} bytes", f"one or more whole records of {size} bytes")
    table = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    labels = table[:, kind.label_bytes - 1].astype(np.int64)
    check_labels(path, labels, len(kind.classes))
    return Part(table[:, kind.label_bytes :].reshape(-1, 3, 32, 32), labels)


def _unpickled(data: bytes, path: Path, kind: Kind) -> Part:
    expected = (
        f"a pickled dictionary with data (N x {_PIXELS} bytes) and {kind.label_key.decode()} (N numbers)"
    )
    try:
        content = _Harmless(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to spell
        raise bad_file(path, f"cannot be read as a batch ({error})", expected) from error
    if not isinstance(content, dict):
        raise bad_file(path, "is not a dictionary", expected)
    named = {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}
    pixels, labels = named.get(b"data"), named.get(kind.label_key)
    pixels = pixels.value if isinstance(pixels, _Bytes) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != _PIXELS or len(pixels) == 0:
        raise bad_file(path, "holds no pixels of the right form", expected)
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(n) is int for n in labels):
        raise bad_file(path, f"does not hold one number of {kind.label_key.decode()} a row", expected)
    if not all(0 <= n < len(kind.classes) for n in labels):
        raise bad_file(path, "holds a label out of range", f"labels from 0 to {len(kind.classes) - 1}")
    return Part(pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64))


class _Bytes:
    """Stands in for a NumPy array while a pickle is read: takes an array of bytes, and no other."""

    value: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, raw = state
        if not (isinstance(dtype, _ByteType) and isinstance(raw, bytes) and not fortran):
            raise pickle.UnpicklingError("an array of something else than bytes")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _ByteType:
    """Stands in for NumPy's dtype, of which a CIFAR batch holds one kind: the unsigned byte."""

    def __init__(self, code: object = "", *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError("an array of something else than bytes")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment say nothing about single bytes."""


def _latin1(text: object, encoding: object) -> bytes:
    """What ``_codecs.encode`` is used for in an old pickle: bytes, spelled as text."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("text in an unexpected encoding")
    return text.encode("latin1")


_HARMLESS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Bytes,
    ("numpy._core.multiarray", "_reconstruct"): _Bytes,
    ("numpy", "ndarray"): _Bytes,
    ("numpy", "dtype"): _ByteType,
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): bytes,
}


class _Harmless(pickle._Unpickler):
    """An unpickler that can build data and call nothing else.

    It is the one written in Python: the one in C trusts the memo numbers of a damaged file, and asks for
    as much memory as they say. The opcode that reserves memory by its operand is taken out.
    """

    dispatch = {  # noqa: RUF012
        code: step for code, step in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        """One of the names above, or a refusal."""
        try:
            return _HARMLESS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs") from None
