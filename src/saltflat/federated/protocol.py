"""What passes between server and client in a round: a task, and an answer. The same for every engine.

A task is all that a client is told. It holds public things only: the model, settings of the plan, a mask that was
fixed before the round. An answer is the client's update, whole. Both become named arrays and plain facts, so that
any transport can carry them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from saltflat.errors import InputError, newer_format
from saltflat.plan import LocalTraining, NoAscent, OwnGradient, OwnMask, Phase, Plan, RandomMask
from saltflat.record.packed import under

FORMAT = 1

Vectors = Mapping[str, Tensor]
"""One tensor for each trainable weight, by its name."""


@dataclass(frozen=True, eq=False)
class Task:
    """What the server asks of the clients of one round.

    ``rate`` is the local learning rate of this round. ``mask`` says which coordinates count, None for all; ``own``
    is the share of its largest entries that a client keeps; ``scale`` multiplies what is left, before the clip.
    ``noise`` is the standard deviation of the client's share of the noise, which it adds to its clipped update: 0
    where the server adds the noise.
    """

    number: int
    weights: Vectors
    local: LocalTraining
    ascent: NoAscent | OwnGradient
    rate: float
    clip_norm: float
    mask: Vectors | None = None
    own: float = 1.0
    scale: float = 1.0
    noise: float = 0.0

    def arrays(self) -> dict[str, Tensor]:
        """The tensors of the task, for a transport: ``weights/NAME``, and ``mask/NAME`` of whole numbers 0 and 1."""
        held = {f"weights/{name}": value for name, value in self.weights.items()}
        return held | {f"mask/{name}": value.to(torch.uint8) for name, value in (self.mask or {}).items()}

    def facts(self) -> dict[str, Any]:
        """Everything else, as plain numbers and texts, one level deep."""
        ascent = self.ascent
        told = {f"local.{key}": value for key, value in asdict(self.local).items()}
        sam = {"rho": ascent.rho, "adaptive": ascent.adaptive} if isinstance(ascent, OwnGradient) else {}
        return told | sam | {
            "saltflat_task": FORMAT, "number": self.number, "rate": self.rate, "clip_norm": self.clip_norm,
            "own": self.own, "scale": self.scale, "noise": self.noise,
        }  # fmt: skip

    @staticmethod
    def read(arrays: Vectors, facts: Mapping[str, Any]) -> Task:
        """The task that `arrays` and `facts` describe; anything else is an `InputError`.

        >>> from saltflat.plan import LocalTraining
        >>> task = Task(3, {"w": torch.ones(2)}, LocalTraining(), OwnGradient(0.5), 0.1, 0.2)
        >>> again = Task.read(task.arrays(), task.facts())
        >>> again.number, again.ascent, again.local == task.local
        (3, OwnGradient(rho=0.5, adaptive=False), True)
        """
        try:
            if facts["saltflat_task"] > FORMAT:
                raise newer_format("task", facts["saltflat_task"], FORMAT)
            weights, mask = under("weights/", arrays), under("mask/", arrays)
            local = LocalTraining(
                **{k.removeprefix("local."): v for k, v in facts.items() if k.startswith("local.")}
            )
            ascent = OwnGradient(facts["rho"], facts["adaptive"]) if "rho" in facts else NoAscent()
            return Task(
                facts["number"], weights, local, ascent, facts["rate"], facts["clip_norm"],
                {name: value.bool() for name, value in mask.items()} or None,
                facts["own"], facts["scale"], facts["noise"],
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "task",
                type(error).__name__,
                "a task that a saltflat server wrote",
                problem=f"failed: {error}",
            ) from error


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's reply: who it is from, and its update, local weights minus those of the task."""

    client: int
    update: Any


class Engine(Protocol):
    """Where the clients are: in this process, or behind a network."""

    def __len__(self) -> int:
        """How many clients there are to be asked, numbered from zero."""

    def collect(self, task: Task, cohort: Sequence[int]) -> Iterable[Answer]:
        """The answers of these clients, as far as they come. Late, double and broken ones are the server's affair."""


def task_for(
    plan: Plan, phase: Phase, number: int, weights: Vectors, clip_norm: float, mask: Vectors | None
) -> Task:
    """The task of a round, from the plan and public things."""
    assert plan.federation is not None
    federation, ascent, shared = plan.federation, phase.ascent, plan.shared_noise
    assert isinstance(ascent, NoAscent | OwnGradient)
    kind = federation.mask
    detached = {name: weight.detach() for name, weight in weights.items()}
    return Task(
        number, detached, federation.local, ascent, federation.local.rate_in(number), clip_norm, mask,
        own=kind.ratio if isinstance(kind, OwnMask) else 1.0,
        scale=1 / kind.ratio if isinstance(kind, RandomMask) and kind.scaled else 1.0,
        noise=0.0 if shared is None else phase.sigma * clip_norm / shared.survivors**0.5,
    )  # fmt: skip
