"""What few public points do to samples made from them, in a plane where one can look: dense regions are matched or
overstated, sparse ones forgotten. Section 4.1 and appendix D.1 of the public-data paper, and its picture.

    python benchmarks/public/spiral.py          seconds, into ./spiral.png
    python benchmarks/public/spiral.py 8000     the picture of docs/public.md
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.shared_rows import declared
from saltflat.data.source import Examples

SIZES, COLOURS = (100, 250, 2500), ("#0072b2", "#d55e00")
TURNS = 1.25
WIDTH = 0.035
STEPS = 20
UNITS = 64
SCALE = 2.2  # brings the points to about unit variance, from which diffusion starts
RATE = 5e-3


def spiral(points: int, seed: int = 0) -> Examples:
    """Points on two arms whose radius grows with the angle; the density falls linearly from the centre outwards."""
    generator = torch.Generator().manual_seed(seed)
    along = 1 - (1 - torch.rand(points, generator=generator)).sqrt()  # density 2 (1 - along)
    arm = torch.arange(points) % 2
    angle = 2 * torch.pi * TURNS * along + torch.pi * arm
    radius = 0.15 + along
    middle = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    noise = WIDTH * torch.randn(points, 2, generator=generator)
    return declared((middle + noise, arm), by="their maker", name="spiral")


def share_along(points: Tensor, bins: int = 6) -> Tensor:
    """The share of the points in each of ``bins`` stretches from the centre outwards."""
    along = (torch.linalg.vector_norm(points, dim=1) - 0.15).clamp(0, 1 - 1e-6)
    return torch.bincount((along * bins).long(), minlength=bins).double() / len(points)


@dataclass
class ToyDiffusion:
    """Predicts the noise in a point at one of ``STEPS`` noise levels: two blocks of 64 units."""

    network: nn.Module
    kept: Tensor  # the share of the signal that is left after each step

    def predicted(self, points: Tensor, step: Tensor, labels: Tensor) -> Tensor:
        """The noise that the network sees in points of these classes."""
        level = self.kept[step][:, None]
        clock = torch.cat([level.sqrt(), (1 - level).sqrt(), (1 - level).log() / 3], dim=1)
        sides = nn.functional.one_hot(labels, 2).to(points)
        waves = [wave for k in (1, 2, 4) for wave in ((k * points).sin(), (k * points).cos())]
        return self.network(torch.cat([points, *waves, clock, sides], dim=1))

    @torch.no_grad()
    def sample(self, labels: Tensor, seed: int = 0) -> Tensor:
        """Points of these classes, from pure noise, one step after the other."""
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(len(labels), 2, generator=generator)
        for step in reversed(range(STEPS)):
            before = self.kept[step - 1] if step else torch.ones(())
            factor = self.kept[step] / before
            noise = self.predicted(points, torch.full((len(labels),), step), labels)
            points = (points - (1 - factor) / (1 - self.kept[step]).sqrt() * noise) / factor.sqrt()
            if step:
                spread = ((1 - before) / (1 - self.kept[step]) * (1 - factor)).sqrt()
                points = points + spread * torch.randn(points.shape, generator=generator)
        return points / SCALE


def toy_diffusion(rows: Examples, steps: int = 2000, seed: int = 0) -> ToyDiffusion:
    """A diffusion model (Ho et al. 2020) of public points in a plane, trained by Adam.

    The rate falls from 0.005 to zero as a cosine; the paper's is 0.001 throughout, over ten thousand steps.
    """
    points: Tensor = rows.inputs * SCALE
    labels = rows.targets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(19, UNITS), nn.SiLU(), nn.Linear(UNITS, UNITS), nn.SiLU(), nn.Linear(UNITS, UNITS), nn.SiLU(),
            nn.Linear(UNITS, 2),
        )  # fmt: skip
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.4, STEPS), 0)
    made, generator = ToyDiffusion(network, kept), torch.Generator().manual_seed(seed)
    optimizer: Any = torch.optim.Adam(network.parameters(), lr=RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        some = torch.randint(len(points), (min(256, 4 * len(points)),), generator=generator)
        level = torch.randint(STEPS, (len(some),), generator=generator)
        noise = torch.randn(len(some), 2, generator=generator)
        share = kept[level][:, None]
        noised = share.sqrt() * points[some] + (1 - share).sqrt() * noise
        loss = (made.predicted(noised, level, labels[some]) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made


def draw(steps: int) -> None:
    """Train on few and on many public points, and put the samples side by side into ``spiral.png``."""
    import matplotlib
    from sklearn.svm import SVC

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    test = spiral(4000, seed=1)
    side = torch.linspace(-1.35, 1.35, 160)
    grid = torch.cartesian_prod(side, side)
    places = [(i + 0.5) / 6 for i in range(6)]
    figure, panels = plt.subplots(1, 4, figsize=(15, 3.9), layout="constrained")
    panels[3].plot(places, share_along(test.inputs), "k-o", label="truth")
    for size, panel, style in zip(SIZES, panels, (":", "--", "-.")):
        public = spiral(size)
        labels = torch.arange(1000) % 2
        made = toy_diffusion(public, steps).sample(labels)
        boundary = SVC(kernel="rbf", C=1000).fit(made.numpy(), labels.numpy())
        accuracy = boundary.score(test.inputs.numpy(), test.targets.numpy())
        outside = float(share_along(made)[4:].sum() / share_along(test.inputs)[4:].sum())
        print(
            f"{size:>5} public points: accuracy {accuracy:.1%}, share of the sparse outside kept {outside:.2f}"
        )
        decided = torch.from_numpy(boundary.predict(grid.numpy())).view(160, 160)
        panel.contourf(side, side, decided.T, levels=[-0.5, 0.5, 1.5], colors=COLOURS, alpha=0.18)
        for label, colour in enumerate(COLOURS):
            panel.scatter(*made[labels == label].T, s=4, c=colour, label=f"samples, class {label}")
        panel.scatter(
            *public.inputs[:250].T, s=9, c="black", marker="x", lw=0.7, label="public points (250 shown)"
        )
        panel.set(
            title=f"{size} public points: accuracy {accuracy:.1%}", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35)
        )
        panel.set(aspect="equal", xticks=[], yticks=[])
        panels[3].plot(places, share_along(made), style, marker=".", label=f"samples of {size}")
    panels[3].set(xlabel="from the centre outwards", ylabel="share of points", title="Where the samples lie")
    panels[3].legend()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    figure.savefig("spiral.png", dpi=110)
    print("picture in spiral.png")


if __name__ == "__main__":
    draw(int(sys.argv[1]) if len(sys.argv) > 1 else 1500)
