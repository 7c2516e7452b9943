"""A small vision transformer, in which every parameter lives in a layer that sees the batch first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saltflat.errors import InputError
from saltflat.models.layers import Normalise
from saltflat.models.registry import check_counts, register

PAPER = "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021"


class Attention(nn.Module):
    """Multi-head self-attention from two linear layers.

    The product is written out: the fused kernels have no second derivative, which curvature needs.

    >>> Attention(12, heads=3)(torch.zeros(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        split = self.query_key_value(tokens).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        return self.output((weights @ value).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and beside a skip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        attended: Tensor = tokens + self.attend(tokens)
        return attended + self.think(attended)


class Tokens(nn.Module):
    """Patches as a sequence behind a class token, with learned positions added.

    Class token and positions are embeddings that are looked up once an example, not bare parameters:
    per-example gradients then follow from the rule for embeddings.

    >>> Tokens(in_channels=3, image_size=8, patch=4, width=6)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 5, 6])
    """

    def __init__(self, in_channels: int, image_size: int, patch: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(in_channels, width, patch, stride=patch)
        self.class_token = nn.Embedding(1, width)
        self.positions = nn.Embedding(1 + (image_size // patch) ** 2, width)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        index = torch.arange(self.positions.num_embeddings, device=images.device).expand(len(images), -1)
        return torch.cat([self.class_token(index[:, :1]), patches], dim=1) + self.positions(index)


class VisionTransformer(nn.Module):
    """Tokens, blocks, a last LayerNorm, and a linear layer on the class token."""

    def __init__(self, tokens: nn.Module, blocks: list[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.tokens, self.blocks = tokens, nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(images))[:, 0]))


@register(
    "vit-tiny", "small vision transformer for 32×32 images", input_shape=(3, 32, 32), parameters=2_693_578,
    paper=PAPER,
)  # fmt: skip
def vit_tiny(
    *,
    classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    patch: int = 4,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    normalisation: str = "auto",
) -> nn.Module:
    """Patches of 4×4, width 192, depth 6, 3 heads, GELU, norm first, no dropout."""
    check_counts(
        classes=classes, in_channels=in_channels, image_size=image_size,
        patch=patch, width=width, depth=depth, heads=heads,
    )  # fmt: skip
    if image_size % patch:
        raise InputError(
            "patch", patch, f"a divisor of image_size={image_size}", problem="does not tile the image"
        )
    if width % heads:
        raise InputError("heads", heads, f"a divisor of width={width}", problem="does not divide the width")
    tokens = nn.Sequential(
        Normalise(normalisation, in_channels), Tokens(in_channels, image_size, patch, width)
    )
    model = VisionTransformer(tokens, [Block(width, heads) for _ in range(depth)], width, classes)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return model
