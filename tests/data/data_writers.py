"""Tiny files in the original formats, as their authors write them."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(
    folder: Path, rows: int = 20, packed: bool = True, prefix: str = "", first: int = 0
) -> list[Path]:
    """Four IDX files. With a prefix such as "emnist-letters-" the second part is called test."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for part, count in (("train", rows), ("test" if prefix else "t10k", rows // 2)):
        labels = (np.arange(count) % 10 + first).astype(np.uint8)
        for name, array in (("images-idx3", pixels(count, 28, 28, seed=count)), ("labels-idx1", labels)):
            data = idx_bytes(array)
            file = folder / f"{prefix}{part}-{name}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(data, mtime=0) if packed else data)
            files.append(file)
    return files


def write_emnist_zip(file: Path, split: str, first: int = 0) -> None:
    folder = file.parent / "unpacked"
    members = write_mnist(folder, prefix=f"emnist-{split}-", first=first)
    with zipfile.ZipFile(file, "w") as archive:
        for member in members:
            archive.write(member, f"gzip/{member.name}")
            member.unlink()


def write_cifar_binary(folder: Path, number: int = 10, rows: int = 6) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if number == 10 else ["train", "test"]
    files = []
    for at, batch in enumerate(batches):
        fine = (np.arange(rows) * 7 % number).astype(np.uint8)[:, None]
        coarse = np.full((rows, 1), 19, np.uint8)
        labels = [fine] if number == 10 else [coarse, fine]
        file = folder / f"{batch}.bin"
        file.write_bytes(np.concatenate([*labels, pixels(rows, 3072, seed=at)], axis=1).tobytes())
        files.append(file)
    return files


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 wrote its strings, in which CIFAR is distributed."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        data = text.encode("latin1") if isinstance(text, str) else text
        short = len(data) < 256
        size = bytes([len(data)]) if short else struct.pack("<i", len(data))
        self.write((pickle.SHORT_BINSTRING if short else pickle.BINSTRING) + size + data)
        self.memoize(text)

    dispatch[str] = save_string
    dispatch[bytes] = save_string


def cifar_pickle(number: int, rows: int, seed: int, python2: bool = True) -> bytes:
    key = "labels" if number == 10 else "fine_labels"
    labels = [at * 7 % number for at in range(rows)]
    content = {
        "batch_label": "a batch",
        key: labels,
        "data": pixels(rows, 3072, seed=seed),
        "filenames": ["a.png"],
    }
    if not python2:
        return pickle.dumps({name.encode(): value for name, value in content.items()}, protocol=2)
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(content)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_cifar_python(folder: Path, number: int = 10, rows: int = 6, python2: bool = True) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if number == 10 else ["train", "test"]
    (folder / ("batches.meta" if number == 10 else "meta")).write_bytes(b"")
    for at, batch in enumerate(batches):
        (folder / batch).write_bytes(cifar_pickle(number, rows, at, python2))
    return [folder / batch for batch in batches]


def write_tar(file: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w:" + {"tar": "", "tgz": "gz"}.get(file.suffix[1:], file.suffix[1:])) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def image_bytes(array: np.ndarray, kind: str = "png") -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, {"jpg": "jpeg"}.get(kind, kind))
    return out.getvalue()


def cifar_pictures(kind: str = "jpg", rows: int = 2) -> dict[str, bytes]:
    """The members of an archive of class folders, in the order of cifar10-jpeg.tar.xz."""
    return {
        f"{part}/{label}/{at:04d}.{kind}": image_bytes(pixels(32, 32, 3, seed=at), kind)
        for part in ("train", "test")
        for label in CIFAR10_CLASSES
        for at in range(rows)
    }


def write_files(root: Path, members: dict[str, bytes]) -> None:
    for name, data in members.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def write_svhn(folder: Path, rows: int = 6, packed: bool = True) -> list[Path]:
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "train_32x32.mat", folder / "test_32x32.mat"]
    for file in files:
        labels = (np.arange(rows) % 10 + 1).astype(np.uint8)[:, None]
        savemat(file, {"X": pixels(32, 32, 3, rows), "y": labels}, do_compression=packed)
    return files
