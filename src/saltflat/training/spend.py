"""A run and its account: everything that a plan can release is reserved before the first release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saltflat.errors import InputError
from saltflat.plan import Plan
from saltflat.record.account import Account, ReservationError, new_reservation
from saltflat.record.balance import Charge
from saltflat.record.ledger import Ledger, LedgerError
from saltflat.training.step import Loop

AccountName = Account | str | None
LoopWith = Callable[[Ledger, int | None], Loop]
"""From a ledger and a seed to a loop that records there."""


def opened(account: AccountName) -> Account | None:
    """The account that is meant: itself, or the one of that name in the usual folder."""
    if account is None or isinstance(account, Account):
        return account
    if not isinstance(account, str):
        raise InputError("account", account, "the name of an account, or sf.Account.open(name)")
    return Account.open(account)


def charge_of(plan: Plan, seed: int | None = None) -> Charge:
    """What a run of this plan can release at most. A run without privacy has no price, and is refused."""
    if seed is not None:
        raise InputError(
            "account", "an account", "no seed with an account",
            problem="cannot cover a run whose noise is drawn from a seed and predictable",
            cure="Leave the seed out, or the account.",
        )  # fmt: skip
    if not plan.is_private:
        raise InputError(
            "account", "an account", "a plan with noise in every release",
            problem="cannot cover a run without privacy", cure="Leave the account out for such a run.",
        )  # fmt: skip
    budget = plan.budget
    return Charge(plan.events(), plan.epsilon, budget.delta, budget.relation, budget.unit)


@dataclass(frozen=True)
class Spending:
    """The account of a run, and what a new run takes from it. A run that goes on has paid already."""

    account: Account | None
    charge: Charge | None

    @staticmethod
    def of(plan: Plan, settings: Mapping[str, Any]) -> Spending:
        """What the settings of a run say."""
        account = opened(settings.get("account"))
        pays = account is not None and settings.get("resume") is None
        return Spending(account, charge_of(plan, settings.get("seed")) if pays else None)


def reserve(account: Account, charge: Charge, ledger: Ledger, where: Path | None) -> str:
    """Name the reservation in the ledger, then make it. Nothing may be released before this returns."""
    reservation, terms = new_reservation(), account.balance().terms
    ledger.record("account", account=terms.name, account_id=terms.id, reservation=reservation)
    return account.reserve(
        charge, reservation=reservation, where=None if where is None else str(where.resolve())
    )


def reserving(loop_with: LoopWith, spending: Spending, out: str | Path | None) -> LoopWith:
    """A loop whose whole plan is reserved as soon as it is there, if there is an account."""
    account, charge = spending.account, spending.charge
    if account is None or charge is None:
        return loop_with
    if out is not None:
        return_leftover(account, out)
    account.check([charge])  # before a folder is made

    def reserved(ledger: Ledger, seed: int | None) -> Loop:
        loop = loop_with(ledger, seed)
        reserve(account, charge, ledger, None if out is None else Path(out))
        return loop

    return reserved


def return_leftover(account: Account, out: str | Path) -> None:
    """Give back what a run reserved that was cut off in this folder before it began: it is begun anew."""
    ledger = Path(out) / "ledger.jsonl"
    if not ledger.exists() or (Path(out) / "plan.json").exists():
        return
    try:
        named = Ledger.read(ledger, cut_short=True).account
        if named is not None and named.get("account_id") == account.balance().terms.id:
            account.give_back(str(named["reservation"]))
    except (ReservationError, LedgerError):
        return  # never made, or not to be given back; the folder's own checks come next


def confirm(ledger: Ledger, account: AccountName) -> None:
    """A run that goes on must still hold its one reservation, in the account that it was started with."""
    named = ledger.account
    if named is None:
        if account is not None:
            name = account if isinstance(account, str) else account.name
            raise InputError(
                "account", name, "none, as the run was started", problem="differs from the run that is to go on",
                cure="A run is covered from its first release on, or not at all.",
            )  # fmt: skip
        return
    found = opened(named["account"] if account is None else account)
    assert found is not None
    if found.balance().terms.id != named["account_id"]:
        raise InputError(
            "account", found.name, f"the account {named['account']!r} that the run was started with",
            problem="is another one", cure="Name its folder: SALTFLAT_BUDGETS, or --budgets.",
        )  # fmt: skip
    found.confirm(named["reservation"])
