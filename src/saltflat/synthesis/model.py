"""A trained diffusion model as a value: network, scale of the images, and where it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saltflat.errors import InputError
from saltflat.synthesis.chance import drawing
from saltflat.synthesis.precondition import SIGMA_DATA, Denoiser, Guide, heun
from saltflat.synthesis.unet import UNet, check_image, size_by_name

_INITIAL, _SAMPLES = 1, 2  # streams of seeds; those of training steps follow in train.py


@dataclass(frozen=True)
class Frame:
    """What a network must fit: the images' shape, the classes, and the scale of pixels.

    ``centre`` and ``spread`` are mean and standard deviation over all pixels of the public images. EDM takes the data
    to have standard deviation σ_d = 0.5; images are brought there and back.
    """

    size: str
    channels: int
    height: int
    width: int
    classes: int
    centre: float
    spread: float

    @classmethod
    def of(cls, size: str, images: Tensor, classes: int) -> Frame:
        """The frame of public images in [0, 1]."""
        if images.dim() != 4 or not images.is_floating_point():
            raise InputError(
                "public", str(tuple(images.shape)), "images N x C x H x W as numbers in [0, 1]",
                problem="does not hold images", cure="A diffusion model here makes images; tables are not supported.",
            )  # fmt: skip
        check_image(size, images.shape[2], images.shape[3])
        wide = images.double()
        spread = float(wide.std())
        if not torch.isfinite(images).all() or spread == 0:
            raise InputError("public", "its pixels", "finite numbers that are not all equal")
        _, channels, height, width = images.shape
        return cls(size, channels, height, width, classes, float(wide.mean()), spread)

    def scaled(self, images: Tensor) -> Tensor:
        """From [0, 1] to the network's scale."""
        return (images - self.centre) * (SIGMA_DATA / self.spread)

    def unscaled(self, x: Tensor) -> Tensor:
        """From the network's scale to [0, 1], cut off there."""
        return (x * (self.spread / SIGMA_DATA) + self.centre).clamp(0.0, 1.0)

    def build(self, seed: int) -> Denoiser:
        """A fresh denoiser, the same for the same seed."""
        with drawing(seed, _INITIAL):
            network = UNet(size_by_name(self.size), self.channels, self.classes)
        return Denoiser(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class Synthesizer:
    """Makes images of a class out of noise.

    Guarantee: the same seed, labels, batch and machine give the same images, whatever was drawn before.
    """

    denoiser: Denoiser
    frame: Frame
    origin: dict[str, Any]

    @torch.no_grad()
    def images(
        self,
        labels: Tensor,
        *,
        steps: int = 20,
        seed: int = 0,
        guide: Callable[[Tensor], Guide] | None = None,
        weight: float = 0.0,
    ) -> Tensor:
        """One image in [0, 1] for each label. ``guide(labels)`` is a discriminator's, with weight w_d."""
        frame = self.frame
        device = next(self.denoiser.parameters()).device
        with drawing(seed, _SAMPLES):
            noise = torch.randn(len(labels), frame.channels, frame.height, frame.width, dtype=torch.float64)
        labels = labels.to(device)

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            narrow = x.float().contiguous(memory_format=torch.channels_last)
            return self.denoiser(narrow, sigma.float(), labels)

        self.denoiser.eval()
        push = None if guide is None else guide(labels)
        x = heun(denoise, noise.to(device), steps=steps, guide=push, weight=weight)
        return frame.unscaled(x.float()).cpu()


def balanced_labels(count: int, classes: int) -> Tensor:
    """Labels 0, 1, ..., repeated: the same number of each class, up to one.

    >>> balanced_labels(5, 3).tolist()
    [0, 1, 2, 0, 1]
    """
    return torch.arange(count) % classes
