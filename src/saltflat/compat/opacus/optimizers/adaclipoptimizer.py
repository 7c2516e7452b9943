"""Adaptive clipping: the clip norm follows a noised count of the gradients that are short enough."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from saltflat.compat.opacus.optimizers.optimizer import DPOptimizer, _generate_noise
from saltflat.errors import InputError


class AdaClipDPOptimizer(DPOptimizer):
    """Moves the clip norm towards a quantile of the gradient norms (Andrew et al. 2021).

    Guarantees: gradient and count together are one release of noise multiplier ``noise_multiplier``. The count
    is of ±1/2, so that one example moves it by 1/2 (theorem 1 there); it is divided by the expected batch
    size. Opacus counts 0 and 1, which is twice as sensitive, and divides by the realised size, which is private.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        noise_multiplier: float,
        target_unclipped_quantile: float,
        clipbound_learning_rate: float,
        max_clipbound: float,
        min_clipbound: float,
        unclipped_num_std: float,
        expected_batch_size: int | None,
        **kwargs: Any,
    ) -> None:
        if max_clipbound <= min_clipbound:
            raise ValueError("max_clipbound must be larger than min_clipbound.")
        if noise_multiplier >= 2 * unclipped_num_std:
            raise ValueError(
                "noise_multiplier must be smaller than 2 * unclipped_num_std. This is a requirement stemming from "
                "Theorem 1 in https://arxiv.org/pdf/1905.03871.pdf"
            )
        if expected_batch_size is None:
            raise InputError(
                "expected_batch_size", None, "the expected batch size: the count is divided by it"
            )
        super().__init__(
            optimizer, noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, **kwargs
        )
        self.target_unclipped_quantile = target_unclipped_quantile
        self.clipbound_learning_rate = clipbound_learning_rate
        self.max_clipbound, self.min_clipbound = max_clipbound, min_clipbound
        self.unclipped_num_std = unclipped_num_std
        self._count = 0.0  # of ±1/2, private until noise is added

    def _observe_norms(self, norms: Tensor) -> None:
        short = (norms <= float(self.max_grad_norm)).double()
        self._count += float((short - 0.5).sum())

    def gradient_noise_multiplier(self) -> float:
        """What is left for the gradient: (σ⁻² − (2σ_u)⁻²)^(−1/2)."""
        if self.noise_multiplier == 0:
            return 0.0
        return float((self.noise_multiplier**-2 - (2 * self.unclipped_num_std) ** -2) ** -0.5)

    def pre_step(self, closure: Any = None) -> bool:
        """A release of gradient and count; then the clip norm moves."""
        done = super().pre_step(closure)
        if done:
            count, self._count = self._count, 0.0
            noise = _generate_noise(
                self.unclipped_num_std, torch.zeros(1, dtype=torch.float64), self.generator, self.secure_mode
            )
            expected = float(self.expected_batch_size or 1) * self.accumulated_iterations
            share = (count + float(noise)) / expected + 0.5
            moved = float(self.max_grad_norm) * math.exp(
                -self.clipbound_learning_rate * (share - self.target_unclipped_quantile)
            )
            self.max_grad_norm = min(max(moved, self.min_clipbound), self.max_clipbound)
        return done

    def drop_unfinished(self) -> None:
        """Forget the count as well."""
        super().drop_unfinished()
        self._count = 0.0
