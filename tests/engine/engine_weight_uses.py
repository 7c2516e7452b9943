"""Ways to use weights that people bring: odd operations, weights that are derived, shared, frozen or passed in."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from engine_helpers import Fn, weight
from engine_networks import ROWS, Built, architecture
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from saltflat.models.layers import WeightStandardisedConv2d


@architecture("torch.func on einsum")
def einsum_with_dots() -> Built:
    return Fn(lambda self, x: torch.einsum("...d,dk", x, self.a), a=weight(8, 3)), torch.randn(ROWS, 5, 8)


@architecture("example by example")
def mixture_in_another_dimension() -> Built:
    """The batch is the second dimension for a moment: right, if slow, where no layer sees it."""

    def net(self: Any, x: Tensor) -> Tensor:
        mixed = torch.stack([x, x.sin(), x.cos()]) * self.mix.softmax(0)[:, None, None]
        return self.head(mixed.sum(0))

    return Fn(net, mix=weight(3), head=nn.Linear(8, 4)), torch.randn(ROWS, 8)


@architecture("direct")
def einsum_reduces_tokens() -> Built:
    """A matrix that meets two dimensions of the input at once."""
    return Fn(
        lambda self, x: torch.einsum("btd,td->b", x, self.w)[:, None], w=weight(5, 8, scale=0.1)
    ), torch.randn(ROWS, 5, 8)


@architecture("direct")
def bmm_with_expanded_weight() -> Built:
    return Fn(lambda self, x: torch.bmm(x, self.w.expand(len(x), 8, 3)), w=weight(1, 8, 3)), torch.randn(
        ROWS, 5, 8
    )


@architecture("direct (derived weight)")
def bmm_with_expanded_weight_first() -> Built:
    return Fn(
        lambda self, x: torch.bmm(self.w.unsqueeze(0).expand(len(x), -1, -1), x), w=weight(3, 5)
    ), torch.randn(ROWS, 5, 8)


@architecture("linear (derived weight)")
def linear_with_sliced_weight() -> Built:
    return Fn(
        lambda self, x: F.linear(x, self.w[:3, 2:], self.b[:3]), w=weight(5, 10), b=weight(5)
    ), torch.randn(ROWS, 5, 8)


@architecture("direct", "linear")
def addmm() -> Built:
    """As GPT-2 writes its linear layers."""
    return Fn(
        lambda self, x: torch.addmm(self.b, x.view(-1, 8), self.w).view(*x.shape[:2], 3),
        w=weight(8, 3),
        b=weight(3),
    ), torch.randn(ROWS, 5, 8)


@architecture("linear", "direct")
def addmm_scaled() -> Built:
    return Fn(
        lambda self, x: torch.addmm(self.b, x, self.w, beta=0.5, alpha=2.0), w=weight(8, 3), b=weight(1, 3)
    ), torch.randn(ROWS, 8)


@architecture("direct")
def baddbmm() -> Built:
    return Fn(
        lambda self, x: torch.baddbmm(self.b, x, self.w.expand(len(x), -1, -1), beta=0.5),
        w=weight(1, 8, 3),
        b=weight(1, 1, 3),
    ), torch.randn(ROWS, 5, 8)


@architecture("linear")
def weight_first_product() -> Built:
    """``W @ x`` on channels by positions, as graph and state-space layers write it."""
    return Fn(
        lambda self, x: self.b @ torch.tanh(torch.matmul(self.a, x)), a=weight(6, 5), b=weight(3, 6)
    ), torch.randn(ROWS, 5, 8)


@architecture("linear")
def weight_first_four_dimensions() -> Built:
    return Fn(lambda self, x: self.a @ x, a=weight(6, 5)), torch.randn(ROWS, 3, 5, 4)


@architecture("direct")
def product_per_head() -> Built:
    """A stack of matrices, one a head, broadcast over the batch."""
    return Fn(lambda self, x: torch.matmul(x, self.w), w=weight(3, 8, 2)), torch.randn(ROWS, 3, 5, 8)


@architecture("direct (derived weight)")
def batch_of_outer_products() -> Built:
    return Fn(
        lambda self, x: x[:, :, None] * self.w[None, None, :] + self.w.outer(self.w)[:1], w=weight(4)
    ), torch.randn(ROWS, 5)


@architecture("convolution (derived weight)", "convolution", "linear (derived weight)", "linear")
def normalised_weights() -> Built:
    return nn.Sequential(
        weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh(), nn.Flatten(), spectral_norm(nn.Linear(36, 6)).eval(),
        nn.Tanh(), orthogonal(nn.Linear(6, 4)),
    ), torch.randn(ROWS, 3, 5, 5)  # fmt: skip


@architecture("convolution", "convolution (derived weight)")
def scaled_weight_standardisation() -> Built:
    def conv(self: Any, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = torch.rsqrt((variance * self.weight[0].numel()).clamp(min=1e-4)) * self.gain
        return F.conv2d(x, (self.weight - mean) * scale, self.bias, padding=1)

    return Fn(
        conv, weight=weight(6, 4, 3, 3), gain=nn.Parameter(torch.ones(6, 1, 1, 1)), bias=weight(6)
    ), torch.randn(ROWS, 4, 5, 5)


@architecture("convolution", "convolution (derived weight)", "linear")
def checkpointed() -> Built:
    """What is computed again in the backward pass goes through the same rules, derived weights included."""

    def inner(self: Any, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.tanh(self.a(x)).flatten(1)))

    def net(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda z: inner(self, z), x, use_reentrant=False))

    return Fn(net, a=weight_norm(nn.Conv2d(3, 4, 3)), b=nn.Linear(36, 5), head=nn.Linear(5, 3)), torch.randn(
        ROWS, 3, 5, 5
    )


@architecture("linear", "layer norm", "unused")
def frozen_backbone() -> Built:
    """Features computed without gradients are still rows of the batch."""

    def net(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.tanh(self.backbone(x))
        return self.head(self.norm(h).mean(1))

    return Fn(net, backbone=nn.Linear(8, 6), norm=nn.LayerNorm(6), head=nn.Linear(6, 3)), torch.randn(
        ROWS, 5, 8
    )


@architecture("example by example")
def gradient_inside_the_model() -> Built:
    """An energy model: its output is itself a gradient."""

    def net(self: Any, x: Tensor) -> Tensor:
        z = x.clone().requires_grad_()
        energy = self.out(torch.tanh(self.body(z)))
        return torch.autograd.grad(energy.sum(), z, create_graph=True)[0]

    return Fn(net, body=nn.Linear(8, 6), out=nn.Linear(6, 1)), torch.randn(ROWS, 8)


@architecture("linear (derived weight)")
def triangular_matrix() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        matrix = torch.zeros(8, 8, dtype=x.dtype)
        i = torch.tril_indices(8, 8)
        matrix[i[0], i[1]] = self.entries
        return x @ matrix

    return Fn(net, entries=weight(36)), torch.randn(ROWS, 5, 8)


@architecture("torch.func on einsum (derived weight)")
def fourier_operator() -> Built:
    """A product in the frequency domain: derived weights that are complex."""

    def net(self: Any, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x, dim=-1)[..., :4]
        return torch.fft.irfft(torch.einsum("bim,iom->bom", modes, torch.view_as_complex(self.w)), n=8)

    return Fn(net, w=weight(5, 3, 4, 2)), torch.randn(ROWS, 5, 8)


@architecture("direct (derived weight) + linear (derived weight)")
def prototypes() -> Built:
    """Squared distances to learned centres."""

    def net(self: Any, x: Tensor) -> Tensor:
        return -(x.square().sum(1, keepdim=True) - 2 * x @ self.centres.t() + self.centres.square().sum(1))

    return Fn(net, centres=weight(4, 8)), torch.randn(ROWS, 8) * 0.3


@architecture("torch.func on cdist")
def distances() -> Built:
    return Fn(lambda self, x: torch.cdist(x, self.centres), centres=weight(4, 8)), torch.randn(ROWS, 5, 8)


@architecture("linear")
def graph_convolution() -> Built:
    def net(self: Any, x: Tensor, adjacency: Tensor) -> Tensor:
        x = torch.tanh(adjacency @ self.one(x))
        return (adjacency @ x) @ self.two

    return Fn(net, one=nn.Linear(8, 6), two=weight(6, 3)), (torch.randn(ROWS, 5, 8), torch.rand(ROWS, 5, 5))


@architecture("linear", "linear (derived weight)")
def dynamic_convolution() -> Built:
    """Each example mixes its own kernel: the batch hides in the groups, where no weight is."""

    def net(self: Any, x: Tensor) -> Tensor:
        mixture = self.gate(x.mean((2, 3))).softmax(1)
        kernels = (mixture @ self.bank.flatten(1)).view(-1, 3, 3, 3)
        return F.conv2d(x.reshape(1, -1, 6, 6), kernels, groups=len(x)).view(len(x), 4, 4, 4)

    return Fn(net, gate=nn.Linear(3, 5), bank=weight(5, 4, 3, 3, 3)), torch.randn(ROWS, 3, 6, 6)


@architecture("direct", "linear (derived weight)")
def cosine_classifier() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.classes, dim=1)) * self.scale

    return Fn(net, classes=weight(4, 8), scale=weight()), torch.randn(ROWS, 8)


@architecture("example by example")
def ensemble_by_vmap() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda w, b: F.linear(x, w, b))(self.w, self.b).movedim(0, 1)

    return Fn(net, w=weight(3, 4, 8), b=weight(3, 4)), torch.randn(ROWS, 8)


@architecture("linear (derived weight)", "linear")
def symmetric_parametrisation() -> Built:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

    layer = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())

    def net(self: Any, x: Tensor) -> Tensor:
        with nn.utils.parametrize.cached():
            return self.layer(torch.tanh(self.layer(x)))

    return Fn(net, layer=layer), torch.randn(ROWS, 5, 8)


@architecture("linear (derived weight)", "linear")
def functional_call() -> Built:
    """Another module run with weights that are made on the way."""
    shell = nn.Linear(8, 4)

    def net(self: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(shell, {"weight": self.w.tanh(), "bias": self.b}, (x,))

    return Fn(net, w=weight(4, 8), b=weight(4)), torch.randn(ROWS, 8)


@architecture("convolution", "linear", "group norm")
def frozen_standardised_kernels() -> Built:
    """Kernels that are made anew for every call and freed after it. Fails when they are kept by their id (tried)."""
    layers = [
        part for _ in range(8) for part in (WeightStandardisedConv2d(6, 6, 3), nn.GroupNorm(2, 6), nn.Tanh())
    ]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 3))
    for name, p in net.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    return net, torch.randn(ROWS, 6, 4, 4)
