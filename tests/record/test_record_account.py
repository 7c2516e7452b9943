"""An account over runs: never overdrawn, not by processes side by side, not by a crash; tampering is found out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from account_helpers import CHARGE, dies_at, taken

from saltflat.accounting import PrivacyFilter, SampledGaussian, renyi_divergence
from saltflat.errors import InputError, OverdrawnError, SaltflatError
from saltflat.record.account import Account, ReservationError, budgets_dir, names
from saltflat.record.balance import Charge
from saltflat.record.ledger import Ledger, LedgerError, entry_hash

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")


def charge(sigma: float = 20.0, epsilon: float = 0.2, delta: float = 1e-7, **other: str) -> Charge:
    settings = {"relation": "add-remove", "unit": "example"} | other
    return Charge((SampledGaussian(sigma, 1.0, 1),), epsilon, delta, **settings)  # type: ignore[arg-type]


def most(account: Account) -> int:
    """How many of the worker's charges fit, by the filter's own arithmetic."""
    terms = account.balance().terms
    budget = PrivacyFilter(terms.epsilon, terms.delta, order=terms.order)
    return int(budget.capacity / renyi_divergence(CHARGE.events, budget.order) * (1 + 1e-12))


@forks
def test_processes_side_by_side_never_take_more_than_there_is(tmp_path: Path) -> None:
    """Six processes, all of which want everything. Fails when the lock is left out (tried)."""
    account = Account.create("shared", 1.0, 1e-6, budgets=tmp_path)
    expected = most(account)
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            code = 255
            try:
                code = taken(account)
            finally:
                os._exit(code)
        children.append(child)
    granted = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    balance = account.balance()
    assert sum(granted) == len(balance.live) == expected
    assert balance.share <= 1
    assert len({held.reservation for held in balance.held}) == len(balance.held)


@forks
def test_a_process_that_is_killed_in_the_middle_of_a_write_harms_nobody(tmp_path: Path) -> None:
    """At every cut, write, sync and rename of two reservations: the account stays readable, is never overdrawn,
    and holds a reservation as soon as its line is whole.
    """
    counts = []
    for call in range(1, 15):
        account = Account.create(f"a{call}", 1.0, 1e-6, budgets=tmp_path)
        child = os.fork()
        if child == 0:
            dies_at(call)
            taken(account)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        counts.append(len(account.balance().held))
        if call in (2, 3, 6, 9):  # half a line; a whole one; before and after the head
            assert taken(account) == most(account) - counts[-1]
            assert account.balance().share <= 1
    # one reservation: cut off what is not whole, write, sync; write, sync, rename and sync the head
    assert counts == [0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]


def test_two_writes_in_a_row_that_fail_harm_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain may be ahead of its head by one entry. Fails when the next change does not bring the head up first
    (tried: the account then says that it was cut or exchanged).
    """
    account = Account.create("full-disk", 1.0, 1e-6, budgets=tmp_path)

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("saltflat.record.account.write_whole", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                account.reserve(CHARGE)
    assert len(account.balance().held) == 1  # it was on the disk, and the second was not begun
    account.reserve(CHARGE)
    assert len(account.balance().held) == 2


def test_what_costs_less_than_can_be_told_leaves_the_account_readable(tmp_path: Path) -> None:
    """A plan may cost ε = 0 at its δ. Fails when such a charge is refused on reading (tried)."""
    account = Account.create("small", 1.0, 1e-6, budgets=tmp_path)
    account.reserve(charge(epsilon=0.0))
    assert len(Account.open("small", budgets=tmp_path).balance().live) == 1


def test_the_numbers_of_a_refusal(tmp_path: Path) -> None:
    account = Account.create("a", 1.0, 1e-6, budgets=tmp_path)
    account.reserve(charge(6.0))
    with pytest.raises(OverdrawnError) as refused:
        account.reserve(charge(4.0, 1.1))
    text = str(refused.value)
    assert "'a' (ε = 1, δ = 1e-06) would be overdrawn" in text
    share = account.balance().share
    assert f"{share:.2%} of it is spent" in text
    assert "alone: ε = 1.1" in text
    scale = float(text.rsplit("multiplied by ", 1)[1].split()[0])
    account.check([charge(4.0 * scale)])
    with pytest.raises(OverdrawnError):
        account.check([charge(4.0 * scale * 0.995)])


def test_the_sum_rule_adds_epsilon_and_delta(tmp_path: Path) -> None:
    account = Account.create("a", 1.0, 1e-6, rule="sum", budgets=tmp_path)
    truncated = Charge((SampledGaussian(2.0, 0.1, 5, 1000, 150),), 0.1, 1e-7, "add-remove", "example")
    account.reserve(truncated)  # no Rényi bound, and none needed
    for _ in range(9):
        account.reserve(charge(epsilon=0.1))
    with pytest.raises(OverdrawnError, match="Left are ε = 0"):
        account.reserve(charge(epsilon=1e-3, delta=1e-12))
    other = Account.create("b", 1.0, 1e-6, rule="sum", budgets=tmp_path)
    with pytest.raises(OverdrawnError):
        other.reserve(charge(epsilon=0.1, delta=2e-6))


def test_other_claims_and_other_data_are_refused(tmp_path: Path) -> None:
    account = Account.create("a", 1.0, 1e-6, budgets=tmp_path, fingerprint="visits 3")
    for other in ({"relation": "zero-out"}, {"unit": "person"}):
        with pytest.raises(InputError, match=r"another than the account's"):
            account.reserve(charge(**other))
    with pytest.raises(InputError, match="the account has another"):
        Account.open("a", budgets=tmp_path, fingerprint="visits 4")
    Account.open("a", budgets=tmp_path, fingerprint="visits 3")
    Account.create("b", 1.0, 1e-6, budgets=tmp_path)
    with pytest.raises(InputError, match="the account has none"):
        Account.open("b", budgets=tmp_path, fingerprint="visits 3")
    assert "visits 3" not in account.path.read_text()
    with pytest.raises(InputError, match="a name that is not taken"):
        Account.create("a", 9.0, 1e-6, budgets=tmp_path)
    with pytest.raises(InputError, match=r"Known: a, b"):
        Account.open("ab", budgets=tmp_path)
    for name in ("", "../a", "a/b", ".a", "a" * 101):
        with pytest.raises(InputError, match="letters, digits"):
            Account.create(name, 1.0, 1e-6, budgets=tmp_path)
    assert names(tmp_path) == ["a", "b"]


def test_a_closed_account_grants_nothing(tmp_path: Path) -> None:
    account = Account.create("a", 1.0, 1e-6, budgets=tmp_path)
    held = account.reserve(charge())
    account.close()
    account.close()
    with pytest.raises(OverdrawnError, match="closed"):
        account.reserve(charge())
    assert account.confirm(held).reservation == held


def test_only_what_was_never_released_comes_back(tmp_path: Path) -> None:
    """Fails when the ledger's releases are not looked for (tried)."""
    account = Account.create("a", 1.0, 1e-6, budgets=tmp_path / "budgets")
    run = tmp_path / "run"
    run.mkdir()
    ledger = Ledger(run / "ledger.jsonl")
    ledger.open_run(plan_hash="ab", randomness="fast")
    ledger.record("account", account="a", account_id="x", reservation="one")
    account.reserve(charge(), reservation="one", where=str(run))
    account.reserve(charge(), reservation="two", where=str(run))
    account.reserve(charge(), reservation="three")
    before = account.balance().share
    for nowhere in ("two", "three"):
        with pytest.raises(ReservationError, match="Nothing shows"):
            account.give_back(nowhere)
    account.give_back("three", without_ledger=True)
    account.give_back("one")
    assert account.balance().share == pytest.approx(before / 3)
    with pytest.raises(ReservationError, match="was given back"):
        account.give_back("one")
    with pytest.raises(ReservationError, match="Start a new run"):
        account.confirm("one")
    ledger.record("account", account="a", account_id="x", reservation="two")
    ledger.record_release(step=1, phase=0, queries=(2.0,), sampling={"rate": 0.1}, clip_norm=1.0)
    ledger.close()
    for declared in (False, True):
        with pytest.raises(ReservationError, match="stays spent"):
            account.give_back("two", without_ledger=declared)
    with pytest.raises(ReservationError, match="no reservation four"):
        account.give_back("four")


def test_every_change_to_the_file_is_found_out(tmp_path: Path) -> None:
    """A changed number, a removed line, a line that was cut off the end, an exchanged head, and other damage."""
    account = Account.create("a", 1.0, 1e-6, budgets=tmp_path)
    for _ in range(3):
        account.reserve(charge())
    whole, head = account.path.read_bytes(), account.path.with_suffix(".head").read_bytes()
    lines = whole.splitlines(keepends=True)
    for broken in (
        whole.replace(b'"epsilon": 1.0', b'"epsilon": 9.0'),
        whole.replace(b'"noise_multiplier": 20.0', b'"noise_multiplier": 90.0', 1),
        b"".join(lines[:1] + lines[2:]),
        b"".join(lines[:-1]),
        b"".join(lines[:-1]) + lines[-1][:20],
        b"",
        b"\xff\n",
        b"[]\n",
        b'{"a": 1}\n',
    ):
        account.path.write_bytes(broken)
        with pytest.raises((LedgerError, SaltflatError)):
            account.balance()
        with pytest.raises((LedgerError, SaltflatError)):
            account.reserve(charge())
        assert account.path.read_bytes() == broken
    account.path.write_bytes(whole)
    for broken in (b"", b"x y", b"2 " + b"0" * 64, head.replace(b"4", b"7", 1)):
        account.path.with_suffix(".head").write_bytes(broken)
        with pytest.raises(LedgerError):
            account.balance()
    account.path.with_suffix(".head").unlink()
    with pytest.raises(LedgerError, match="cut or exchanged"):
        account.balance()
    account.path.with_suffix(".head").write_bytes(head)
    assert len(account.balance().held) == 3


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "reserve", "reservation": "x", "events": []},
        {"kind": "return", "reservation": "nobody's"},
        {"kind": "gift"},
        {"kind": "reserve", "reservation": "x", "time": "", "what": "train", "epsilon": -1.0, "delta": 1e-7,
         "relation": "add-remove", "unit": "example", "events": [{"noise_multiplier": 2.0, "rate": 1.0, "steps": 1}]},
    ],
)  # fmt: skip
def test_a_well_hashed_entry_that_makes_no_sense_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    account = Account.create("a", 1.0, 1e-6, budgets=tmp_path)
    first = json.loads(account.path.read_text())
    forged = {"entry": 1, **entry, "previous": first["hash"]}
    forged["hash"] = entry_hash(forged)
    with account.path.open("a") as file:
        file.write(json.dumps(forged) + "\n")
    with pytest.raises(LedgerError):
        account.balance()


def test_where_accounts_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SALTFLAT_BUDGETS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert budgets_dir() == tmp_path / "saltflat" / "budgets"
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path / "b"))
    assert budgets_dir() == tmp_path / "b"
    assert budgets_dir(tmp_path / "c") == tmp_path / "c"
