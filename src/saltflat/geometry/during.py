"""Flatness during training: a callback that measures sharpness and loss as epochs go by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.engine.batch import LossFunction
from saltflat.errors import check_positive
from saltflat.geometry.lanczos import random_start
from saltflat.geometry.loss import Loss
from saltflat.geometry.rows import Rows, as_rows
from saltflat.geometry.spectrum import eigenvalues
from saltflat.training.step import Step


class Flatness:
    """A callback for `saltflat.fit`: λ_max of the Hessian, loss and accuracy, every so many epochs.

    ``model`` is the one that is being trained; ``data`` are public or test rows, of which ``rows`` are used.
    Private training rows must be asked for by ``rows_of(data, "train", private=True)``; what is found on them is
    labelled as not covered by ε. Nothing that is found goes back into training.

    ``history`` has one row a measurement. In a run that is resumed it begins anew.

    Reference: Wang et al. 2025 (SAI), Figure 2, where sharpness is ‖H‖₂ on private training data.

    >>> import saltflat as sf
    >>> digits = sf.data.load("digits")
    >>> model = sf.models.build("logistic", in_features=64)
    >>> plan = sf.plans.dp_sgd(noise_multiplier=1.0, delta=1e-4, population=1437, batch_size=256, steps=12)
    >>> flatness = Flatness(model, digits.test, rows=100)
    >>> run = sf.fit(model, digits.train, plan, callbacks=[flatness], progress=False)
    >>> [row["step"] for row in flatness.history], flatness.history[0]["sharpness"] > 0
    ([6, 12], True)
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        every: float = 1.0,
        rows: int = 500,
        tolerance: float = 1e-2,
        loss_fn: LossFunction | None = None,
        seed: int = 0,
    ) -> None:
        check_positive("every", every)
        self.model, self.every, self.tolerance, self.seed = model, every, tolerance, seed
        self.measured_on: Rows = as_rows(data)
        self.most, self.loss_fn = rows, loss_fn
        self.history: list[dict[str, Any]] = []
        self._vectors: Tensor | None = None
        self._passed = 0

    @property
    def covered(self) -> str:
        """What may be said about the numbers."""
        return self.measured_on.covered

    def __call__(self, step: Step) -> None:
        """Measure if another ``every`` epochs have gone by, or if this was the last step."""
        passed = math.floor(step.epoch / self.every + 1e-9)
        if passed > self._passed or step.number == step.steps:
            self._passed = passed
            self.history.append({"step": step.number, "epoch": round(step.epoch, 3)} | self.measure())

    def measure(self) -> dict[str, Any]:
        """Sharpness, loss and accuracy of the model as it is now."""
        loss = Loss(self.model, self.measured_on, loss_fn=self.loss_fn, rows=self.most, seed=self.seed)
        start = None
        if self._vectors is not None:  # curvature changes slowly; the second vector finds what is new
            start = torch.stack([self._vectors[0], random_start(loss.weights, self.seed + len(self.history))])
        found = eigenvalues(loss, 1, tolerance=self.tolerance, seed=self.seed, start=start)
        self._vectors = found.vectors
        here = loss.measure()
        return {"sharpness": float(found.values[0]), "loss": here.loss, "accuracy": here.accuracy}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the label."""
        facts = self.measured_on.facts(min(self.most, len(self.measured_on)))
        return {"format": 1, "data": facts, "history": self.history}

    def draw(self, path: str | Path) -> Path:
        """Sharpness and loss against epochs, into a PNG, SVG or PDF file."""
        from saltflat.geometry.pictures import draw_flatness

        return draw_flatness(self.to_dict(), Path(path))
