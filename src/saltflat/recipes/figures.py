"""Drawings of things that do not exist: random figures, bent and painted anew at every drawing.

They stand in for data where none may be looked at. A class is one figure, with its lines, its body and its texture;
two drawings of it differ as two pictures of one thing do. What differs between them is what a classifier of anything
should overlook, and no image of anybody is needed to learn it. The idea of learning from drawn noise is that of
Baradad et al., Learning to See by Looking at Noise, NeurIPS 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

# Part of every cache key that drawings go into. Raise it whenever they change.
VERSION = 1
CANVAS = 48  # the side of a figure before it is bent
FAR = 9.0


@dataclass(frozen=True)
class Figures:
    """So many classes of figures, in ``colours`` colours. ``filled`` is the share of those that have a body.

    >>> figures = Figures.drawn(classes=3, colours=1, seed=5)
    >>> figures.images(torch.tensor([0, 0, 2]), 28, torch.Generator().manual_seed(1)).shape
    torch.Size([3, 1, 28, 28])
    """

    colours: int
    distances: (
        Tensor  # classes × 2 × CANVAS × CANVAS: to the edge of the body, negative inside; to the nearest line
    )
    has_body: Tensor
    has_lines: Tensor
    waves: Tensor  # classes × (strength, frequency, angle) of a texture
    checked: Tensor
    shading: Tensor  # classes × 2: how brightness rises across the body
    paint: Tensor  # classes × (body, ground) × 3

    @classmethod
    def drawn(cls, classes: int, colours: int, filled: float = 0.5, seed: int = 1) -> Figures:
        """The classes that a seed stands for."""
        chance = Generator().manual_seed(seed)
        has_body = _uniform(chance, classes) < filled
        distances = torch.stack([_distances(chance, bool(body)) for body in has_body])
        textured = _uniform(chance, classes) < 0.6
        strength = torch.where(textured, 0.2 + 0.6 * _uniform(chance, classes), torch.zeros(()))
        frequency = 4 + 26 * _uniform(chance, classes) ** 1.5
        return cls(
            colours,
            distances,
            has_body.float(),
            (~has_body | (_uniform(chance, classes) < 0.5)).float(),
            torch.stack([strength, frequency, math.pi * _uniform(chance, classes)], 1),
            _uniform(chance, classes) < 0.35,
            0.5 * _normal(chance, classes, 2),
            _uniform(chance, classes, 2, 3),
        )

    def images(self, which: Tensor, side: int, chance: Generator) -> Tensor:
        """A drawing of each class in ``which``, N × colours × side × side in [0, 1]: never the same twice."""
        count = len(which)

        def each(tensor: Tensor) -> Tensor:
            return tensor.view(count, 1, 1)

        def uniform() -> Tensor:
            return _uniform(chance, count, 1, 1)

        places = _bent(count, side, chance)
        body, line = F.grid_sample(
            self.distances[which], places, padding_mode="border", align_corners=False
        ).unbind(1)
        blur = (0.48 + 0.72 * uniform()) / side
        inside = torch.sigmoid(-body / blur) * each(self.has_body[which])
        width = 0.03 + 0.12 * uniform()
        lines = torch.sigmoid((width - line) / blur) * each(self.has_lines[which])
        shade = 1 + 0.5 * self._texture(which, places, chance) + 0.4 * self._shading(which, places, chance)
        if self.colours == 1:
            light = inside * (0.35 + 0.6 * uniform()) * shade
            # lines alone are bright; on a body they are of any brightness, and end with it
            alone = each(self.has_body[which]) == 0
            ink = torch.where(alone, 0.7 + 0.3 * uniform(), uniform())
            lines = lines * torch.where(alone, torch.ones(()), inside)
            grain = 0.05 * uniform() * inside * _normal(chance, count, side, side)
            return (light * (1 - lines) + ink * lines + grain).clamp(0, 1).unsqueeze(1)
        return self._coloured(which, inside.unsqueeze(1), lines.unsqueeze(1), shade.unsqueeze(1), chance)

    def _texture(self, which: Tensor, places: Tensor, chance: Generator) -> Tensor:
        """Stripes or checks that bend with the body, N × side × side."""
        strength, frequency, angle = self.waves[which].view(-1, 3, 1, 1).unbind(1)
        x, y = places.unbind(-1)
        phases = 2 * math.pi * _uniform(chance, 2, len(which), 1, 1)
        along = (frequency * (x * angle.cos() + y * angle.sin()) + phases[0]).sin()
        across = (frequency * (y * angle.cos() - x * angle.sin()) + phases[1]).sin()
        waves = torch.where(self.checked[which].view(-1, 1, 1), along * across, along)
        return waves * strength * (0.5 + _uniform(chance, len(which), 1, 1))

    def _shading(self, which: Tensor, places: Tensor, chance: Generator) -> Tensor:
        slope = self.shading[which] + 0.2 * _normal(chance, len(which), 2)
        return torch.einsum("nhwk,nk->nhw", places, slope)

    def _coloured(
        self, which: Tensor, inside: Tensor, lines: Tensor, shade: Tensor, chance: Generator
    ) -> Tensor:
        """In colours that a class holds loosely, before an uneven ground, under any light."""
        count, side = len(which), inside.shape[-1]

        def uniform() -> Tensor:
            return _uniform(chance, count, 1, 1, 1)

        def rough(colours: int, cells: int) -> Tensor:
            field = _normal(chance, count, colours, cells, cells)
            spread = F.interpolate(field, size=side, mode="bicubic", align_corners=True)
            return 0.15 * uniform() * spread

        held = torch.tensor([0.4, 0.2, 0.0]).view(3, 1)
        own = torch.cat([self.paint[which], torch.zeros(count, 1, 3)], 1)
        paint = held * own + (1 - held) * _uniform(chance, count, 3, 3)
        grey = paint.mean(2, keepdim=True)
        body, ground, ink = (grey + 0.5 * (paint - grey)).unsqueeze(-1).unsqueeze(-1).unbind(1)
        images = ground + rough(3, 4) + rough(1, 12)
        images = images * (1 - inside) + body * shade * inside
        images = images * (1 - lines) + ink * lines
        images = images + 0.04 * uniform() * _normal(chance, count, 3, side, side)
        light, contrast = 0.15 * _normal(chance, count, 1, 1, 1), 0.6 + 0.6 * uniform()
        return ((images - 0.5) * contrast + 0.5 + light).clamp(0, 1)


def _uniform(chance: Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=chance)


def _normal(chance: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=chance)


def _places(side: int) -> Tensor:
    """Middles of pixels as (x, y) in [-1, 1], side × side × 2."""
    middles = (torch.arange(side) + 0.5) / side * 2 - 1
    y, x = torch.meshgrid(middles, middles, indexing="ij")
    return torch.stack([x, y], -1)


def _bent(count: int, side: int, chance: Generator) -> Tensor:
    """Where each pixel of a drawing lies on its figure: turned, stretched, slanted, moved and bent at random."""
    angle, slant = 0.2 * _normal(chance, 2, count)
    across, along = 1.05 * (0.15 * _normal(chance, 2, count)).exp()
    turned = torch.stack(
        [angle.cos() * across, slant - angle.sin() * along, angle.sin() * across, angle.cos() * along], 1
    )
    places = torch.einsum("nij,hwj->nhwi", turned.view(count, 2, 2), _places(side))
    bend = F.interpolate(_normal(chance, count, 2, 5, 5), size=side, mode="bicubic", align_corners=True)
    return places + 0.1 * _normal(chance, count, 1, 1, 2) + 0.07 * bend.permute(0, 2, 3, 1)


def _distances(chance: Generator, has_body: bool) -> Tensor:
    """Of every pixel of the canvas: to the edge of one random body, and to its lines."""
    pixels = _places(CANVAS).view(-1, 2)
    lines = torch.cdist(pixels, _lines(chance, has_body)).amin(1)
    body = torch.full((len(pixels),), FAR)
    symmetric = bool(_uniform(chance, 1) < 0.5)
    for part in range(int(torch.randint(1, 5, (1,), generator=chance))):
        body = torch.minimum(body, _part(chance, pixels, first=part == 0, symmetric=symmetric))
    return torch.stack([body, lines]).view(2, CANVAS, CANVAS)


def _lines(chance: Generator, has_body: bool) -> Tensor:
    """Points on one to four strokes, often joined, and now and then on a ring; k × 2."""
    count = int(torch.randint(1, 5, (1,), generator=chance))
    ends = 1.5 * (_uniform(chance, count + 1, 2) - 0.5)
    joined = bool(_uniform(chance, 1) < 0.6)
    start, stop = ends[:-1], ends[1:] if joined else 1.5 * (_uniform(chance, count, 2) - 0.5)
    curl = 0.25 if bool(_uniform(chance, 1) < 0.7) else 0.6
    pulls = [start + share * (stop - start) + curl * _normal(chance, count, 2) for share in (1 / 3, 2 / 3)]
    strokes = _curves(torch.stack([start, *pulls, stop], 1).clamp(-0.85, 0.85))
    if bool(_uniform(chance, 1) >= 0.3):
        return strokes
    around = torch.linspace(0, 2 * math.pi, 40)
    radii = 0.2 + 0.4 * _uniform(chance, 2)
    ring = torch.stack([radii[0] * around.cos(), radii[1] * around.sin()], 1)
    ring = ring + 0.8 * (_uniform(chance, 1, 2) - 0.5)
    return torch.cat([strokes, ring]) if has_body or bool(_uniform(chance, 1) < 0.5) else ring


def _curves(pulls: Tensor, points: int = 24) -> Tensor:
    """Points on cubic Bézier curves, k × 4 × 2 to k·points × 2."""
    t = torch.linspace(0, 1, points).view(-1, 1)
    shares = torch.cat([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3], 1)
    return (shares @ pulls).reshape(-1, 2)


def _part(chance: Generator, pixels: Tensor, *, first: bool, symmetric: bool) -> Tensor:
    """Signed distances to a box or a blob, and to its mirror image where the body is symmetric."""
    centre = torch.zeros(2) if first else 1.1 * (_uniform(chance, 2) - 0.5)
    upright = bool(_uniform(chance, 1) < 0.4)
    angle = math.pi * float(_uniform(chance, 1) - 0.5) * (0.1 if upright else 1.0)
    half = 0.1 + (0.75 if first else 0.45) * _uniform(chance, 2)
    box = bool(_uniform(chance, 1) < 0.5)
    wobble, phases = 0.12 * _normal(chance, 4), 2 * math.pi * _uniform(chance, 4)
    sides = []
    for mirror in (1.0, -1.0) if symmetric else (1.0,):
        x, y = ((pixels - centre * torch.tensor([mirror, 1.0])) * torch.tensor([mirror, 1.0])).unbind(1)
        turned = torch.stack(
            [x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)], 1
        )
        if box:
            beyond = turned.abs() - half
            sides.append(beyond.clamp_min(0).norm(dim=1) + beyond.amax(1).clamp_max(0))
        else:
            around = torch.atan2(turned[:, 1] / half[1], turned[:, 0] / half[0])
            waves = ((torch.arange(2, 6) * around.unsqueeze(1) + phases).cos() * wobble).sum(1)
            sides.append(((turned / half).norm(dim=1) - 1 - waves) * half.min())
    return torch.stack(sides).amin(0)
