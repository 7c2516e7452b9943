"""Class folders of images: ``train/cat/1.png``, ``test/dog/2.png``, or ``cat/1.png``; on disk or in a tar.

Decoding many small images takes longer than anything else a loader does, so the decoded pixels of a known
data set are kept in the cache. A user's own folder is never copied there: private images stay where they are.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saltflat.data.files import bad_file, by, cache_dir, check_several, tar_members
from saltflat.data.raw import CLASSES_FROM_DATA, Part, Raw
from saltflat.errors import InputError, MissingDependencyError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_CACHE_VERSION = b"1"
_PNG_START, _PNG_END = b"\x89PNG", b"IEND\xaeB`\x82"

Size = tuple[int, int]


@dataclass(frozen=True)
class _Picture:
    """One image file: the part it belongs to ("train", "test" or ""), its class, its name, its bytes."""

    part: str
    label: str
    name: str
    data: bytes


def read_class_folders(root: Path, classes: Sequence[str] | None = None, size: Size | None = None) -> Raw:
    """Every image under ``root``: one folder a class, or ``train`` and ``test`` with such folders inside."""
    tops = {entry.name for entry in _folders(root)}
    if "train" in tops:
        parts = {name: root / name for name in sorted(tops & {"train", "test"}, reverse=True)}
    else:
        parts = {"": root}
    found = [folder.name for place in parts.values() for folder in _folders(place)]
    if not found:
        raise bad_file(
            root, "holds no class folders", "one folder a class, or train/ and test/ with one folder a class",
            cure="Put the images of each class into a folder with the name of the class.",
        )  # fmt: skip
    return _assemble(root, _from_folders(parts), found, classes, size)


def read_class_archive(path: Path, classes: Sequence[str] | None = None, size: Size | None = None) -> Raw:
    """The same layout inside a tar archive (plain, gzip, xz or bzip2), read in one pass without unpacking."""
    return _assemble(path, _from_archive(path), [], classes, size)


def read_known(paths: Sequence[Path], classes: tuple[str, ...], title: str) -> Raw:
    """A known data set as class folders (``train`` and ``test``) or as an archive of them, decoded once.

    Guarantee: the pixels come from the cache only if the files are still the ones they were decoded from.
    """
    archive = paths[0].is_file()
    source = paths[0] if archive else paths[0].parent
    try:
        key = _content_key(source) if archive else _listing_key(paths)
    except OSError as error:
        raise bad_file(source, f"cannot be read ({error})", "readable images") from error

    def decode() -> Raw:
        return (read_class_archive if archive else read_class_folders)(source, classes)

    raw = _through_cache(cache_dir() / "decoded" / f"{key}.safetensors", classes, decode)
    if raw.test is None or raw.train.inputs.shape[1:] != (3, 32, 32):
        raise bad_file(source, f"is not {title}", "train and test images of 32x32 pixels in colour")
    lossy = f"{title} (JPEG): lossy copies, on which a little accuracy may be lost."
    return replace(raw, note=lossy if raw.lossy else f"{title}, as image files.")


def _from_folders(parts: dict[str, Path]) -> Iterator[_Picture]:
    for part, place in parts.items():
        for folder in _folders(place):
            for path in _listed(folder):
                if _is_image(path.name):
                    try:
                        data = path.read_bytes()
                    except OSError as error:
                        raise bad_file(path, f"cannot be read ({error})", "a readable image") from error
                    yield _Picture(part, folder.name, str(path), data)


def _from_archive(path: Path) -> Iterator[_Picture]:
    for name, data in tar_members(path):
        steps = PurePosixPath(name).parts
        if len(steps) < 2 or not _is_image(steps[-1]):
            continue
        part = steps[-3] if len(steps) > 2 and steps[-3] in ("train", "test") else ""
        yield _Picture(part, steps[-2], f"{path}:{name}", data)


def _assemble(
    source: Path,
    pictures: Iterable[_Picture],
    found: list[str],
    classes: Sequence[str] | None,
    size: Size | None,
) -> Raw:
    """Decode the pictures, check that they fit together, and sort them into train and test."""
    decoded: dict[str, list[NDArray[np.uint8]]] = {}
    labels: dict[str, list[str]] = {}
    shape, jpeg = size, False
    for picture in pictures:
        if classes is not None and picture.label not in classes:
            raise _unknown_class(source, picture.label, classes)
        pixels = _decode(picture, size)
        shape = shape or pixels.shape[:2]
        if pixels.shape[:2] != shape:
            raise bad_file(
                picture.name, f"has {by(pixels.shape[:2])} pixels where the others have {by(shape)}",
                "images of one size",
                cure="To have every image resized, declare image_size=(height, width), or --image-size in a command.",
            )  # fmt: skip
        decoded.setdefault(picture.part, []).append(pixels)
        labels.setdefault(picture.part, []).append(picture.label)
        jpeg = jpeg or picture.name.lower().endswith((".jpg", ".jpeg"))
    if not decoded or ("" in decoded and len(decoded) > 1) or set(decoded) == {"test"}:
        raise bad_file(
            source,
            "holds no training images in class folders",
            "cat/1.png, or train/cat/1.png and test/cat/2.png",
            cure=f"Images are files that end in {', '.join(IMAGE_SUFFIXES)}.",
        )
    names = [label for part in labels.values() for label in part] + found
    order = tuple(sorted(set(names)) if classes is None else classes)
    check_several(source, order)
    unknown = sorted(set(names) - set(order))
    if unknown:
        raise _unknown_class(source, unknown[0], order)
    grey = all(pixels.ndim == 2 for part in decoded.values() for pixels in part)
    number = {name: at for at, name in enumerate(order)}
    parts = {
        part: Part(
            _stack(decoded.pop(part), grey),
            np.array([number[label] for label in labels[part]], dtype=np.int64),
        )
        for part in list(decoded)
    }
    train = parts["train"] if "train" in parts else parts[""]
    note = CLASSES_FROM_DATA.replace("the data", "the folder names", 1) if classes is None else ""
    return Raw(train, parts.get("test"), order, classes is not None, note, lossy=jpeg)


def _decode(picture: _Picture, size: Size | None) -> NDArray[np.uint8]:
    """The pixels of one image: height x width if it is grey, height x width x 3 otherwise."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("pillow", "reading image files", "images") from error
    try:
        if picture.data.startswith(_PNG_START) and _PNG_END not in picture.data:
            raise EOFError("its end is missing")  # the decoder is content when it has seen the last pixel
        with Image.open(io.BytesIO(picture.data)) as image:
            image.load()
            plain = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
            if size is not None and plain.size != size[::-1]:
                plain = plain.resize(size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(plain, dtype=np.uint8)
    except Exception as error:  # each format's decoder raises what it likes on damaged bytes
        raise bad_file(picture.name, f"cannot be decoded ({error})", "a complete image") from error


def _stack(images: list[NDArray[np.uint8]], grey: bool) -> NDArray[np.uint8]:
    """All images as one array, N x C x H x W in memory too: the cache stores memory as it lies."""
    stacked = np.empty((len(images), 1 if grey else 3, *images[0].shape[:2]), dtype=np.uint8)
    for at, pixels in enumerate(images):
        stacked[at] = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    return stacked


def _through_cache(file: Path, classes: tuple[str, ...], decode: Callable[[], Raw]) -> Raw:
    """The decoded pixels from ``file``, or decoded now and written there, whole or not at all."""
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import save_file

    if file.is_file():
        try:
            with safe_open(file, framework="numpy") as stored:
                held = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - not a dictionary
                lossy = (stored.metadata() or {}).get("lossy") == "yes"
            test = Part(held["test_images"], held["test_labels"]) if "test_images" in held else None
            return Raw(Part(held["train_images"], held["train_labels"]), test, classes, lossy=lossy)
        except (SafetensorError, OSError, KeyError):
            pass  # a damaged cache is no fault of the user's: decode again and overwrite it
    raw = decode()
    arrays: dict[str, NDArray[Any]] = {"train_images": raw.train.inputs, "train_labels": raw.train.labels}
    if raw.test is not None:
        arrays |= {"test_images": raw.test.inputs, "test_labels": raw.test.labels}
    partial = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(arrays, partial, metadata={"lossy": "yes" if raw.lossy else "no"})
        partial.replace(file)
    except (OSError, SafetensorError):
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            partial.unlink(missing_ok=True)
    return raw


def _content_key(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.sha256(_CACHE_VERSION)).hexdigest()[:32]


def _listing_key(folders: Sequence[Path]) -> str:
    digest = hashlib.sha256(_CACHE_VERSION)
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            stat = file.stat()
            digest.update(f"{file}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise bad_file(folder, f"cannot be listed ({error})", "a folder that can be read") from error


def _folders(place: Path) -> list[Path]:
    return [entry for entry in _listed(place) if entry.is_dir() and not entry.name.startswith(".")]


def _is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES


def _unknown_class(source: Path, label: str, classes: Sequence[str]) -> InputError:
    listed = ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
    return bad_file(
        source, f"holds the class folder {label!r}", f"folders named after the classes {listed}",
        cure="Rename the folder, or declare its class.",
    )  # fmt: skip
