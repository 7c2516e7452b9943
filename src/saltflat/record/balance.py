"""What an account has granted, and what is left of it: pure values, computed from its entries.

Two rules, of which an account has one from its first day on. Both are privacy filters: they hold although the
settings of a later run are chosen from the results of earlier ones, and although runs go on side by side.

- ``rdp``: the Rényi divergences of all runs, at one order, add up to what is worth (ε, δ) (Feldman and Zrnic
  2021). Many runs cost little more than their joint ε.
- ``sum``: the ε of all runs add up to ε, and their δ to δ (Rogers et al. 2016). Looser for several runs, and
  open to every run, truncated sampling included.

Adding up privacy loss distributions would be tighter than both, but is no filter: it holds only if no run was
chosen from another's results. The balance gives that figure beside the verdict and never decides by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from saltflat.accounting import COARSE, PrivacyFilter, Relation, SampledGaussian, epsilon
from saltflat.errors import InputError, OverdrawnError
from saltflat.plan import Budget
from saltflat.plan.budget import Unit
from saltflat.record.ledger import LedgerError

Rule = Literal["rdp", "sum"]

# Sums of decimal fractions such as ten times 1e-6 may land a rounding above what they mean.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Terms:
    """What an account was opened with. They never change."""

    name: str
    id: str
    epsilon: float
    delta: float
    relation: Relation = "add-remove"
    unit: Unit = "example"
    rule: Rule = "rdp"
    order: float | None = None
    fingerprint_sha256: str | None = None

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta, self.relation, self.unit)
        if self.rule not in get_args(Rule):
            raise InputError("rule", self.rule, "'rdp' or 'sum'")
        if math.isinf(self.epsilon):
            raise InputError("epsilon", self.epsilon, "a finite epsilon > 0")
        if self.rule == "rdp":
            chosen = PrivacyFilter(self.epsilon, self.delta, order=self.order).order
            object.__setattr__(self, "order", chosen)
        elif self.order is not None:
            raise InputError("order", self.order, "an order with rule='rdp' only", problem="is given")


@dataclass(frozen=True)
class Charge:
    """What one run or evaluation may release at most: its events, and what they cost alone."""

    events: tuple[SampledGaussian, ...]
    epsilon: float
    delta: float
    relation: Relation
    unit: Unit
    what: str = "train"

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the account's file."""
        return {
            "what": self.what,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "unit": self.unit,
            "events": [
                {"noise_multiplier": e.noise_multiplier, "rate": e.rate, "steps": e.steps}
                | ({} if e.cap is None else {"population": e.population, "cap": e.cap})
                for e in self.events
            ],
        }

    @staticmethod
    def from_dict(entry: dict[str, Any]) -> Charge:
        """Read what `to_dict` wrote; anything else is a `LedgerError`."""
        try:
            events = tuple(SampledGaussian(**event) for event in entry["events"])
            cost, delta = float(entry["epsilon"]), float(entry["delta"])
            if not (events and 0 <= cost < math.inf and 0 < delta < 1):
                raise ValueError("it costs no number")
            return Charge(events, cost, delta, entry["relation"], entry["unit"], str(entry["what"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"Entry {entry.get('entry')} of the account cannot be read ({error})."
            ) from error


@dataclass(frozen=True)
class Held:
    """A charge in an account: who holds it, since when, and whether it was given back."""

    reservation: str
    charge: Charge
    where: str | None
    time: str
    returned: bool = False


@dataclass(frozen=True)
class Balance:
    """The state of an account at one moment."""

    terms: Terms
    held: tuple[Held, ...] = ()
    closed: bool = False

    @property
    def live(self) -> tuple[Charge, ...]:
        """Everything that counts: all charges but those that were given back."""
        return tuple(held.charge for held in self.held if not held.returned)

    @property
    def share(self) -> float:
        """The share of the budget that is spent or reserved."""
        return self._share(self.live)

    def share_of(self, held: Held) -> float:
        """The share of the budget that one reservation takes, or took before it was given back."""
        return self._share([held.charge])

    def check(self, charges: Sequence[Charge], what: str = "This run") -> None:
        """Refuse charges that differ in relation or unit, and those that would overdraw the account."""
        terms = self.terms
        if self.closed:
            raise OverdrawnError(f"{self._name}: it was closed, and grants nothing any more.")
        for charge in charges:
            for word in ("relation", "unit"):
                found, own = getattr(charge, word), getattr(terms, word)
                if found != own:
                    raise InputError(
                        word, found, f"{own}, as the account {terms.name!r} has it",
                        problem="is another than the account's",
                        cure="Costs of different claims do not add up. "
                        + ("Declare the population (and the size of a hold-out)." if own == "add-remove"
                           and word == "relation" else "Open an account for this claim."),
                    )  # fmt: skip
        if self._fits((*self.live, *charges)):
            return
        raise OverdrawnError(
            f"{self._name} would be overdrawn.\n"
            f"  {self.words}.\n"
            f"  {what} would take {self._share(charges):.2%} of it"
            f" ({'alone: ' if len(charges) == 1 else 'added up: '}"
            f"ε = {_total(charges)[0]:.4g} at δ = {_total(charges)[1]:g}).\n"
            f"  {self._cure(charges)}"
        )

    def _share(self, charges: Sequence[Charge]) -> float:
        if self.terms.rule == "rdp":
            budget = self._filter()
            return budget.cost(*_events(charges)) / budget.capacity
        spent, deltas = _total(charges)
        return max(spent / self.terms.epsilon, deltas / self.terms.delta)

    def _fits(self, charges: Sequence[Charge]) -> bool:
        if self.terms.rule == "rdp":
            return self._filter().can_spend(*_events(charges))
        return self._share(charges) <= 1 + ROUNDING

    def _filter(self) -> PrivacyFilter:
        return PrivacyFilter(self.terms.epsilon, self.terms.delta, order=self.terms.order)

    def _cure(self, charges: Sequence[Charge]) -> str:
        if self.terms.rule == "sum":
            spent, deltas = _total(self.live)
            return (
                f"Left are ε = {max(0.0, self.terms.epsilon - spent):.4g} and "
                f"δ = {max(0.0, self.terms.delta - deltas):.4g}."
            )
        budget = self._filter()
        if self.live:
            budget.spend(*_events(self.live))
        scale = budget.noise_scale(*_events(charges))
        return (
            "Nothing is left." if scale is None else f"With its noise multiplied by {scale:.4g} it would fit."
        )

    @property
    def _name(self) -> str:
        return f"The account {self.terms.name!r} (ε = {self.terms.epsilon:g}, δ = {self.terms.delta:g})"

    @property
    def words(self) -> str:
        """One sentence: how much is spent, and what is left."""
        return f"{self.share:.2%} of it is spent or reserved, {max(0.0, 1 - self.share):.2%} is left"

    @property
    def epsilon_if_fixed(self) -> float:
        """The joint ε of everything by PLD, at the account's δ. It holds only if no run was chosen from the
        results of another; it is a second opinion, not the rule.
        """
        return epsilon(_events(self.live), self.terms.delta, grid=COARSE)

    @property
    def epsilon_left(self) -> float:
        """The ε of the one Gaussian release that would use up what is left, alone, at the account's δ."""
        if self.terms.rule == "sum":
            return max(0.0, self.terms.epsilon - _total(self.live)[0])
        budget = self._filter()
        left = max(0.0, budget.capacity - budget.cost(*_events(self.live)))
        if left < 1e-9 * budget.capacity:
            return 0.0
        gaussian = SampledGaussian(math.sqrt(budget.order / (2 * left)), 1.0, 1)
        return epsilon([gaussian], self.terms.delta, grid=COARSE)


def _events(charges: Sequence[Charge]) -> list[SampledGaussian]:
    return [event for charge in charges for event in charge.events]


def _total(charges: Sequence[Charge]) -> tuple[float, float]:
    return math.fsum(c.epsilon for c in charges), math.fsum(c.delta for c in charges)
