"""The private step, and the loop of steps that a plan describes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from saltflat.data.source import Source, Surveyed, as_source
from saltflat.engine.batch import LossFunction
from saltflat.engine.frame import Frame
from saltflat.errors import InputError, check_known
from saltflat.methods import optimizers
from saltflat.methods.ascent import AscentState, displaced
from saltflat.methods.averaging import AverageState
from saltflat.methods.multiplicity import gaussian_displacements
from saltflat.methods.optimizers import OptimizerFactory
from saltflat.plan import Phase, Plan
from saltflat.training.build import ClipNorms, Mechanism, trainable
from saltflat.training.evaluate import evaluate
from saltflat.training.public_side import PublicSide, check_public
from saltflat.training.sums import Sum, Sums

if TYPE_CHECKING:
    from saltflat.training.keep import Keeper
    from saltflat.training.lead import Led

Schedule = Callable[[float], float]
"""From the fraction of the plan that is done to a factor on the learning rate."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
}


def named_schedule(schedule: Schedule | str | None) -> Schedule | None:
    """A schedule by its name, or the user's own."""
    if not isinstance(schedule, str):
        return schedule
    check_known("schedule", schedule, SCHEDULES, "a known schedule")
    return SCHEDULES[schedule]


@dataclass(frozen=True)
class Step:
    """What is known after a release, all of it public: which step, which phase, how far along.

    ``release`` is the noised gradient itself, by the names of the weights, where a callback asked for it (an
    attribute ``wants_releases`` that is true). It left the private side, so whatever is made of it is free.
    """

    number: int
    steps: int
    phase: Phase
    epoch: float
    release: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Released:
    """What left the private side in one step: all that the rest of the step may see.

    ``share`` is the noised share of gradients within the clip norm, where the plan accounts for one;
    ``sharpness`` was measured on public data, where there is some.
    """

    gradient: dict[str, Tensor]
    share: float | None = None
    sharpness: float | None = None


class Asked(Protocol):
    """Who makes the releases of a loop, if they are not made from rows here: clients of a federation.

    ``kept`` holds what it remembers of releases, by name, one tensor for each weight: part of the checkpoint.
    """

    kept: dict[str, dict[str, Tensor]]

    def query(self, loop: Loop, number: int, phase: Phase) -> Released | None:
        """The private half of a step: record, ask, add noise; None if nothing may be released."""

    def observe(self, loop: Loop, number: int, released: Released) -> None:
        """Remember a release, in the public half of a step."""


@dataclass
class Loop:
    """A model, its data and its plan, one release at a time.

    One step reads like the papers: displace by earlier releases, sum clipped gradients there, record, add
    noise, let the optimizer step at the weights themselves, remember the release, average the iterate. A
    ``keeper`` writes the release down before it is used. ``position`` is the last step of the plan that was
    taken, given up, or lost in a crash. With ``asked`` the releases come from there instead of from ``source``.
    With ``ranks`` other processes compute their part of each sum, and nothing else.
    """

    model: nn.Module
    source: Source | None
    plan: Plan
    mechanism: Mechanism
    loss_fn: LossFunction
    optimizer: torch.optim.Optimizer
    schedule: Schedule | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    micro_batch: int | None = None
    public: Any = None
    ascent: AscentState = field(default_factory=AscentState)
    keeper: Keeper | None = None
    position: int = 0
    hand_out_releases: bool = False
    handed_out: dict[str, Tensor] | None = field(default=None, repr=False)
    public_key: str = ""
    asked: Asked | None = None
    ranks: Led | None = None

    def __post_init__(self) -> None:
        self.weights = trainable(self.model)
        self.public_side: PublicSide | None = None
        if self.plan.needs_public:
            check_public(self.plan, self.public)
            self.public_side = PublicSide(
                self.plan, as_source(self.public), self.model, self.loss_fn, self.weights, self.device, self.public_key
            )  # fmt: skip
        self.sums = Sums(self.model, self.source, self.plan, self.loss_fn, self.device, self.micro_batch)
        self.average = AverageState(self.plan.averaging, self.plan.steps)
        self.clip_norms = ClipNorms(self.plan.clipping)
        self.base_rates = [group["lr"] for group in self.optimizer.param_groups]

    def __iter__(self) -> Iterator[Step]:
        if self.position == 0 and self.plan.survey is not None:
            assert isinstance(self.source, Surveyed)
            self.source.learn(self.mechanism.release_survey(self.source.counts()))
        while self.position < self.plan.steps:
            self.private_step(self.position + 1, self.plan.phase_at(self.position))
            yield self.last_step()

    def last_step(self) -> Step:
        """The step that was taken last."""
        number = self.position
        phase = self.plan.phase_at(number - 1)
        return Step(number, self.plan.steps, phase, number * self.plan.sampling.rate, self.handed_out)

    def private_step(self, number: int, phase: Phase) -> None:
        """One release, and everything that follows from it."""
        ask = self.query if self.asked is None else partial(self.asked.query, self)
        released = ask(number, phase)
        if released is None:
            self.pass_over(number)
        else:
            if self.keeper is not None:
                self.keeper.journal(self, number, released)
            self.use(number, phase, released)
        if self.keeper is not None:
            self.keeper.checkpoint_if_due(self)

    def query(self, number: int, phase: Phase) -> Released:
        """The private half of a step: touch the data, record, add noise. Only what it returns leaves."""
        batch = self.mechanism.draw_batch()
        clip_norm = self.clip_norms.now(phase)
        self.mechanism.record(number, phase, clip_norm)
        upward = None
        if phase.ascent_noise is not None:
            upward, _ = self.query_here(number, batch, phase.ascent_noise, clip_norm)
        direction = self.ascent.displacement(phase.ascent, upward)
        with displaced(self.weights, direction):
            gradient, short = self.query_here(number, batch, phase.sigma, clip_norm)
        share = self.mechanism.release_count(short)
        return Released(gradient, share, self.public_sharpness(phase, direction))

    def query_here(
        self, number: int, batch: Tensor, sigma: float, clip_norm: float
    ) -> tuple[dict[str, Tensor], float]:
        """A release at the weights as they are, with what public data adds to it, and the count to release."""
        side = self.public_side
        if side is None:
            total, short = self.sum_of_clipped(batch, clip_norm)
            return self.released(total, sigma, clip_norm), short
        seen = side.seen(number)
        total, short = self.sum_of_clipped(
            batch, clip_norm, side.directions(number), side.frame(number, seen)
        )
        return side.finished(self.released(total, sigma, clip_norm), number, seen), short

    def use(self, number: int, phase: Phase, released: Released) -> None:
        """The public half of a step: what follows from the release, and from earlier ones."""
        self.enter(number, phase)
        if self.public_side is not None:
            self.public_side.look()  # at the weights from which the release was taken, also when it is replayed
        clip_norm = self.clip_norms.now(phase)
        self.clip_norms.observe(released.share)
        self.ascent.observe(phase.ascent, released.gradient, released.sharpness)
        if self.hand_out_releases:
            self.handed_out = {name: value.clone() for name, value in released.gradient.items()}
        if self.asked is not None:
            self.asked.observe(self, number, released)
        # last: some optimizers change gradients in place
        self.descend(released.gradient, number, phase, clip_norm)
        self.average.observe(number, self.weights)
        if self.public_side is not None:
            self.public_side.observe(number)
        self.position = number

    def pass_over(self, number: int) -> None:
        """Leave out a step whose release was recorded, and lost or given up."""
        self.enter(number, self.plan.phase_at(number - 1))
        self.position = number

    def enter(self, number: int, phase: Phase) -> None:
        """What happens once at the beginning of a phase."""
        starts = {sum(p.steps for p in self.plan.phases[:i]) + 1 for i in range(1, len(self.plan.phases))}
        if phase.reset_momentum and number in starts:
            self.optimizer.state.clear()

    def released(self, total: dict[str, Tensor], sigma: float, clip_norm: float) -> dict[str, Tensor]:
        """The release of a sum, in the type and on the device of the weights."""
        release = self.mechanism.release(total, sigma, clip_norm)
        return {name: release[name].to(weight.device, weight.dtype) for name, weight in self.weights.items()}

    def sum_of_clipped(
        self,
        batch: Tensor,
        clip_norm: float,
        directions: list[dict[str, Tensor]] | None = None,
        frame: Frame | None = None,
    ) -> Sum:
        """The clipped sum over a batch, and Σ (b − ½) over units with b = [norm ≤ clip norm]; see `Sums.over`.

        With several ranks, each computes the units of its own shard. The results are private until noise is
        added.
        """
        grid = self.mechanism.grid(clip_norm)
        moved = directions or gaussian_displacements(self.weights, self.plan.multiplicity)
        if self.ranks is None:
            return self.sums.over(batch, clip_norm, grid, moved, frame)
        return self.ranks.sum_over(self.position + 1, batch, clip_norm, grid, moved, frame)

    def measure(self, data: Any) -> dict[str, float]:
        """Loss and accuracy of the model as it is, on test data or public data: exact numbers about it."""
        if self.ranks is None:
            return evaluate(self.model, data, self.device, self.loss_fn)
        return self.ranks.measure(data)

    def public_sharpness(self, phase: Phase, direction: dict[str, Tensor] | None) -> float | None:
        """How much the loss on public data rises along the displacement, if there is public data to ask."""
        if self.public is None or direction is None or not phase.ascent.automatic:
            return None
        here = evaluate(self.model, self.public, self.device, self.loss_fn)["loss"]
        with displaced(self.weights, direction):
            return evaluate(self.model, self.public, self.device, self.loss_fn)["loss"] - here

    def descend(self, release: dict[str, Tensor], number: int, phase: Phase, clip_norm: float) -> None:
        """Let the optimizer step with the release as if it were a gradient."""
        factor = 1.0 if self.schedule is None else self.schedule((number - 1) / self.plan.steps)
        for group, base in zip(self.optimizer.param_groups, self.base_rates):
            group["lr"] = (base if phase.learning_rate is None else phase.learning_rate) * factor
            if "noise_on_release" in group:  # an optimizer that corrects for the noise; a public number
                share = 1.0 if self.public_side is None else self.public_side.share_of_release(number)
                group["noise_on_release"] = share * self.mechanism.noise_on_release(phase, clip_norm)
        for name, weight in self.weights.items():
            weight.grad = release[name]
        self.optimizer.step()
        for weight in self.weights.values():
            weight.grad = None


def build_optimizer(plan: Plan, model: nn.Module, factory: OptimizerFactory | None) -> torch.optim.Optimizer:
    """The user's optimizer, or the one that the plan names; both is an error."""
    parameters = list(trainable(model).values())
    named = plan.optimizer is not None or plan.phases[0].learning_rate is not None
    if factory is None:
        chosen = plan.optimizer or optimizers.DEFAULT
        first = plan.phases[0]
        rate = first.learning_rate or chosen.default_learning_rate(first.clip_norm)
        return optimizers.build(chosen, parameters, rate)
    if named:
        raise InputError(
            "optimizer", factory, "an optimizer in the plan or in fit, not in both", problem="is given twice",
            cure="Leave optimizer, momentum and learning_rate out of the plan, or out of fit.",
        )  # fmt: skip
    if not callable(factory) or isinstance(factory, torch.optim.Optimizer):
        raise InputError(
            "optimizer", factory, "a factory such as lambda parameters: torch.optim.SGD(parameters, lr=1.0)",
            problem="is not a factory",
        )  # fmt: skip
    built = factory(parameters)
    if not isinstance(built, torch.optim.Optimizer):
        raise InputError("optimizer", built, "a factory that returns a torch optimizer")
    return built
