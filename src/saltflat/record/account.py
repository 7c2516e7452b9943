"""One budget over many runs: an account for a data set, kept in a file that is only ever added to.

The account ``visits`` is ``visits.jsonl``, a chain of hashed entries like a run's ledger, and ``visits.head``,
which says how far the chain has come: a file that lost its last entries is found out. Every change is made
while a lock is held, and is on the disk before anyone learns of it. So two processes cannot both take the rest.

A run reserves all that its plan can release *before* its first release. Order of writes:

1. the run's ledger names the reservation that is about to be made;
2. the account holds it;                      from here on it counts
3. the run begins.

Cut between 1 and 2: nothing is reserved, and the run has not begun. Cut between 2 and 3: it is reserved, and the
ledger shows that nothing was released; `give_back` returns it. After the first release it is spent for good.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from saltflat.accounting import Relation
from saltflat.errors import InputError, SaltflatError, nearest
from saltflat.plan.budget import Unit
from saltflat.record.atomic import write_whole
from saltflat.record.balance import Balance, Charge, Held, Rule, Terms
from saltflat.record.ledger import Ledger, LedgerError
from saltflat.record.lock import FolderLock, waited_for

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ReservationError(SaltflatError):
    """A reservation that is not there, was given back, or may not be given back."""


def budgets_dir(budgets: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all accounts: the one that is named, or ``SALTFLAT_BUDGETS``, or a place for lasting state.

    >>> str(budgets_dir("/data/budgets"))
    '/data/budgets'
    """
    named = budgets if budgets is not None else os.environ.get("SALTFLAT_BUDGETS")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "saltflat" / "budgets"


class Account:
    """The budget of one data set over all runs on it.

    ``fingerprint``, if given, is a text of yours that names the data (a version, a checksum that may be public);
    it must be the one that the account was created with. It is never made from the rows.

    Guarantees: everything that was reserved and not given back stays within the account's (ε, δ), for the
    account's relation and unit, also if runs go on side by side and each is chosen from the results of others.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> account = Account.create("visits", epsilon=4.0, delta=1e-6, budgets=folder)
    >>> from saltflat.accounting import SampledGaussian
    >>> run = Charge((SampledGaussian(2.0, 0.01, 1000),), 1.2, 1e-6, "add-remove", "example")
    >>> name = account.reserve(run)
    >>> print(f"{Account.open('visits', budgets=folder).balance().share:.1%}")
    4.6%
    """

    def __init__(self, path: Path, fingerprint: str | None = None) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.name = path.name.removesuffix(".jsonl")

    @staticmethod
    def create(
        name: str,
        epsilon: float,
        delta: float,
        *,
        relation: Relation = "add-remove",
        unit: Unit = "example",
        rule: Rule = "rdp",
        order: float | None = None,
        fingerprint: str | None = None,
        budgets: str | os.PathLike[str] | None = None,
    ) -> Account:
        """A new account. Its terms cannot be changed later; one that is there already is refused."""
        account = Account(_path(name, budgets), fingerprint)
        hashed = None if fingerprint is None else _hashed(fingerprint)
        terms = Terms(name, secrets.token_hex(8), epsilon, delta, relation, unit, rule, order, hashed)
        account.path.parent.mkdir(parents=True, exist_ok=True)
        with waited_for(account._lock):
            if account.path.exists() and Ledger.read(account.path, cut_short=True).entries:
                raise InputError(
                    "name", name, "a name that is not taken", problem=f"is an account in {account.path.parent}",
                    cure="See it with: saltflat budget show. To spend more than its budget is to open another.",
                )  # fmt: skip
            account.path.unlink(missing_ok=True)
            account._write(Ledger(account.path), "account", format=FORMAT, **asdict(terms))
        return account

    @staticmethod
    def open(
        name: str, *, budgets: str | os.PathLike[str] | None = None, fingerprint: str | None = None
    ) -> Account:
        """An account that is there; another fingerprint than its own is refused."""
        account = Account(_path(name, budgets), fingerprint)
        if not account.path.exists():
            raise InputError(
                "account", name, f"an account in {account.path.parent}", problem="is not there",
                cure=f"Create it: saltflat budget create {name} --epsilon ... {nearest(name, names(budgets))}",
            )  # fmt: skip
        account.balance()
        return account

    def balance(self) -> Balance:
        """What is granted, and what is left."""
        with waited_for(self._lock):
            return self._read()[1]

    def check(self, charges: Sequence[Charge], what: str = "This run") -> None:
        """Refuse, without any change, what could not be reserved now."""
        self.balance().check(charges, what)

    def reserve(self, charge: Charge, *, reservation: str | None = None, where: str | None = None) -> str:
        """Take a charge from the account; returns the name of the reservation. Refused, nothing has changed.

        ``where`` is the run folder, in whose ledger it can be seen what was really released.
        """
        reservation = new_reservation() if reservation is None else reservation
        with self._changing() as (balance, write):
            balance.check([charge])
            if any(held.reservation == reservation for held in balance.held):
                raise ReservationError(f"The reservation {reservation} is there already.")
            write("reserve", reservation=reservation, where=where, **charge.to_dict())
        return reservation

    def confirm(self, reservation: str) -> Held:
        """The reservation, if it still counts. A run that goes on must still hold its own."""
        held = self._find(self.balance(), reservation)
        if held.returned:
            raise ReservationError(
                f"The reservation {reservation} was given back to the account {self.name!r}: "
                "its run can release nothing any more. Start a new run."
            )
        return held

    def give_back(self, reservation: str, *, without_ledger: bool = False) -> None:
        """Return what a run reserved that never released anything, as its own ledger shows.

        With ``without_ledger`` there is no such ledger, and your word stands for it; the account records that.
        A run folder that is there is looked at in any case: what it records stays spent.
        """
        held = self.confirm(reservation)
        folder = None if held.where is None else Path(held.where)
        # keeps every run out; one that is under way there is an InUseError
        with nullcontext() if folder is None or not folder.is_dir() else FolderLock(folder):
            evidence = _shows_nothing(folder, reservation)
            if not (evidence or without_ledger):
                raise ReservationError(
                    f"Nothing shows that the run of reservation {reservation} released nothing: "
                    f"there is no ledger of it in {held.where or 'any folder, for it had none'}.\n"
                    "  If you know that it never started, say so: --without-ledger. The account records your word."
                )
            with self._changing() as (balance, write):
                if self._find(balance, reservation).returned:
                    raise ReservationError(f"The reservation {reservation} was given back already.")
                write("return", reservation=reservation, evidence="ledger" if evidence else "declared")

    def close(self) -> None:
        """Grant nothing any more. What is reserved may be used to its end."""
        with self._changing() as (balance, write):
            if not balance.closed:
                write("close")

    # --- the file ---------------------------------------------------------------------------------

    @property
    def _lock(self) -> Path:
        return self.path.with_suffix(".lock")

    @property
    def _head(self) -> Path:
        return self.path.with_suffix(".head")

    @contextmanager
    def _changing(self) -> Iterator[tuple[Balance, Callable[..., None]]]:
        with waited_for(self._lock):
            ledger, balance = self._read()
            self._write_head(ledger)  # after a crash it is an entry behind, and must not fall back by two
            yield balance, lambda kind, **facts: self._write(ledger, kind, **facts)

    def _write(self, ledger: Ledger, kind: str, **facts: Any) -> None:
        try:
            ledger.record(kind, **facts, time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        finally:
            ledger.close()
        self._write_head(ledger)

    def _write_head(self, ledger: Ledger) -> None:
        head = f"{len(ledger.entries)} {ledger.head}\n".encode()
        if not self._head.exists() or self._head.read_bytes() != head:
            write_whole(self._head, head)

    def _read(self) -> tuple[Ledger, Balance]:
        ledger = Ledger.read(self.path, cut_short=True)
        if not ledger.entries or ledger.entries[0]["kind"] != "account":
            raise LedgerError(f"{self.path} is no account: it does not begin as one.")
        self._check_head(ledger)
        terms = _terms(ledger.entries[0], self.path.name)
        if self.fingerprint is not None and terms.fingerprint_sha256 != _hashed(self.fingerprint):
            has = "has none" if terms.fingerprint_sha256 is None else "has another"
            raise InputError(
                "fingerprint", self.fingerprint, f"the fingerprint of the account {self.name!r}",
                problem=f"is given, and the account {has}",
                cure="Is this the account of another data set, or of another version of this one?",
            )  # fmt: skip
        return ledger, _balance(terms, ledger)

    def _check_head(self, ledger: Ledger) -> None:
        """The chain may be one entry ahead of its head, after a crash, and never behind it."""
        count, head = 1, ledger.entries[0]["hash"]
        if self._head.exists():
            words = self._head.read_text(encoding="utf-8", errors="replace").split()
            if len(words) != 2 or not words[0].isdigit() or int(words[0]) < 1:
                raise LedgerError(f"{self._head} is damaged: it does not say how long the account is.")
            count, head = int(words[0]), words[1]
        if len(ledger.entries) not in (count, count + 1) or ledger.entries[count - 1]["hash"] != head:
            raise LedgerError(
                f"{self.path} has {len(ledger.entries)} entries and {self._head.name} knows of {count}, "
                "or of others: the account was cut or exchanged. Bring both files back from one copy."
            )

    def _find(self, balance: Balance, reservation: str) -> Held:
        for held in balance.held:
            if held.reservation == reservation:
                return held
        raise ReservationError(
            f"The account {self.name!r} has no reservation {reservation}. "
            + nearest(reservation, [held.reservation for held in balance.held])
        )


def new_reservation() -> str:
    """A name for a reservation that nobody else has."""
    return secrets.token_hex(6)


def names(budgets: str | os.PathLike[str] | None = None) -> list[str]:
    """All accounts of a folder."""
    folder = budgets_dir(budgets)
    return sorted(path.name.removesuffix(".jsonl") for path in folder.glob("*.jsonl"))


def _path(name: str, budgets: str | os.PathLike[str] | None) -> Path:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError("account", name, "a name of letters, digits, '.', '_' and '-'")
    return budgets_dir(budgets) / f"{name}.jsonl"


def _hashed(fingerprint: str) -> str:
    if not isinstance(fingerprint, str) or not fingerprint:
        raise InputError("fingerprint", fingerprint, "a text that names the data")
    return hashlib.sha256(fingerprint.encode()).hexdigest()


def _terms(entry: dict[str, Any], file: str) -> Terms:
    try:
        return Terms(**{key: entry[key] for key in Terms.__dataclass_fields__})
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{file}: the terms of the account cannot be read ({error}).") from error


def _balance(terms: Terms, ledger: Ledger) -> Balance:
    held: dict[str, Held] = {}
    closed = False
    for entry in ledger.entries[1:]:
        kind, reservation = entry["kind"], entry.get("reservation")
        if kind == "reserve" and isinstance(reservation, str) and reservation not in held:
            where = entry.get("where")
            held[reservation] = Held(
                reservation,
                Charge.from_dict(entry),
                None if where is None else str(where),
                str(entry["time"]),
            )
        elif kind == "return" and reservation in held:
            held[reservation] = replace(held[reservation], returned=True)
        elif kind == "close":
            closed = True
        else:
            raise LedgerError(f"Entry {entry['entry']} of the account {terms.name!r} makes no sense there.")
    return Balance(terms, tuple(held.values()), closed)


def _shows_nothing(folder: Path | None, reservation: str) -> bool:
    """Whether a run's ledger shows that nothing was released under a reservation. Anything released is refused."""
    shown = False
    for name in ("ledger.jsonl", "evaluations.jsonl"):
        if folder is None or not (folder / name).exists():
            continue
        ledger = Ledger.read(folder / name, cut_short=True)
        mine = [entry for entry in ledger.entries if entry.get("reservation") == reservation]
        if mine and not ledger.shows_nothing:
            raise ReservationError(
                f"The run in {folder} has recorded releases: what it reserved is spent, and stays spent."
            )
        if any(entry["kind"] == "evaluation" for entry in mine):
            raise ReservationError(f"The evaluation in {folder} is recorded: it is spent, and stays spent.")
        shown = shown or bool(mine)
    return shown
