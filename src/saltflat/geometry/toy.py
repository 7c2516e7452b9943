"""Two minima under the noise of privacy: the surface of DP-SAT's Figure 1, what noise does on it, and pictures.

Both minima have a loss of zero and differ in width alone, by a factor of five. The paper's formula for the second
one prints the first centre (its appendix C.3); it must be the second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saltflat.geometry.pictures import COLOURS, GREY, INK, pyplot

FLAT, SHARP = (2.5, 2.5), (7.5, 7.5)
WALKS, STEPS = 200, 60
CLIP_NORM = 0.5  # also the deviation of the noise: the noise multiplier and the learning rate are 1


def surface(w: Tensor) -> Tensor:
    """The loss at points of the plane (... x 2).

    Reference: Park et al. 2023 (DP-SAT), appendix C.3, after Wang et al. 2021 (DPlis).

    >>> at = surface(torch.tensor([FLAT, SHARP, (5.0, 5.0)]))
    >>> bool(at[0] < 1e-3), bool(at[1] < 1e-3), bool(at[2] > 0.3)
    (True, True, True)
    """
    near_flat, near_sharp = (_distance(w, centre) for centre in (FLAT, SHARP))
    wide = torch.sigmoid(near_flat / 5 - 5 / near_flat)
    narrow = torch.sigmoid(near_sharp - 1 / near_sharp)
    share = torch.sigmoid(near_sharp - near_flat)  # e^-a / (e^-a + e^-b)
    return wide * share + narrow * (1 - share)


def _distance(w: Tensor, centre: tuple[float, float]) -> Tensor:
    return (w - w.new_tensor(centre)).square().sum(-1).add(1e-8).sqrt()


def noisy_descent(start: tuple[float, float]) -> Tensor:
    """DP-SGD on the surface as if it were the loss of one example: clip, add noise of σC, step.

    Returns where each walk was after each step (walks x steps + 1 x 2). Every start has the same noise.
    """
    generator = torch.Generator().manual_seed(0)
    place = torch.tensor(start, dtype=torch.float64).expand(WALKS, 2).clone()
    places = [place]
    for _ in range(STEPS):
        gradient = gradients(place)
        factor = (CLIP_NORM / gradient.norm(dim=-1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        noise = torch.randn(WALKS, 2, generator=generator, dtype=torch.float64)
        place = place - (gradient * factor + CLIP_NORM * noise)
        places.append(place)
    return torch.stack(places, 1)


def gradients(w: Tensor) -> Tensor:
    """The gradient of the surface at each point."""
    leaf = w.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(surface(leaf).sum(), leaf)
    return found


def sharpness(w: Tensor) -> Tensor:
    """The largest size of an eigenvalue of the Hessian at each point (points x 2)."""
    hessians: Tensor = torch.func.vmap(torch.func.hessian(surface))(w)
    return torch.linalg.eigvalsh(hessians).abs().amax(-1)


def noise_against_sharpness(start: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Along a descent: ‖H‖₂, and how far noise turns the next gradient, ‖∇(w − ηg) − ∇(w − ηg̃)‖, mean over 200 draws.

    Reference: Park et al. 2023 (DP-SAT), Theorem 3.2 and Figure 4.
    """
    generator = torch.Generator().manual_seed(0)
    place = torch.tensor(start, dtype=torch.float64)
    norms, turned = [], []
    for _ in range(40):
        gradient = gradients(place)
        noise = 0.2 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
        clean, noisy = place - 0.1 * gradient, place - 0.1 * (gradient + noise)
        norms.append(sharpness(place[None])[0])
        turned.append((gradients(noisy) - gradients(clean)).norm(dim=-1).mean())
        place = clean
    return torch.stack(norms), torch.stack(turned)


SIDES = (("flat minimum", FLAT, COLOURS[0]), ("sharp minimum", SHARP, "#c4573a"))


def draw_toy(folder: Path) -> list[Path]:
    """``two-minima.png`` and ``two-minima-noise.png``. The same seeds each time, so the same pictures."""
    paths = []
    with pyplot() as plt:
        for name, paint in (("two-minima", _two_minima), ("two-minima-noise", _noise)):
            figure = paint(plt)
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=130, metadata={"Software": None})
            plt.close(figure)
            paths.append(path)
    return paths


def _two_minima(plt: Any) -> Any:
    """Left the surface with one walk in each minimum, right what the noise does to the loss over many walks."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 4.9), layout="constrained", gridspec_kw={"width_ratios": (1.15, 1)}
    )
    ticks = torch.linspace(0, 10, 241, dtype=torch.float64)
    plane = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    levels = [step / 20 for step in range(22)]
    filled = left.contourf(ticks, ticks, surface(plane), levels, cmap="YlGnBu_r")
    figure.colorbar(filled, ax=left, label="loss", ticks=levels[::4], format="%.1f")
    for name, centre, colour in SIDES:
        walks = noisy_descent(centre)
        left.plot(*walks[0].T, color="white", linewidth=2.6)
        left.plot(*walks[0].T, color=colour, linewidth=1.4, label=f"DP-SGD from the {name}")
        left.plot(*centre, marker="*", markersize=15, color=colour, markeredgecolor="white", linestyle="none")
        steps = range(STEPS + 1)
        shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        low, middle, high = torch.quantile(surface(walks), shares, 0)
        label = f"{name}: median and four fifths of {WALKS} runs"
        right.plot(steps, middle, color=colour, linewidth=2.2, label=label)
        right.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    left.set(xlim=(0, 10), ylim=(0, 10), aspect="equal", xlabel="first weight", ylabel="second weight")
    left.set_title("two minima, equally deep")
    left.legend(
        loc="upper left", fontsize=9, frameon=True, facecolor="white", framealpha=0.9, edgecolor="none"
    )
    right.set(xlabel="noisy step", ylabel="loss", ylim=(0, 1.2), xlim=(0, STEPS))
    right.set_title("the same noise in every step")
    right.legend(loc="upper left", fontsize=9)
    right.grid(alpha=0.25)
    title = "Salt and flat: a flat minimum survives the noise that privacy needs"
    figure.suptitle(title, fontsize=13, weight="bold", color=INK)
    return figure


def _noise(plt: Any) -> Any:
    """Sharpness along a descent, and how far noise turns the next gradient (DP-SAT's Figure 4)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharex=True)
    for name, centre, colour in SIDES:
        away = 1.2 / 2**0.5
        start = (centre[0] - away, centre[1] + away)
        norms, turned = noise_against_sharpness(start)
        steps = range(1, len(norms) + 1)
        left.plot(steps, norms, color=colour, linewidth=2, label=name)
        right.plot(steps, turned, color=colour, linewidth=2, label=name)
    left.set(xlabel="step", ylabel="‖H‖₂", title="sharpness on the way down")
    right.set(xlabel="step", ylabel="‖∇(w − ηg) − ∇(w − ηg̃)‖", title="how far noise turns the next gradient")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25, color=GREY)
        axes.legend(fontsize=9)
    return figure
