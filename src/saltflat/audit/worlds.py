"""Running the real mechanism on made-up rows, and watching only what leaves it.

An audit sees three things: the releases that reach the optimizer, the weights before and after, and the
numbers of the rows that reached the loss. It looks into no part of the mechanism, so it judges by what the
mechanism does. Rows are random numbers in the shape of the data: no private row is touched.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.data.source import Examples, as_source, join_tensors, map_tensors, tensors_in
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import take
from saltflat.errors import PrivacyWarning
from saltflat.federated import Clients, prepare_rounds
from saltflat.plan import (
    Federation,
    LocalTraining,
    NoAscent,
    NoAveraging,
    Phase,
    Plan,
    Poisson,
    QuantileClipping,
)
from saltflat.record.certificate import Certificate
from saltflat.record.ledger import Ledger
from saltflat.training.build import trainable
from saltflat.training.losses import default_loss
from saltflat.training.prepare import prepare

ROWS_A_PERSON = 2

# A client that takes one plain step has its gradient as update, so that worlds can be compared as with rows. Masks
# are fixed before a round and public; without one, every coordinate is there to be looked at.
ONE_STEP = Federation(LocalTraining(1, ROWS_A_PERSON, 1.0, momentum=0.0, decay=0.0))


@dataclass
class Trace:
    """What was seen of some steps. Releases are flat vectors in float64, one a step, or what was kept of them."""

    keep: Callable[[Tensor], Tensor] = field(default=lambda release: release, repr=False)
    releases: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # how many of `rows` had been seen after each step
    moved_between: bool = False
    recorded_late: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    certificate: Certificate | None = None

    @property
    def clip_norms(self) -> list[float]:
        """The clip norm of each step, as the ledger has it."""
        return [float(entry["clip_norm"]) for entry in self.ledger.of_kind("release")]


class Watching(torch.optim.Optimizer):
    """Plain descent that keeps what it is handed, and notices weights that moved behind its back."""

    def __init__(self, parameters: Any, trace: Trace, rate: float) -> None:
        super().__init__(parameters, {"lr": rate})
        self.trace = trace
        self.left = [p.detach().clone() for p in self._weights()]

    def _weights(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Keep the release, then descend."""
        weights = self._weights()
        self.trace.moved_between |= not all(torch.equal(a, b) for a, b in zip(weights, self.left))
        grads = [torch.full_like(p, torch.nan) if p.grad is None else p.grad for p in weights]
        self.trace.releases.append(self.trace.keep(torch.cat([g.detach().double().flatten() for g in grads])))
        self.trace.recorded_late |= self.trace.ledger.releases < len(self.trace.releases)
        for weight, grad in zip(weights, grads):
            weight.add_(grad, alpha=-self.param_groups[0]["lr"])
        self.left = [p.detach().clone() for p in weights]


@dataclass(frozen=True)
class Rows:
    """Made-up rows, and a factor on the loss of each: 0 is a blank, −10⁶ a row that pulls hard the other way."""

    inputs: Any
    targets: Tensor
    factors: Tensor

    @staticmethod
    def of(inputs: Any, targets: Tensor | None = None) -> Rows:
        """Rows that count once each; without targets, these are zeros."""
        count = len(tensors_in(inputs)[0])
        answers = torch.zeros(count) if targets is None else targets
        return Rows(inputs, answers, torch.ones(count, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.targets)

    def scaled(self, factor: float) -> Rows:
        """The same rows with another factor."""
        return replace(self, factors=torch.full_like(self.factors, factor))

    def take(self, places: Any) -> Rows:
        """Some of the rows."""
        return Rows(take(self.inputs, places), self.targets[places], self.factors[places])

    def joined(self, other: Rows) -> Rows:
        """These rows, then the others."""
        parts = [(rows.inputs, rows.targets, rows.factors) for rows in (self, other)]
        return Rows(*join_tensors(torch.cat, parts))

    def filled(self, value: float) -> Rows:
        """The same rows with inputs that hold ``value`` throughout, where they hold real numbers."""
        held = map_tensors(lambda t: torch.full_like(t, value) if t.is_floating_point() else t, self.inputs)
        return replace(self, inputs=held)


@dataclass
class Subject:
    """A model, the shape of its data, a loss and a plan, under audit. The model is a copy."""

    model: nn.Module
    sample: Rows
    plan: Plan
    loss_fn: LossFunction
    randomness: str = "fast"

    def __post_init__(self) -> None:
        self.state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.parameters = trainable(self.model)
        self.sizes = {name: p.numel() for name, p in self.parameters.items()}

    @property
    def dimension(self) -> int:
        """How many coordinates a release has."""
        return sum(self.sizes.values())

    def run(
        self,
        rows: Rows,
        plan: Plan,
        *,
        seed: int | None = None,
        micro_batch: int | None = None,
        rate: float = 0.0,
        keep: Callable[[Tensor], Tensor] = lambda release: release,
        close: bool = False,
        chance: int | None = None,
    ) -> Trace:
        """The steps of ``plan`` over ``rows``, from the same weights each time, as `fit` would make them.

        ``keep`` takes what is wanted from each release, so that many steps of a large model fit into memory.
        ``chance`` seeds what the model draws by itself, once the run has begun.
        """
        trace = Trace(keep)
        with torch.no_grad():
            self.model.load_state_dict(self.state)
        numbers = torch.arange(len(rows))
        factors = rows.factors.to(next(iter(self.parameters.values())).dtype)

        def loss(outputs: Any, which: Tensor) -> Tensor:
            trace.rows.append(which)
            return factors[which] * self.loss_fn(outputs, rows.targets[which])

        people, examples = plan.budget.unit == "person", Examples(rows.inputs, numbers)
        # rows are meant to be other than declared
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            if plan.federation is not None:
                clients = Clients(examples, numbers.split(ROWS_A_PERSON), "under audit")
                session = prepare_rounds(
                    self.model, clients, plan.changed(federation=ONE_STEP),
                    loss_fn=loss, optimizer=lambda parameters: Watching(parameters, trace, rate),
                    seed=seed, randomness=self.randomness, together=1, check_gradients=False,
                )  # fmt: skip
            else:
                session = prepare(
                    self.model, examples, plan,
                    loss_fn=loss, optimizer=lambda parameters: Watching(parameters, trace, rate),
                    groups=numbers // ROWS_A_PERSON if people else None,
                    seed=seed, micro_batch=micro_batch, randomness=self.randomness,
                    check_gradients=False,  # models without gradients are part of it
                )  # fmt: skip
        trace.rows.clear()  # those of the checks before the start
        trace.ledger = session.ledger
        if chance is not None:
            torch.manual_seed(chance)
        for _ in session.loop:
            trace.marks.append(len(trace.rows))
        final = [p.detach() for p in session.loop.optimizer.param_groups[0]["params"]]
        watching = session.loop.optimizer
        assert isinstance(watching, Watching)
        trace.moved_between |= not all(torch.equal(a, b) for a, b in zip(final, watching.left))
        if close:
            trace.certificate = session.close(finished=True)
        return trace

    @property
    def rows_a_unit(self) -> int:
        """How many rows one unit has here."""
        return 1 if self.plan.budget.unit == "example" else ROWS_A_PERSON

    def units(self, count: int, factor: float = 1.0) -> Rows:
        """So many units of made-up rows."""
        places = torch.arange(count * self.rows_a_unit) % len(self.sample)
        return self.sample.take(places).scaled(factor)

    def of_phase(self, phase: Phase, steps: int, *, units: int | None = None, still: bool = True) -> Plan:
        """``steps`` steps of one phase; over ``units`` units that all join, if given.

        With ``still`` the gradient is taken at the weights themselves, so that two worlds can be compared:
        where it is taken is post-processing, and costs nothing.
        """
        ascent: Any = phase.ascent  # one that asks a query has a rho, one that may switch itself off says so
        if still:
            ascent = NoAscent() if phase.ascent_noise is None else replace(ascent, rho=0.0)
        elif ascent.automatic:
            ascent = replace(ascent, automatic=False)
        clipping = self.plan.clipping
        if still and isinstance(clipping, QuantileClipping):
            clipping = replace(clipping, learning_rate=1e-9)  # the same clip norm in every trial
        return self.plan.changed(
            phases=(replace(phase, steps=steps, learning_rate=None, ascent=ascent, reset_momentum=False),),
            sampling=self.plan.sampling if units is None else Poisson(units, units),
            optimizer=None,
            averaging=NoAveraging(),
            multiplicity=replace(self.plan.multiplicity, augmentations=())
            if still
            else self.plan.multiplicity,
            clipping=clipping,
        )

    def with_model(self, model: nn.Module, sample: Rows, loss_fn: LossFunction) -> Subject:
        """The same plan over another model, which may not take the augmentations."""
        plain = self.plan.changed(multiplicity=replace(self.plan.multiplicity, augmentations=()))
        return Subject(model, sample, plain, loss_fn, self.randomness)


def made_up(data: Any, rows: int) -> Rows:
    """Random rows in the shape and type of ``data``'s; whole numbers stay within the range of a few rows."""
    source = as_source(data)
    few = min(64, len(source))
    inputs, targets = source.fetch(torch.arange(few))
    generator = torch.Generator().manual_seed(0)

    def alike(t: Tensor) -> Tensor:
        shape = (rows, *t.shape[1:])
        if t.is_floating_point():
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(t.dtype)
        if t.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        return torch.randint(0, max(int(t.max()) + 1, 2), shape, generator=generator).to(t.dtype)

    classes = getattr(data, "num_classes", None)
    if classes and not targets.is_floating_point():
        answers = torch.randint(0, classes, (rows, *targets.shape[1:]), generator=generator)
    else:
        answers = alike(targets)
    return Rows.of(map_tensors(alike, inputs), answers)


def subject_of(
    model: nn.Module, data: Any, plan: Plan, loss_fn: LossFunction | None, randomness: str
) -> Subject:
    """A copy of the model with made-up rows, ready for an audit."""
    own = copy.deepcopy(model).cpu()
    sample = made_up(data, 64)
    return Subject(own, sample, plan, loss_fn or default_loss(sample.targets), randomness)
