"""Discriminator guidance (Kim et al., ICML 2023): a second network pushes samples to where the data lie.

A discriminator that tells noised public images from noised generated ones, at every noise level, knows the ratio of
their densities: p/(1 - p). The gradient of its logarithm is what the score of the generator lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import InputError, check_count, check_positive
from saltflat.synthesis.augment import CHANGES, Augmentation
from saltflat.synthesis.chance import descend, drawing, stream
from saltflat.synthesis.precondition import SIGMA_MAX, SIGMA_MIN, Guide, scaling
from saltflat.synthesis.unet import Conditioning, Encoder, norm, size_by_name

LIMIT = math.log((1 - 1e-5) / 1e-5)  # p is cut off at 1e-5 and 1 - 1e-5: beyond, there is no push
_INITIAL, _STEP, _SPLIT = 11, 12, 13  # streams of seeds


class Discriminator(nn.Module):
    """log(p/(1-p)) that a noisy image is public and not generated, told the noise level and the class.

    The way down of the generator's own architecture, half as wide, and a mean over places.

    >>> Discriminator("tiny", 1, 10)(torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 1, 1), torch.tensor([0, 1])).shape
    torch.Size([2])
    """

    def __init__(self, size: str, channels: int, classes: int) -> None:
        super().__init__()
        known = size_by_name(size)
        widths = tuple(max(16, width // 2) for width in known.widths)
        half = replace(
            known, widths=widths, blocks=1, dropout=0.1, embedding=known.embedding // 2, first=None
        )
        self.condition = Conditioning(half.entry, half.embedding, classes, CHANGES)
        self.encoder = Encoder(half, channels)
        self.norm = norm(self.encoder.channels)
        self.out = nn.Linear(self.encoder.channels, 1)
        nn.init.zeros_(self.out.weight)  # it begins by knowing nothing, and pushes nowhere

    def forward(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        c = scaling(sigma)
        embedded = self.condition(c.noise.flatten(), labels, None)
        last = self.encoder(c.into * noisy, embedded)[-1]
        return self.out(F.silu(self.norm(last)).mean(dim=(2, 3))).squeeze(1)

    def guide(self, labels: Tensor) -> Guide:
        """∇ₓ log(p/(1-p)) for images of these classes."""
        return gradient_of(lambda x, sigma: self(x, sigma, labels))


def gradient_of(log_ratio: Callable[[Tensor, Tensor], Tensor]) -> Guide:
    """The gradient of a log ratio that is cut off where p would be nearer to 0 or 1 than 1e-5.

    >>> gradient_of(lambda x, sigma: 3 * x.sum(dim=(1, 2, 3)))(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 1))
    tensor([[[[3., 3.]]]])
    """

    def guide(x: Tensor, sigma: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().float().requires_grad_()
            bounded = log_ratio(at, sigma.float()).clamp(-LIMIT, LIMIT)
            (gradient,) = torch.autograd.grad(bounded.sum(), at)
        return gradient

    return guide


@dataclass(frozen=True)
class DiscriminatorSettings:
    """How a discriminator is trained. Noise levels are spread evenly over ln σ: guidance is needed at all of them."""

    steps: int = 1_000
    batch_size: int = 32
    learning_rate: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("discriminator_steps", self.steps)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, least=0)
        check_positive("learning_rate", self.learning_rate)


@dataclass(frozen=True, eq=False)
class Trained:
    """A discriminator, and how often it was right on images that it did not see, at low noise (σ < 0.5)."""

    model: Discriminator
    accuracy: float


def train_discriminator(
    real: tuple[Tensor, Tensor],
    made: tuple[Tensor, Tensor],
    size: str,
    classes: int,
    settings: DiscriminatorSettings | None = None,
    augmentation: Augmentation | None = None,
) -> Trained:
    """Learn to tell public images from generated ones, both on the network's scale, with their labels.

    A tenth of each is held out, to say whether it learned a difference or a list. With ``augmentation`` both are
    changed alike, which helps where public images are few.
    """
    settings = settings or DiscriminatorSettings()
    if min(len(real[0]), len(made[0])) < 10:
        raise InputError(
            "public", len(real[0]), "at least ten images on either side", problem="images are too few"
        )
    (real, real_kept), (made, made_kept) = (_halves(part, settings.seed) for part in (real, made))
    with drawing(settings.seed, _INITIAL):
        model = Discriminator(size, real[0].shape[1], classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    half = settings.batch_size // 2 or 1

    def loss_at(step: int) -> Tensor:
        with drawing(settings.seed, _STEP, step):
            images, labels, truth = _mixed(real, made, half)
            if augmentation is not None:
                images, _ = augmentation(images)
            return F.binary_cross_entropy_with_logits(_told(model, images, labels), truth)

    descend(model, loss_at, settings.steps, settings.learning_rate, weight_decay=1e-3)
    return Trained(model, _accuracy(model, real_kept, made_kept, settings.seed))


def _halves(part: tuple[Tensor, Tensor], seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    images, labels = part
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(stream(seed, _SPLIT)))
    kept, used = order[: max(1, len(order) // 10)], order[max(1, len(order) // 10) :]
    return (images[used], labels[used]), (images[kept], labels[kept])


def _mixed(
    real: tuple[Tensor, Tensor], made: tuple[Tensor, Tensor], half: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows = [torch.randint(len(part[1]), (half,)) for part in (real, made)]
    images = torch.cat([part[0][row] for part, row in zip((real, made), rows)])
    labels = torch.cat([part[1][row] for part, row in zip((real, made), rows)])
    return images, labels, torch.cat([torch.ones(half), torch.zeros(half)])


def _told(model: Discriminator, images: Tensor, labels: Tensor, most: float = SIGMA_MAX) -> Tensor:
    """What it says of images with noise on them, at levels up to ``most`` that are spread evenly over ln σ."""
    low, high = math.log(SIGMA_MIN), math.log(most)
    sigma = (low + (high - low) * torch.rand(len(images), 1, 1, 1)).exp()
    return model(images + sigma * torch.randn_like(images), sigma, labels)


@torch.no_grad()
def _accuracy(
    model: Discriminator, real: tuple[Tensor, Tensor], made: tuple[Tensor, Tensor], seed: int
) -> float:
    with drawing(seed, _SPLIT, 1):
        shares = []
        for (images, labels), sign in ((real, 1.0), (made, -1.0)):
            found = _told(model, images.repeat(4, 1, 1, 1), labels.repeat(4), most=0.5)
            shares.append(float((found * sign > 0).float().mean()))
    return sum(shares) / 2
