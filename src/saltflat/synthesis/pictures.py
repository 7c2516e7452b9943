"""Pictures of images: a grid of samples by class, and samples beside their nearest public neighbours."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat.errors import MissingDependencyError
from saltflat.record.atomic import write_whole

_GAP, _MARGIN, _TEXT = 2, 12, 15
_INK, _PAPER, _LINE = (40, 40, 46), (255, 255, 255), (206, 90, 60)


def grid(images: Tensor, labels: Tensor, path: Path, columns: int = 12, title: str = "") -> Path:
    """A row a class, ``columns`` images each, enlarged so that pixels can be seen."""
    rows = [images[labels == label][:columns] for label in labels.unique()]
    names = [str(int(label)) for label in labels.unique()]
    return _draw([list(row) for row in rows], names, path, title, [""] * columns)


def neighbours(samples: Tensor, nearest: Tensor, distances: Tensor, path: Path, title: str = "") -> Path:
    """Two tables side by side: a sample, then the public images nearest to it, with their distances."""
    count = len(samples)
    half = (count + 1) // 2
    many = nearest.shape[1]
    rows: list[list[Tensor | None]] = []
    notes: list[list[str]] = []
    for left in range(half):
        row: list[Tensor | None] = []
        note: list[str] = []
        for index in (left, left + half):
            if index < count:
                row += [samples[index], *nearest[index], None]
                note += ["sample", *(f"{float(d):.2f}" for d in distances[index]), ""]
        rows.append(row[:-1])
        notes.append(note[:-1])
    heading = (["sample"] + ["nearest public"] + [""] * many) * 2
    return _draw(rows, [""] * half, path, title, heading[: len(rows[0])], notes)


def _draw(
    rows: Any,
    names: list[str],
    path: Path,
    title: str,
    heading: list[str],
    notes: list[list[str]] | None = None,
) -> Path:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingDependencyError("pillow", "drawing pictures", "images") from error
    height, width = next(i for row in rows for i in row if i is not None).shape[-2:]
    zoom = max(1, round(52 / max(height, width)))
    tall, wide = height * zoom, width * zoom
    below = _TEXT if notes else 0
    left = _MARGIN + (18 if any(names) else 0)
    top = _MARGIN + (_TEXT + 7 if title else 0) + (_TEXT + 2 if any(heading) else 0)
    across = max(len(row) for row in rows)
    font, small = ImageFont.load_default(14), ImageFont.load_default(11)
    right = left + across * (wide + _GAP) + _MARGIN
    if title:
        right = max(right, 2 * _MARGIN + int(font.getlength(title)))
    page = Image.new("RGB", (right, top + len(rows) * (tall + _GAP + below) + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(page)
    if title:
        pen.text((_MARGIN, _MARGIN - 3), title, fill=_INK, font=font)
    for column, words in enumerate(heading):
        if words:
            pen.text((left + column * (wide + _GAP), top - _TEXT - 1), words, fill=_INK, font=small)
    for number, row in enumerate(rows):
        y = top + number * (tall + _GAP + below)
        if names[number]:
            pen.text((_MARGIN, y + tall // 2 - 9), names[number], fill=_INK, font=font)
        for column, image in enumerate(row):
            if image is None:
                continue
            x = left + column * (wide + _GAP)
            page.paste(Image.fromarray(_pixels(image)).resize((wide, tall), Image.Resampling.NEAREST), (x, y))
            if notes and notes[number][column] == "sample":
                pen.rectangle((x - 1, y - 1, x + wide, y + tall), outline=_LINE, width=2)
            elif notes:
                pen.text((x + 1, y + tall), notes[number][column], fill=_INK, font=small)
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())
    return path


def _pixels(image: Tensor) -> NDArray[np.uint8]:
    """C x H x W in [0, 1] to H x W (x 3) bytes."""
    array = (image.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0))
