"""Fixed features that were tried, by name: images of a data set's training rows in, rows of length one out.

Names read from left to right: ``scatter2-root-groups-flip`` is scattering with J = 2, square roots, group norm, and
the mean with the features of the mirrored image. What won is in `saltflat.recipes.features`, as code for users.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from saltflat.data import load
from saltflat.models import Scattering2d

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "recipes"
LUMA_AND_CHROMA = torch.tensor([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])
OTHER = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}


@lru_cache(2)
def training_rows(data: str, data_dir: str | None) -> tuple[Tensor, Tensor]:
    """Images, colours as luma and chroma, and labels. The test rows are not kept."""
    rows = load(data, data_dir=data_dir).train
    images: Tensor = rows.inputs
    if images.shape[1] == 3:
        images = torch.einsum("kc,nchw->nkhw", LUMA_AND_CHROMA, images)
    return images, rows.targets


@torch.no_grad()
def scattering(data: str, data_dir: str | None, J: int, mirrored: bool = False) -> Tensor:
    """Coefficients N × colours × maps × places, computed once."""
    file = CACHE / f"{data}-J{J}{'-mirrored' if mirrored else ''}.npy"
    if not file.exists():
        images, _ = training_rows(data, data_dir)
        transform = Scattering2d(images.shape[-1], J)
        some = (images.flip(3) if mirrored else images).split(256)
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(file, torch.cat([transform(part) for part in some]).numpy())
    return torch.from_numpy(np.load(file))


def features(data: str, family: str, data_dir: str | None) -> Tensor:
    """The rows of a family."""
    words = family.split("-")
    parts = []
    for word in words[0].split("+"):  # scatter2+scatter3: several scales, each of length one
        J = int(word.removeprefix("scatter"))
        made = _made(scattering(data, data_dir, J), words, data, data_dir, J)
        if "flip" in words:
            mirrored = _made(scattering(data, data_dir, J, mirrored=True), words, data, data_dir, J)
            made = made.add_(mirrored).div_(2)
        parts.append(_unit(made))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1) / len(parts) ** 0.5


def _made(coefficients: Tensor, words: list[str], data: str, data_dir: str | None, J: int) -> Tensor:
    def squeezed(c: Tensor) -> Tensor:
        c = c.sign() * c.abs().sqrt() if "root" in words else c  # chroma has a sign
        return F.group_norm(c, 27) if "groups" in words else c

    centre, scale = 0.0, 1.0
    for word in words:
        who = {"own": data, "other": OTHER.get(data)}.get(
            word.partition("_")[0]
        )  # own: what knowing the mean gives
        if who is None:
            continue
        known = squeezed(scattering(who, data_dir, J)[:20_000])
        over = {"maps": (0, 2, 3), "places": (0,), "mean": (0,)}[word.partition("_")[2]]
        centre = known.mean(over, keepdim=True)
        if not word.endswith("mean"):
            scale = known.std(over, keepdim=True)
            scale = scale + 0.1 * scale.mean()
    out = torch.empty(len(coefficients), coefficients[0].numel())
    for start in range(0, len(out), 4096):
        part = coefficients[start : start + 4096]
        out[start : start + 4096] = _unit(((squeezed(part) - centre) / scale).flatten(1))
    return out


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)
