"""The class-conditional UNet of EDM ("DDPM++"), in three sizes.

Levels of falling resolution; at each a few residual blocks, some with attention. The way back up sees, at every
block, what the way down saw at the same place. ``patch`` folds squares of pixels into channels before the first
convolution: on a CPU the outermost resolution costs the most and learns the least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import InputError, check_known
from saltflat.synthesis.augment import CHANGES

SKIP = math.sqrt(0.5)  # a sum of two parts of unit variance keeps unit variance


@dataclass(frozen=True)
class Size:
    """What makes a network large or small.

    ``widths`` are channels a level, ``blocks`` residual blocks a level on the way down (one more on the way up),
    ``attention`` the levels with attention.
    """

    widths: tuple[int, ...]
    blocks: int
    attention: tuple[int, ...]
    dropout: float
    embedding: int
    patch: int = 1
    first: int | None = None  # channels after the first convolution, where they differ from the first level's

    @property
    def entry(self) -> int:
        """Channels after the first convolution; also those of the embedded noise level."""
        return self.first or self.widths[0]


SIZES = {
    "full": Size(
        widths=(256, 256, 256), blocks=4, attention=(1,), dropout=0.13, embedding=512, first=128
    ),  # Karras et al. 2022, Table 7: 128 channels, multiplied by [2, 2, 2], attention at 16 x 16 of 32 x 32
    "small": Size(widths=(32, 64), blocks=1, attention=(1,), dropout=0.0, embedding=128, patch=2),
    "tiny": Size(widths=(32, 64), blocks=1, attention=(1,), dropout=0.1, embedding=128),
}


def size_by_name(name: str) -> Size:
    """One of `SIZES`."""
    check_known("size", name, SIZES, "the name of a size")
    return SIZES[name]


def groups(channels: int) -> int:
    """Groups of a group normalisation: at most 32, each of at least four channels.

    >>> groups(256), groups(48)
    (32, 12)
    """
    most = min(32, channels // 4)
    return next(count for count in range(most, 0, -1) if channels % count == 0)


def norm(channels: int) -> nn.GroupNorm:
    """The group normalisation used everywhere here."""
    return nn.GroupNorm(groups(channels), channels, eps=1e-6)


class Block(nn.Module):
    """Two convolutions around an embedding, beside a skip; then attention, if asked for."""

    def __init__(
        self, into: int, out: int, embedding: int, dropout: float, resample: str = "", attention: bool = False
    ) -> None:
        super().__init__()
        self.resample = resample
        self.norm0, self.conv0 = norm(into), nn.Conv2d(into, out, 3, padding=1)
        self.embed = nn.Linear(embedding, out)
        self.norm1, self.conv1 = norm(out), nn.Conv2d(out, out, 3, padding=1)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()  # at 0 it would still draw
        self.skip = nn.Conv2d(into, out, 1) if into != out or resample else nn.Identity()
        self.attention = Attention(out) if attention else nn.Identity()
        _start_at_zero(self.conv1)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        inner = self.conv0(self._resampled(F.silu(self.norm0(x))))
        inner = F.silu(self.norm1(inner + self.embed(embedded)[:, :, None, None]))
        inner = self.conv1(self.dropout(inner))
        return self.attention((inner + self.skip(self._resampled(x))) * SKIP)

    def _resampled(self, x: Tensor) -> Tensor:
        if self.resample == "down":
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2, mode="nearest") if self.resample == "up" else x


class Attention(nn.Module):
    """Every place looks at every other, with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.queries_keys_values = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        _start_at_zero(self.out)

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        flat = self.queries_keys_values(self.norm(x)).flatten(2).transpose(1, 2)
        queries, keys, values = flat.chunk(3, dim=2)
        seen = F.scaled_dot_product_attention(queries, keys, values)
        return (x + self.out(seen.transpose(1, 2).reshape(rows, channels, height, width))) * SKIP


class Conditioning(nn.Module):
    """Noise level, class and augmentation, as one vector an image."""

    def __init__(self, width: int, embedding: int, classes: int, changes: int) -> None:
        super().__init__()
        half = torch.arange(width // 2, dtype=torch.float32) / max(width // 2 - 1, 1)
        self.register_buffer("frequencies", 10_000.0**-half, persistent=False)
        self.classes = classes
        self.label = nn.Linear(classes, width)
        self.changes = nn.Linear(changes, width, bias=False)
        self.hidden, self.out = nn.Linear(width, embedding), nn.Linear(embedding, embedding)

    def forward(self, noise: Tensor, labels: Tensor, changes: Tensor | None) -> Tensor:
        angles = noise.float()[:, None] * self.get_buffer("frequencies")[None]
        embedded = torch.cat([angles.sin(), angles.cos()], dim=1)
        one_hot = F.one_hot(labels, self.classes).to(embedded.dtype)
        embedded = embedded + self.label(one_hot * math.sqrt(self.classes))  # unit variance over classes
        if changes is not None:
            embedded = embedded + self.changes(changes.to(embedded.dtype))
        return F.silu(self.out(F.silu(self.hidden(embedded))))


class Encoder(nn.Module):
    """The way down: returns what every block saw, outermost first."""

    def __init__(self, size: Size, channels: int) -> None:
        super().__init__()
        self.patch = size.patch
        self.enter = nn.Conv2d(channels * size.patch**2, size.entry, 3, padding=1)
        self.blocks = nn.ModuleList()
        self.seen = [size.entry]  # channels of what is returned
        now = size.entry
        for level, width in enumerate(size.widths):
            if level:
                self._add(Block(now, now, size.embedding, size.dropout, resample="down"), now)
            for _ in range(size.blocks):
                attention = level in size.attention
                self._add(Block(now, width, size.embedding, size.dropout, attention=attention), width)
                now = width
        self.channels = now

    def _add(self, block: Block, channels: int) -> None:
        self.blocks.append(block)
        self.seen.append(channels)

    def forward(self, x: Tensor, embedded: Tensor) -> list[Tensor]:
        seen = [self.enter(F.pixel_unshuffle(x, self.patch) if self.patch > 1 else x)]
        for block in self.blocks:
            seen.append(block(seen[-1], embedded))
        return seen


class UNet(nn.Module):
    """F of EDM: noisy images in, images out, told the noise level, the class and the augmentation.

    Reference: Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, NeurIPS 2022.

    >>> network = UNet(SIZES["tiny"], channels=1, classes=10)
    >>> network(torch.zeros(2, 1, 8, 8), torch.zeros(2), torch.tensor([3, 7])).shape
    torch.Size([2, 1, 8, 8])
    """

    def __init__(self, size: Size, channels: int, classes: int) -> None:
        super().__init__()
        self.size = size
        self.condition = Conditioning(size.entry, size.embedding, classes, CHANGES)
        self.encoder = Encoder(size, channels)
        now, waiting = self.encoder.channels, list(self.encoder.seen)
        self.middle = nn.ModuleList(
            Block(now, now, size.embedding, size.dropout, attention=attention) for attention in (True, False)
        )
        self.decoder = nn.ModuleList()
        for level in reversed(range(len(size.widths))):
            if level < len(size.widths) - 1:
                width = size.widths[level]  # narrow before the finer, dearer resolution
                self.decoder.append(Block(now, width, size.embedding, size.dropout, resample="up"))
                now = width
            for index in range(size.blocks + 1):
                attention = level in size.attention and index == size.blocks
                wide, width = now + waiting.pop(), size.widths[level]
                self.decoder.append(Block(wide, width, size.embedding, size.dropout, attention=attention))
                now = width
        self.leave_norm = norm(now)
        self.leave = nn.Conv2d(now, channels * size.patch**2, 3, padding=1)
        _start_at_zero(self.leave)

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, changes: Tensor | None = None) -> Tensor:
        embedded = self.condition(noise, labels, changes)
        seen = self.encoder(x, embedded)
        inner = seen[-1]
        for block in self.middle:
            inner = block(inner, embedded)
        for block in self.decoder:
            if block.resample != "up":
                inner = torch.cat([inner, seen.pop()], dim=1)
            inner = block(inner, embedded)
        out = self.leave(F.silu(self.leave_norm(inner)))
        return F.pixel_shuffle(out, self.size.patch) if self.size.patch > 1 else out


def check_image(size: str, height: int, width: int) -> None:
    """Refuse images whose sides the levels cannot halve."""
    chosen = size_by_name(size)
    step = chosen.patch * 2 ** (len(chosen.widths) - 1)
    if height % step or width % step:
        raise InputError(
            "public", f"images of {height} x {width}", f"sides that are multiples of {step}, for size {size!r}",
            problem="does not fit the network",
            cure=f"Resize the images to multiples of {step} (image_size of saltflat.data.load, for folders), "
            "or take another size.",
        )  # fmt: skip


def _start_at_zero(layer: nn.Conv2d) -> None:
    """A block begins as its skip: the signal reaches both ends of a deep network from the first step on."""
    nn.init.normal_(layer.weight, std=1e-5 / math.sqrt(layer.in_channels))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
