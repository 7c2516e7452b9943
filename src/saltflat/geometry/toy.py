"""Two minima under the noise of privacy: the surface of DP-SAT's Figure 1, and what noise does on it.

Both minima have a loss of zero and differ in width alone, by a factor of five. The paper's formula for the second
one prints the first centre (its appendix C.3); it must be the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLAT, SHARP = (2.5, 2.5), (7.5, 7.5)


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


@dataclass(frozen=True)
class Walks:
    """Noisy descents: where each was after each step, and the loss there (walks x steps + 1)."""

    places: Tensor
    losses: Tensor


def noisy_descent(
    start: tuple[float, float],
    *,
    walks: int = 200,
    steps: int = 60,
    learning_rate: float = 1.0,
    clip_norm: float = 0.5,
    noise_multiplier: float = 1.0,
    seed: int = 0,
) -> Walks:
    """DP-SGD on the surface as if it were the loss of one example: clip, add noise of σC, step.

    The same ``seed`` gives two starts the same noise.
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.tensor(start, dtype=torch.float64).expand(walks, 2).clone()
    places = [place]
    for _ in range(steps):
        gradient = gradients(place)
        factor = (clip_norm / gradient.norm(dim=-1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        noise = torch.randn(walks, 2, generator=generator, dtype=torch.float64)
        place = place - learning_rate * (gradient * factor + noise_multiplier * clip_norm * noise)
        places.append(place)
    along = torch.stack(places, 1)
    return Walks(along, surface(along))


def gradients(w: Tensor) -> Tensor:
    """The gradient of the surface at each point."""
    leaf = w.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(surface(leaf).sum(), leaf)
    return found


def sharpness(w: Tensor) -> Tensor:
    """The largest size of an eigenvalue of the Hessian at each point (points x 2)."""
    hessians: Tensor = torch.func.vmap(torch.func.hessian(surface))(w)
    return torch.linalg.eigvalsh(hessians).abs().amax(-1)


def noise_against_sharpness(
    start: tuple[float, float], *, steps: int = 40, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Along a descent: ‖H‖₂, and how far noise turns the next gradient, ‖∇(w − ηg) − ∇(w − ηg̃)‖, mean over 200 draws.

    Reference: Park et al. 2023 (DP-SAT), Theorem 3.2 and Figure 4.
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.tensor(start, dtype=torch.float64)
    norms, turned = [], []
    for _ in range(steps):
        gradient = gradients(place)
        noise = 0.2 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
        clean, noisy = place - 0.1 * gradient, place - 0.1 * (gradient + noise)
        norms.append(sharpness(place[None])[0])
        turned.append((gradients(noisy) - gradients(clean)).norm(dim=-1).mean())
        place = clean
    return torch.stack(norms), torch.stack(turned)
