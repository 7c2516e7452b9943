"""A small classifier, trained the same way on whatever is compared: it scores samples, and gives features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import check_count
from saltflat.synthesis.augment import Augmentation
from saltflat.synthesis.chance import descend, drawing
from saltflat.synthesis.unet import norm

FEATURES = 64
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
# what a copy of a public image undergoes: every change, each time, none of them large
COPY = Augmentation(probability=1.0, scale=0.1, rotate=0.2, stretch=0.1, shift=0.04)
_INITIAL, _STEP, _COPY = 21, 22, 23  # streams of seeds


class SmallClassifier(nn.Module):
    """Three convolutions with pooling, a layer of 64 features, and one of classes. Fits images from 8 x 8 on.

    >>> SmallClassifier(1, 8, 8, 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for wide in (24, 48, 64):
            layers += [nn.Conv2d(channels, wide, 3, padding=1, bias=False), norm(wide), nn.ReLU()]
            if min(height, width) >= 4:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            channels = wide
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.features = nn.Linear(channels * height * width, FEATURES)
        self.out = nn.Linear(FEATURES, classes)

    def penultimate(self, images: Tensor) -> Tensor:
        """The features: what the last layer sees."""
        return F.relu(self.features(self.body((images - 0.5) * 2)))

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.penultimate(images))


def train_classifier(
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    steps: int = 1_000,
    augmentation: Augmentation | None = None,
    seed: int = 0,
) -> SmallClassifier:
    """Train on images in [0, 1] by AdamW with a cosine schedule; the same steps whatever the number of images."""
    check_count("classifier_steps", steps)
    _, channels, height, width = images.shape
    with drawing(seed, _INITIAL):
        model = SmallClassifier(channels, height, width, classes)

    def loss_at(step: int) -> Tensor:
        with drawing(seed, _STEP, step):
            rows = torch.randint(len(labels), (BATCH_SIZE,))
            batch = images[rows]
            if augmentation is not None:
                batch, _ = augmentation(batch)
        return F.cross_entropy(model(batch), labels[rows])

    descend(model, loss_at, steps, LEARNING_RATE, weight_decay=0.01)
    return model


@torch.no_grad()
def accuracy(model: SmallClassifier, images: Tensor, labels: Tensor) -> float:
    """The share of images whose class it names."""
    right = [(model(x).argmax(1) == y).sum() for x, y in zip(images.split(500), labels.split(500))]
    return float(torch.stack(right).sum()) / len(labels)


def copies(images: Tensor, labels: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """``count`` augmented copies of the images, each row as often as any other up to one.

    >>> copies(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]), 5)[1].tolist()
    [0, 1, 0, 1, 0]
    """
    rows = torch.arange(count) % len(labels)
    with drawing(seed, _COPY):
        changed = [COPY(images[some])[0] for some in rows.split(1_000)]
    return torch.cat(changed), labels[rows]
