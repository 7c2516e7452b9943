"""jax-privacy's clipped gradient of cnn-selu, jitted: the same layers, weights and rows in JAX.

Only this model is written in JAX. Images have their channels last, which is what XLA's convolutions on a CPU
want. XLA has threads of its own, as many as there are cores, whatever torch's setting is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from saltflat.bench.timing import Step
from saltflat.bench.workload import Workload

WRITTEN = "cnn-selu"


def clipped_gradient(work: Workload, physical: int) -> Step:
    """The sum of clipped gradients by ``jax_privacy.clipped_grad``, in micro-batches of ``physical``.

    All examples in one go are not a loop of one turn: without a loop XLA takes a quarter of the time.
    """
    import jax
    import jax.numpy as jnp
    import jax_privacy

    if work.model != WRITTEN:
        raise NotImplementedError(f"only {WRITTEN} is written in JAX")
    model = work.fresh_model()
    weights = {name: jnp.asarray(_to_jax(p.detach()).numpy()) for name, p in model.named_parameters()}
    mean, std = (jnp.asarray(b.flatten().numpy()) for _, b in sorted(model.named_buffers()))
    convolutions = [name.removesuffix(".weight") for name, p in model.named_parameters() if p.dim() == 4]
    linear = [name.removesuffix(".weight") for name, p in model.named_parameters() if p.dim() == 2]

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        h = (images - mean) / std
        for number, layer in enumerate(convolutions):
            h = jax.lax.conv_general_dilated(
                h, weights[f"{layer}.weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            h = jax.nn.selu(h + weights[f"{layer}.bias"])
            if number % 2:
                # pooling by reshaping: on a CPU the gradient of a window's maximum is many times slower
                n, height, width, channels = h.shape
                h = h.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
        h = h.transpose(0, 3, 1, 2).reshape(len(h), -1)  # flattened as torch flattens it
        hidden, last = linear
        h = jax.nn.selu(h @ weights[f"{hidden}.weight"] + weights[f"{hidden}.bias"])
        scores = jax.nn.log_softmax(h @ weights[f"{last}.weight"] + weights[f"{last}.bias"])
        return -scores[jnp.arange(len(labels)), labels].sum()

    in_turns = physical if physical < work.examples else None
    clipped = jax.jit(
        jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=in_turns)
    )
    images = jnp.asarray(work.inputs.permute(0, 2, 3, 1).contiguous().numpy())
    labels = jnp.asarray(work.targets.numpy())

    def step() -> Any:
        grads = jax.block_until_ready(clipped(weights, images, labels))
        return partial(_to_torch, grads)

    return step


def _to_jax(weight: Tensor) -> Tensor:
    """Kernels as height, width, in, out; matrices as in, out."""
    if weight.dim() == 4:
        return weight.permute(2, 3, 1, 0).contiguous()
    return weight.T.contiguous() if weight.dim() == 2 else weight


def _to_torch(grads: Any) -> dict[str, Tensor]:
    import numpy as np

    found = {name: torch.from_numpy(np.array(value)) for name, value in grads.items()}
    return {
        name: g.permute(3, 2, 0, 1) if g.dim() == 4 else g.T if g.dim() == 2 else g
        for name, g in found.items()
    }
