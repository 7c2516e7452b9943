"""The public side of a private step: gradients of public rows, at the weights as they are.

Nothing here touches private data, and nothing costs budget. `saltflat.methods.public` has the arithmetic.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.people import units_of
from saltflat.data.shared_rows import refuse_private
from saltflat.data.source import Examples, Source, as_source, tensors_in
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import call_model
from saltflat.engine.frame import Frame
from saltflat.errors import InputError
from saltflat.methods.ascent import scaled_to
from saltflat.methods.public import added, mixed, mixing_weight, preconditioner, public_rows, second_moment
from saltflat.plan import AdaDps, Dope, MirrorDescent, NoPublicGradient, Plan
from saltflat.record.public import public_data

ROWS_AT_ONCE = 512


@dataclass
class PublicSide:
    """What the plan of a run asks of its public data, step by step.

    ``key`` fixes the batches of public rows. ``moment`` is AdaDPS's average of squared public gradients after
    the last step that was taken: the only state.
    """

    plan: Plan
    source: Source
    model: nn.Module
    loss_fn: LossFunction
    weights: dict[str, nn.Parameter]
    device: torch.device
    key: str
    moment: dict[str, Tensor] | None = field(default=None, repr=False)

    def directions(self, step: int) -> list[dict[str, Tensor]] | None:
        """ρ g_k/‖g_k‖ for each view k, with g_k the gradient of a public batch of its own; None without ρ."""
        views = self.plan.multiplicity
        if not views.rho:
            return None
        batches = public_rows(len(self.source), views.public_batch, f"{self.key}:views", step, views.views)
        return [scaled_to(self.gradient(batch), views.rho) for batch in batches]

    def seen(self, step: int) -> dict[str, Tensor] | None:
        """The public gradient of a step, where the plan has a use for one."""
        part = self.plan.public_gradient
        if isinstance(part, NoPublicGradient):
            return None
        (batch,) = public_rows(len(self.source), part.public_batch, f"{self.key}:gradient", step)
        return self.gradient(batch)

    def frame(self, step: int, seen: dict[str, Tensor] | None) -> Frame | None:
        """From where and in which units private gradients are clipped; None for from zero, as they are."""
        part = self.plan.public_gradient
        if isinstance(part, Dope):
            return Frame(shift=seen)
        if isinstance(part, AdaDps):
            return Frame(scale=preconditioner(self._moment(), part))
        return None

    def finished(
        self, release: dict[str, Tensor], step: int, seen: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """What the optimizer steps with: the release, and what public data adds to it."""
        part = self.plan.public_gradient
        if isinstance(part, Dope) and seen is not None:
            return added(release, seen)
        if isinstance(part, MirrorDescent) and seen is not None:
            return mixed(release, seen, self.share_of_release(step))
        return release

    def share_of_release(self, step: int) -> float:
        """The factor on the release in what the optimizer steps with; its noise has the same."""
        if isinstance(self.plan.public_gradient, MirrorDescent):
            return mixing_weight(step - 1, self.plan.steps)
        return 1.0

    def look(self) -> None:
        """Before the first step: what the first weights make of public data."""
        if isinstance(self.plan.public_gradient, AdaDps):
            self._moment()

    def observe(self, step: int) -> None:
        """After a step: what the new weights make of public data, for the steps to come."""
        part = self.plan.public_gradient
        if isinstance(part, AdaDps):
            before = self._moment()
            (batch,) = public_rows(len(self.source), part.public_batch, f"{self.key}:moment", step)
            self.moment = second_moment(before, self.gradient(batch), part)

    def _moment(self) -> dict[str, Tensor]:
        part = self.plan.public_gradient
        assert isinstance(part, AdaDps)
        if self.moment is None:
            (batch,) = public_rows(len(self.source), part.public_batch, f"{self.key}:moment", 0)
            self.moment = second_moment(None, self.gradient(batch), part)
        return self.moment

    def gradient(self, rows: Tensor) -> dict[str, Tensor]:
        """The gradient of the mean loss on some public rows."""
        total = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for some in rows.split(ROWS_AT_ONCE):
            taken = units_of(self.source, some, self.device)
            with torch.enable_grad():
                loss = self.loss_fn(call_model(self.model, taken.inputs), taken.targets).sum() / len(rows)
                found = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
            for name, grad in zip(self.weights, found):
                if grad is not None:
                    total[name] += grad
        return total


def content_hash(data: Any) -> str:
    """SHA-256 over every row, inputs and targets, with their shapes and types.

    >>> rows = Examples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), "public")
    >>> content_hash(rows) == content_hash((torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)))
    True
    """
    source, digest = as_source(data), hashlib.sha256()
    for some in torch.arange(len(source)).split(ROWS_AT_ONCE):
        inputs, targets = source.fetch(some)
        for tensor in [*tensors_in(inputs), targets]:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape[1:])};".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def described(data: Any, used: str) -> dict[str, Any]:
    """What a certificate says about public data: what it was used for, and on whose word it is public."""
    source = as_source(data)
    named = data if isinstance(data, Examples) else None
    return {
        "used": used,
        "name": "" if named is None else named.name,
        "provenance": "public" if named is None else named.provenance,
        "declared_by": (named.declared_by if named is not None else "") or "the caller",
        "rows": len(source),
        "sha256": content_hash(data),
    }


def check_public(plan: Plan, public: Any) -> None:
    """Refuse private rows where public ones are needed, and a plan that needs some without any."""
    if plan.needs_public and public is None:
        raise InputError(
            "public", None, f"public data, which {plan.method} looks at in every step", problem="is missing",
            cure="Pass fit(public=...): a data set that is marked public or synthetic. "
            "On the command line: saltflat train --public-fraction 0.04, or --public PATH.",
        )  # fmt: skip
    if public is not None:
        as_source(public)
        check_not_private(public)


def check_not_private(rows: Any) -> None:
    """Refuse rows that are marked private; those that say nothing are public on the caller's word."""
    if isinstance(rows, Examples):
        refuse_private(rows, "public", "and is given where public data is needed")


def listed(plan: Plan, public: Any, facts: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Public data that came before this run, as the caller's facts list it, and what its steps look at."""
    before = public_data(facts or {})
    if public is None:
        return before
    used = "gradients in every private step" if plan.needs_public else "the automatic switch"
    return [*before, described(public, used)]
