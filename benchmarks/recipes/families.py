"""Fixed features that were tried, by name: images of a data set's training rows in, rows of length one out.

Names read from left to right: ``scatter2-root-groups-flip`` is scattering with J = 2, square roots, group norm, and
the mean with the features of the mirrored image. ``scatter2-groups-figures-floor0.3`` are seen by a metric that was
learned on drawn figures. ``scatter2-groups-patches256`` has answers of 256 patches of drawings beside them, each of
the two with half of the square of the length. What won is in `saltflat.recipes`, as code for users.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from saltflat.data import load
from saltflat.data.files import cache_dir
from saltflat.models import Scattering2d
from saltflat.recipes.features import Features
from saltflat.recipes.metric import Metric
from saltflat.recipes.patches import Patches
from saltflat.recipes.rows import LENGTH

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "recipes"
LUMA_AND_CHROMA = torch.tensor([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])
OTHER = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}


@lru_cache(2)
def training_rows(data: str, data_dir: str | None) -> tuple[Tensor, Tensor]:
    """Images, colours as luma and chroma, and labels. The test rows are not kept."""
    images, labels = coloured_rows(data, data_dir)
    if images.shape[1] == 3:
        images = torch.einsum("kc,nchw->nkhw", LUMA_AND_CHROMA, images)
    return images, labels


def coloured_rows(data: str, data_dir: str | None) -> tuple[Tensor, Tensor]:
    """Images in their own colours, and labels. ``cifar10-grey`` judges recipes for grey images of 28 × 28."""
    rows = load(data.removesuffix("-grey"), data_dir=data_dir).train
    images: Tensor = rows.inputs
    if data.endswith("-grey"):
        images = torch.einsum("c,nchw->nhw", LUMA_AND_CHROMA[0], images).unsqueeze(1)[:, :, 2:30, 2:30]
    return images.contiguous(), rows.targets


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


def patches(data: str, data_dir: str | None, filters: int) -> Tensor:
    """Answers of patches of drawings, computed once."""
    file = CACHE / f"{data}-patches{filters}.npy"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(file, Patches(filters=filters)(coloured_rows(data, data_dir)[0]).numpy())
    return torch.from_numpy(np.load(file))


def features(data: str, family: str, data_dir: str | None) -> Tensor:
    """The rows of a family."""
    words = family.split("-")
    if words[-1].startswith("patches"):
        beside = patches(data, data_dir, int(words[-1].removeprefix("patches")))
        return torch.cat([features(data, "-".join(words[:-1]), data_dir), beside], 1).mul_(0.5**0.5)
    if "figures" in words:
        floor = next(float(word.removeprefix("floor")) for word in words if word.startswith("floor"))
        rows, shares = _along_axes(data, data_dir, "flip" in words)
        scales = (floor + (1 - floor) * shares).sqrt().flatten()
        for part in rows.split(4096):
            part.mul_(scales)
            part.div_(part.norm(dim=1, keepdim=True).clamp_min(1e-6))
        return rows
    parts = []
    for word in words[0].split("+"):  # scatter2+scatter3: several scales, each of length one
        J = int(word.removeprefix("scatter"))
        made = _made(scattering(data, data_dir, J), words, data, data_dir, J)
        if "flip" in words:
            mirrored = _made(scattering(data, data_dir, J, mirrored=True), words, data, data_dir, J)
            made = made.add_(mirrored).div_(2)
        parts.append(_unit(made))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1) / len(parts) ** 0.5


@torch.no_grad()
def _along_axes(data: str, data_dir: str | None, mirrored: bool) -> tuple[Tensor, Tensor]:
    """Rows along the metric's axes before their scales, which all floors share; and the axes' shares."""
    file = CACHE / f"{data}-figures{'-mirrored' if mirrored else ''}.npy"
    beside = file.with_suffix(".shares.npy")
    if not beside.exists():
        images, _ = coloured_rows(data, data_dir)
        plain, whole = Features(mirrored=mirrored), Metric(floor=1.0)
        shape = (images.shape[1], images.shape[2], images.shape[3])
        learned = Features(mirrored=mirrored, metric=Metric()).learned(2, shape, cache_dir() / "scattering")
        assert learned is not None
        CACHE.mkdir(parents=True, exist_ok=True)
        width = learned.shape[0] * learned.shape[2]
        rows = np.lib.format.open_memmap(file, "w+", np.float32, (len(images), width))
        for start in range(0, len(images), 1024):
            some = images[start : start + 1024]
            rows[start : start + 1024] = whole.seen(plain(some) / LENGTH, learned).numpy()
        rows.flush()
        np.save(beside, learned[:, -2].numpy())
    return torch.from_numpy(np.load(file)), torch.from_numpy(np.load(beside))


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
