"""SVHN: house numbers from street views, cropped to 32 x 32, in MATLAB's version 5 format.

The format is read by hand because the usual parser trusts a damaged file as far as crashing the process.
What SVHN needs is little: plain numeric arrays, compressed or not.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saltflat.data.files import bad_file, by, read_all
from saltflat.data.idx import DIGIT_CLASSES, check_labels
from saltflat.data.raw import Part, Raw

SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def read_svhn(paths: Sequence[Path]) -> Raw:
    """Training and test images of 3 x 32 x 32, from the files named in `SVHN_FILES`."""
    return Raw(_read(paths[0]), _read(paths[1]), DIGIT_CLASSES)


def _read(path: Path) -> Part:
    """The variables X (32 x 32 x 3 x N bytes) and y (N labels from 1 to 10, where 10 is the digit 0)."""
    data = read_all(path)
    try:
        held = read_mat(data, wanted=("X", "y"))
    except (ValueError, struct.error, zlib.error, MemoryError) as error:
        raise bad_file(path, f"cannot be read as a MATLAB file ({error})", "a version 5 .mat file") from error
    if "X" not in held or "y" not in held:
        raise bad_file(path, "lacks the variables X and y", "the cropped-digits file of SVHN (format 2)")
    images, labels = held["X"], held["y"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.size == 0:
        raise bad_file(
            path, f"holds X of {images.dtype} {by(images.shape)}", "X of uint8 32x32x3xN, N at least 1"
        )
    if labels.size != labels.shape[0] or len(labels) != images.shape[3]:
        problem = f"holds {images.shape[3]} images and y of {labels.dtype} {by(labels.shape)}"
        raise bad_file(path, problem, "one label an image")
    if not np.all(np.isin(labels, range(1, 11))):
        check_labels(path, labels.reshape(-1).astype(np.int64) - 1, 10, first=1)
        raise bad_file(path, "holds a label that is no whole number", "labels from 1 to 10")
    return Part(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.reshape(-1).astype(np.int64) % 10)


def read_mat(data: bytes, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The wanted numeric arrays of a version 5 MATLAB file. Anything that does not fit is a ValueError."""
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(data[124:128])
    if order is None:
        raise ValueError("it does not start like one")
    held: dict[str, NDArray[Any]] = {}
    for kind, content in _elements(memoryview(data)[128:], order):
        if kind == _COMPRESSED:
            ((kind, content),) = _elements(memoryview(zlib.decompress(content)), order)
        if kind != _MATRIX:
            raise ValueError(f"it holds an element of unknown type {kind}")
        inner = list(islice(_elements(content, order), 3))
        name = bytes(inner[2][1]).decode("latin1") if len(inner) == 3 and inner[2][0] == 1 else ""
        if name in wanted:
            held[name] = _array(list(_elements(content, order)), order)
    return held


def _array(elements: list[tuple[int, memoryview]], order: str) -> NDArray[Any]:
    """A numeric array, of which MATLAB stores flags, sizes, name and values, first index fastest."""
    if len(elements) != 4 or elements[1][0] != 5 or elements[3][0] not in _NUMBERS:
        raise ValueError("a variable is not a plain numeric array")
    sizes = np.frombuffer(elements[1][1], dtype=f"{order}i4").tolist()
    values = np.frombuffer(elements[3][1], dtype=order + _NUMBERS[elements[3][0]])
    if len(sizes) < 2 or min(sizes) < 0 or math.prod(sizes) != len(values):
        raise ValueError(f"{len(values)} values where the sizes are {sizes}")
    return values.reshape(sizes, order="F")


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each element: a type, a length, and the content padded to eight bytes.

    Up to four bytes are packed: the length in the upper half of the type, the content where the length was.
    """
    at = 0
    while at < len(data):
        kind, length = struct.unpack(f"{order}II", data[at : at + 8])
        start = at + 8
        if kind >> 16:
            kind, length, start = kind & 0xFFFF, kind >> 16, at + 4
            if length > 4:
                raise ValueError("a small element is too long")
        if start + length > len(data):
            raise ValueError("it is shorter than its own lengths say")
        yield kind, data[start : start + length]
        at = start + length
        if kind != _COMPRESSED:
            at += -at % 8
