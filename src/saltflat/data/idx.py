"""The IDX format of MNIST, Fashion-MNIST and EMNIST.

A file is four bytes (0, 0, the type, the number of dimensions), one big-endian 32-bit size a dimension, and
the values. Only unsigned bytes are read: images have three dimensions, labels one.
"""

from __future__ import annotations

import hashlib
import math
import string
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saltflat.data.files import bad_file, by, read_all, zip_members
from saltflat.data.raw import Part, Raw

_UNSIGNED_BYTE = 8

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGIT_CLASSES = tuple(string.digits)
MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class EmnistSplit:
    """One of the six ways in which EMNIST cuts its characters into classes."""

    classes: tuple[str, ...]
    train_rows: int
    test_rows: int
    first_label: int = 0


_MERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")  # the other 15 small letters look alike
EMNIST_SPLITS = {
    "balanced": EmnistSplit(_MERGED, 112_800, 18_800),
    "letters": EmnistSplit(tuple(string.ascii_lowercase), 124_800, 20_800, first_label=1),
    "digits": EmnistSplit(DIGIT_CLASSES, 240_000, 40_000),
    "mnist": EmnistSplit(DIGIT_CLASSES, 60_000, 10_000),
    "byclass": EmnistSplit(
        (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase), 697_932, 116_323
    ),
    "bymerge": EmnistSplit(_MERGED, 697_932, 116_323),
}


def parse_idx(data: bytes, path: Path | str, dimensions: int) -> NDArray[np.uint8]:
    """The array in the bytes of an IDX file, whose length must be exactly what its header says.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels", 1).tolist()
    [7, 9]
    """
    start = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if data[:4] != magic or len(data) < start:
        raise bad_file(
            path, f"is not an IDX file of {dimensions}-dimensional bytes", f"the first bytes {magic.hex(' ')}"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    count = math.prod(shape)
    if count != len(data) - start or count == 0:
        raise bad_file(
            path,
            f"holds {len(data) - start} values where its header says {by(shape)}",
            "as many values as the header says, and at least one",
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def read_mnist(paths: Sequence[Path], classes: tuple[str, ...], others: Mapping[str, str]) -> Raw:
    """The four files of MNIST or of a data set of the same form, in the order of `MNIST_FILES`.

    ``others`` maps the checksum of the training labels of each data set with the same file names to its name:
    they are refused, because nothing else would tell a shoe from a seven.
    """
    contents = [read_all(path) for path in paths]
    names = [str(path) for path in paths]
    other = others.get(hashlib.sha256(contents[1]).hexdigest())
    if other is not None:
        raise bad_file(
            paths[1], f"belongs to {other}", "the data set that was asked for",
            cure=f'Load "{other}" instead.',
        )  # fmt: skip
    train = _pair(contents[:2], names[:2], len(classes))
    return Raw(train, _pair(contents[2:], names[2:], len(classes)), classes)


def emnist_files(split: str) -> tuple[str, ...]:
    """The names of the four files of one EMNIST split."""
    stems = (f"emnist-{split}-{part}" for part in ("train", "test"))
    return tuple(f"{stem}-{kind}-ubyte" for stem in stems for kind in ("images-idx3", "labels-idx1"))


def read_emnist(paths: Sequence[Path], split: str) -> Raw:
    """One split of EMNIST, from its four files or from the zip archive that holds all splits.

    The original stores each image with rows and columns exchanged: they are exchanged back.
    """
    kind = EMNIST_SPLITS[split]
    wanted = list(emnist_files(split))
    if len(paths) == 1:
        contents, names = zip_members(paths[0], wanted), [f"{paths[0]}:{name}" for name in wanted]
    else:
        contents, names = [read_all(path) for path in paths], [str(path) for path in paths]
    parts = [
        _pair(contents[at : at + 2], names[at : at + 2], len(kind.classes), kind.first_label, transposed=True)
        for at in (0, 2)
    ]
    return Raw(parts[0], parts[1], kind.classes, note=f"EMNIST, split {split}.")


def _pair(
    contents: Sequence[bytes],
    names: Sequence[str],
    num_classes: int,
    first: int = 0,
    transposed: bool = False,
) -> Part:
    """Images and labels that belong together: 28 x 28 pixels, as many labels as images, labels in range."""
    images = parse_idx(contents[0], names[0], 3)
    labels = parse_idx(contents[1], names[1], 1).astype(np.int64) - first
    if images.shape[1:] != (28, 28):
        height, width = images.shape[1:]
        raise bad_file(names[0], f"holds images of {height}x{width} pixels", "images of 28x28 pixels")
    if len(images) != len(labels):
        raise bad_file(
            names[1],
            f"holds {len(labels)} labels for the {len(images)} images of {Path(names[0]).name}",
            "one label an image",
        )
    check_labels(names[1], labels, num_classes, first)
    return Part((images.transpose(0, 2, 1) if transposed else images)[:, None], labels)


def check_labels(name: Path | str, labels: NDArray[np.int64], num_classes: int, first: int = 0) -> None:
    """Refuse class numbers outside 0 to num_classes - 1. ``first`` is the lowest number used in the file."""
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise bad_file(
            name,
            f"holds the label {int(wrong[0]) + first}",
            f"labels from {first} to {first + num_classes - 1}",
        )
