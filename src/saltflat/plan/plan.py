"""`Plan`: sampling and phases, from which both the mechanism and its privacy event are made."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from saltflat.accounting import (
    SampledGaussian,
    combined_noise,
    epsilon,
    least_scale,
    rdp_epsilon,
    replace_one_epsilon,
    rounded_up,
)
from saltflat.errors import InputError, PrivacyWarning
from saltflat.plan.ascents import NoAscent, OwnGradient
from saltflat.plan.averagings import AVERAGINGS, Averaging, NoAveraging
from saltflat.plan.budget import Budget
from saltflat.plan.federation import Federation, SharedNoise
from saltflat.plan.parts import (
    LATER,
    Clipping,
    FlatClipping,
    Multiplicity,
    NoPublicGradient,
    Optimizer,
    PerLayerClipping,
    PublicGradient,
    QuantileClipping,
    check_kind,
)
from saltflat.plan.phase import Phase
from saltflat.plan.sampling import Sampling, TruncatedPoisson
from saltflat.plan.survey import Survey

FORMAT = 2
"""2: public gradients, clients and surveys. A plan without them is written as format 1, byte for byte as before."""

_FAMILIES: dict[str, Any] = {
    "sampling": Sampling,
    "budget": Budget,
    "averaging": tuple(AVERAGINGS.values()),
    "clipping": Clipping,
    "multiplicity": Multiplicity,
    "public_gradient": PublicGradient,
}


@dataclass(frozen=True)
class Plan:
    """What shall happen, as a pure value: printable, comparable, serialisable.

    The same fields make the mechanism (sampler, clip, noise, optimizer) and the privacy event, so the two
    cannot disagree. The noise schedule is fixed before the data is touched.

    >>> from saltflat.plan import Poisson
    >>> plan = Plan(Poisson(60_000, 2048), (Phase(1172, 0.1, 4.4627),), Budget(1.0, 1e-5))
    >>> round(plan.epsilon, 3), plan.steps
    (1.0, 1172)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    sampling: Sampling
    phases: tuple[Phase, ...]
    budget: Budget
    optimizer: Optimizer | None = None
    averaging: Averaging = field(default_factory=NoAveraging)
    clipping: Clipping = field(default_factory=FlatClipping)
    multiplicity: Multiplicity = field(default_factory=Multiplicity)
    method: str = "dp-sgd"
    notes: tuple[str, ...] = ()
    public_gradient: PublicGradient = field(default_factory=NoPublicGradient, metadata=LATER)
    federation: Federation | None = field(default=None, metadata=LATER)
    survey: Survey | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        object.__setattr__(self, "notes", tuple(self.notes))
        if not self.phases:
            raise InputError("phases", 0, "at least one phase", problem="phases given")
        for argument, family in _FAMILIES.items():
            check_kind(argument, getattr(self, argument), family)
        for phase in self.phases:
            check_kind("phases", phase, Phase)
        if self.optimizer is not None:
            check_kind("optimizer", self.optimizer, Optimizer)
        check_kind("method", self.method, str)
        for note in self.notes:
            check_kind("notes", note, str)
        if len({phase.learning_rate is None for phase in self.phases}) > 1:
            raise InputError("learning_rate", None, "a learning rate in every phase or in none")
        self._check_federation()
        self._check_survey()
        if self.averaging.is_empty(self.steps):
            raise InputError(
                "averaging", str(self.averaging), f"at least one iterate to average in {self.steps} steps",
                problem="averages nothing", cure="Start earlier, or average more often.",
            )  # fmt: skip
        if self.budget.delta * self.sampling.population >= 1:
            warnings.warn(
                f"delta={self.budget.delta:g} is not below 1/population=1/{self.sampling.population}: "
                "a mechanism that publishes a random row would meet it. Choose a delta well below "
                f"{1 / self.sampling.population:.1g}.",
                PrivacyWarning,
                stacklevel=3,
            )

    def _check_survey(self) -> None:
        if self.survey is None:
            return
        check_kind("survey", self.survey, Survey)
        if self.budget.unit != "example":
            raise InputError(
                "survey", str(self.survey), "unit='example' in a plan with a survey",
                problem="counts rows, of which one unit may have many", cure="Give bounds, and no survey is needed.",
            )  # fmt: skip

    def _check_federation(self) -> None:
        federation = self.federation
        if federation is None:
            if any(isinstance(phase.ascent, OwnGradient) for phase in self.phases):
                raise InputError(
                    "ascent", "own-gradient", "a plan over clients", problem="is an ascent inside a client",
                    cure="Give the plan a federation, or take previous-release or fresh-query.",
                )  # fmt: skip
            return
        check_kind("federation", federation, Federation)
        if self.budget.unit != "client":
            raise InputError("unit", self.budget.unit, "unit='client' in a plan with a federation")
        for phase in self.phases:
            check_kind("ascent", phase.ascent, NoAscent | OwnGradient)
        if isinstance(self.clipping, PerLayerClipping):
            raise InputError(
                "clipping", str(self.clipping), "a clip of the whole update", problem="leaves tensors by themselves",
                cure="Use flat clipping.",
            )  # fmt: skip
        if self.multiplicity != Multiplicity():
            raise InputError("multiplicity", str(self.multiplicity), "one view in a plan over clients")
        if isinstance(federation.placement, SharedNoise):
            self._check_shared(federation.placement, federation)

    def _check_shared(self, placement: SharedNoise, federation: Federation) -> None:
        """With shared noise the server sees sums only, and everyone may know who took part."""
        if self.budget.relation != "zero-out":
            raise InputError(
                "relation", self.budget.relation, "relation='zero-out' with shared noise",
                problem="would hide who takes part, which the server sees",
            )  # fmt: skip
        if not isinstance(self.clipping, FlatClipping) or isinstance(self.sampling, TruncatedPoisson):
            raise InputError(
                "placement", str(placement), "flat clipping and Poisson sampling with shared noise",
                problem="leaves nobody to see the updates one by one",
            )  # fmt: skip
        if placement.survivors > self.sampling.population:
            raise InputError(
                "survivors", placement.survivors, f"survivors <= clients={self.sampling.population}",
                problem="is more than there are clients",
            )  # fmt: skip

    # --- the privacy event ------------------------------------------------------------------------

    @property
    def is_solved(self) -> bool:
        """Whether every phase has its noise."""
        return all(phase.noise_multiplier is not None for phase in self.phases)

    def events(self, first_steps: int | None = None) -> tuple[SampledGaussian, ...]:
        """The releases of the whole plan, or of its first steps, for an accountant; a survey comes before all."""
        left = self.steps if first_steps is None else first_steps
        events = [] if self.survey is None else [self.survey.event()]
        for phase in self.phases:
            count = min(phase.steps, left)
            left -= count
            if count:
                events.append(self.event(phase, count))
        return tuple(events)

    @property
    def shared_noise(self) -> SharedNoise | None:
        """The placement of the noise if clients share it: then cohorts are public, and sampling is not counted."""
        placement = None if self.federation is None else self.federation.placement
        return placement if isinstance(placement, SharedNoise) else None

    def event(self, phase: Phase, steps: int) -> SampledGaussian:
        """What ``steps`` releases of a phase cost."""
        if self.shared_noise is not None:
            return SampledGaussian(self.effective_noise(phase), 1.0, steps)
        return self.sampling.event(self.effective_noise(phase), steps)

    def query_noises(self, phase: Phase) -> tuple[float, ...]:
        """The noise multiplier of every query on one batch: ascent, descent, and the count of a quantile."""
        if isinstance(self.clipping, QuantileClipping):
            return (*phase.query_noises, 2 * self.clipping.count_noise)
        return phase.query_noises

    def effective_noise(self, phase: Phase) -> float:
        """The noise multiplier of one step, all its queries taken together as one release."""
        noises = self.query_noises(phase)
        return noises[0] if len(noises) == 1 else combined_noise(*noises)

    @cached_property
    def epsilon(self) -> float:
        """ε of all phases composed jointly, by privacy loss distributions."""
        return epsilon(self.events(), self.budget.delta)

    @cached_property
    def epsilon_rdp(self) -> float | None:
        """The looser figure of the Rényi accountant."""
        return rdp_epsilon(self.events(), self.budget.delta)

    @cached_property
    def epsilon_replace_one(self) -> float | None:
        """What the same run is worth when one unit is replaced by another."""
        return replace_one_epsilon(self.events(), self.budget.delta)

    def phase_epsilon(self, phase: Phase) -> float:
        """What one phase would cost alone."""
        return epsilon([self.event(phase, phase.steps)], self.budget.delta)

    @property
    def survey_epsilon(self) -> float:
        """What the survey would cost alone; nothing where there is none."""
        return 0.0 if self.survey is None else epsilon([self.survey.event()], self.budget.delta)

    def calibrated_to(self, budget: Budget) -> Plan:
        """The same plan with the least noise that keeps it within ``budget``.

        A survey and phases that already have a noise multiplier keep it. The others get one in proportion to their
        ``noise_ratio``. Guarantees: the result's ``epsilon`` never exceeds the budget's.
        """
        if self.is_solved:
            raise InputError(
                "noise_multiplier", "given in every phase", "at least one phase without it",
                problem="leaves nothing to solve", cure="To compute epsilon from noise, use account.",
            )  # fmt: skip
        scale = least_scale(lambda s: self._at_scale(s).events(), budget.epsilon, budget.delta)
        return self._at_scale(scale).changed(budget=budget)

    def _at_scale(self, scale: float) -> Plan:
        phases = (
            phase
            if phase.noise_multiplier is not None
            else replace(phase, noise_multiplier=rounded_up(scale * phase.noise_ratio))
            for phase in self.phases
        )
        return self.changed(phases=tuple(phases))

    def changed(self, **fields: Any) -> Plan:
        """The plan with some fields changed; what was warned of when it was made is not said again."""
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            return replace(self, **fields)

    # --- the schedule -----------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The number of releases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def steps_per_epoch(self) -> int:
        """How many steps make one pass over the declared population, on average."""
        return max(1, round(1 / self.sampling.rate))

    def phase_at(self, step: int) -> Phase:
        """The phase that a step, counted from zero, belongs to."""
        return self.phases[self.phase_number(step)]

    def phase_number(self, step: int) -> int:
        """The place of that phase in the plan, counted from zero."""
        first = 0
        for number, phase in enumerate(self.phases):
            if first <= step < first + phase.steps:
                return number
            first += phase.steps
        raise InputError("step", step, f"0 <= step < {self.steps}")

    def schedule(self) -> Iterator[Phase]:
        """The phase of each step, in order."""
        for phase in self.phases:
            for _ in range(phase.steps):
                yield phase

    @property
    def averages(self) -> bool:
        """Whether there is an average beside the last iterate."""
        return not isinstance(self.averaging, NoAveraging)

    @property
    def needs_public(self) -> bool:
        """Whether the steps look at public data: ``fit`` then needs ``public=``."""
        return self.multiplicity.rho > 0 or not isinstance(self.public_gradient, NoPublicGradient)

    @property
    def is_private(self) -> bool:
        """Whether every release has noise and a finite sensitivity."""
        surveyed = self.survey is None or self.survey.noise_multiplier > 0
        return (
            math.isfinite(self.budget.epsilon)
            and surveyed
            and all(self.effective_noise(phase) > 0 for phase in self.phases)
        )

    # --- as text ----------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self.table()

    def table(self, rules: Mapping[str, str] | None = None) -> str:
        """The plan for people; with ``rules`` (from ``sf.layer_rules``), also how each layer is clipped."""
        from saltflat.plan.table import plan_table

        return plan_table(self, rules or {})

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, with the version of its format."""
        from saltflat.plan.files import to_dict

        return to_dict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Plan:
        """Read what `to_dict` wrote; unknown or missing keys are refused by name."""
        from saltflat.plan.files import from_dict

        return from_dict(data)

    def to_json(self) -> str:
        """The plan as JSON, keys in a fixed order."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan from JSON."""
        from saltflat.plan.files import from_text

        return from_text(text, "JSON")

    def to_toml(self) -> str:
        """The plan as TOML."""
        from saltflat.plan.files import to_toml

        return to_toml(self)

    @staticmethod
    def from_toml(text: str) -> Plan:
        """Read a plan from TOML."""
        from saltflat.plan.files import from_text

        return from_text(text, "TOML")

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, or as TOML if the name ends so."""
        path = Path(path)
        path.write_text(self.to_toml() if path.suffix == ".toml" else self.to_json(), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file, JSON or TOML by its name."""
        path = Path(path)
        text = path.read_text(encoding="utf-8")
        return Plan.from_toml(text) if path.suffix == ".toml" else Plan.from_json(text)

    @property
    def hash(self) -> str:
        """A fingerprint of everything in the plan."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
