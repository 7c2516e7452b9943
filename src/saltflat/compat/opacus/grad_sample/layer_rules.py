"""What Opacus registers for each kind of layer, under its names; for scripts that call these functions themselves.

In Opacus each kind has a formula of its own, and its hooks call it. The engine calls none of this: it sees the
operations inside a layer (`saltflat.engine.rules`). So one function serves for all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saltflat.compat.opacus.grad_sample.functorch import SampleGradients, gradients_by
from saltflat.compat.opacus.grad_sample.grad_sample_module import AbstractGradSampleHooks
from saltflat.compat.opacus.layers import SequenceBias


def compute_grad_sample(
    layer: nn.Module, activations: Sequence[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Each example's gradient of the layer's trained parameters, from its input and its output's gradient.

    >>> layer = nn.Conv1d(1, 1, 2, bias=False)
    >>> compute_grad_sample(layer, [torch.tensor([[[1.0, 2.0]]])], torch.ones(1, 1, 1))[layer.weight].tolist()
    [[[[1.0, 2.0]]]]
    """
    found = gradients_by(SampleGradients(layer, batch_first=True), layer, activations[0], backprops)
    return {p: grads for p, grads in found.items() if p.requires_grad}


def compute_norm_sample(
    layer: nn.Module, activations: Sequence[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """The norm of each example's gradient, a parameter."""
    found = compute_grad_sample(layer, activations, backprops)
    return {p: torch.linalg.vector_norm(grads.flatten(1), dim=1) for p, grads in found.items()}


LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
    nn.InstanceNorm3d, nn.LayerNorm, nn.RMSNorm, SequenceBias,
)  # fmt: skip
AbstractGradSampleHooks.GRAD_SAMPLERS.update(dict.fromkeys(LAYERS, compute_grad_sample))
AbstractGradSampleHooks.NORM_SAMPLERS.update(dict.fromkeys((nn.Linear, nn.Embedding), compute_norm_sample))
