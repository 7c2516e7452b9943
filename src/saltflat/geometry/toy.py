"""Two minima under the noise of privacy: the surface of DP-SAT's Figure 1, and what noise does on it.

Both minima have a loss of zero and differ in width alone, by a factor of five. The paper's formula for the second
one prints the first centre (its appendix C.3); it must be the second.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
