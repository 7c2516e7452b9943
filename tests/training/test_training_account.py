"""Runs and their account: reserved before the first release, once, and refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat import plans
from saltflat.errors import InputError, OverdrawnError
from saltflat.plan import Plan
from saltflat.record.account import ReservationError
from saltflat.record.ledger import Ledger
from saltflat.training import spend


def plan(sigma: float = 6.0, **settings: object) -> Plan:
    words = {"population": 40, "batch_size": 8, "steps": 4, "delta": 1e-3} | settings
    return plans.dp_sgd(noise_multiplier=sigma, **words)  # type: ignore[arg-type]


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sf.Account:
    monkeypatch.setenv("SALTFLAT_BUDGETS", str(tmp_path / "budgets"))
    return sf.Account.create("rows", 1.0, 1e-3)


def test_a_run_reserves_its_whole_plan_before_its_first_release(account: sf.Account, tmp_path: Path) -> None:
    """Fails when the reservation is made at the end (tried: nothing is held when the first step comes)."""
    walk = sf.steps(small_net(), small_data(), plan(), account="rows", out=tmp_path / "run")
    next(walk)
    (held,) = account.balance().held
    assert held.charge.events == plan().events()
    assert held.where == str((tmp_path / "run").resolve())
    walk.close()
    assert account.balance().held == (held,)  # stopping early gives nothing back
    entries = Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
    assert [entry["kind"] for entry in entries] == ["run", "account", "release"]
    with pytest.raises(ReservationError, match="stays spent"):
        account.give_back(held.reservation)


def test_the_certificate_names_account_and_reservation(account: sf.Account) -> None:
    run = sf.fit(small_net(), small_data(), plan(), account=account, progress=False)
    (held,) = account.balance().held
    assert run.certificate.data["account"]["reservation"] == held.reservation
    assert "within the account 'rows'" in str(run.certificate)
    plain = sf.fit(small_net(), small_data(), plan(), progress=False)
    assert plain.certificate.data["account"] is None
    assert "within the account" not in str(plain.certificate)


def test_what_would_overdraw_is_refused_and_leaves_nothing(account: sf.Account, tmp_path: Path) -> None:
    before = account.path.read_bytes()
    with pytest.raises(OverdrawnError, match="would be overdrawn"):
        sf.fit(small_net(), small_data(), plan(0.3), account="rows", out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    assert account.path.read_bytes() == before


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        (plan(), {"seed": 1}, "predictable"),
        (plans.sgd(population=40, batch_size=8, steps=2), {}, "without privacy"),
        (plan(relation="zero-out"), {}, "relation='zero-out'"),
        (plan(), {"account": "nobody"}, "is not there"),
        (plan(), {"account": 3}, "the name of an account"),
    ],
)
def test_what_an_account_cannot_cover_is_refused(
    account: sf.Account, made: Plan, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        sf.fit(small_net(), small_data(), made, **({"account": "rows", "progress": False} | settings))  # type: ignore[arg-type]
    assert account.balance().held == ()


def test_resuming_keeps_the_one_reservation(account: sf.Account, tmp_path: Path) -> None:
    """Twice cut off and resumed: one reservation. Another account, or one given back, is refused."""
    out = tmp_path / "run"
    walk = sf.steps(small_net(), small_data(), plan(), account="rows", out=out)
    next(walk)
    walk.close()
    sf.Account.create("other", 9.0, 1e-3)
    with pytest.raises(InputError, match="is another one"):
        sf.fit(small_net(), small_data(), resume=out, account="other", progress=False)
    walk = sf.steps(small_net(), small_data(), resume=out)
    next(walk)
    walk.close()
    sf.fit(small_net(), small_data(), resume=out, account="rows", progress=False)
    assert len(account.balance().held) == 1
    plain = tmp_path / "plain"
    walk = sf.steps(small_net(), small_data(), plan(), out=plain)
    next(walk)
    walk.close()
    with pytest.raises(InputError, match="from its first release on, or not at all"):
        sf.fit(small_net(), small_data(), resume=plain, account="rows", progress=False)


def test_what_was_given_back_cannot_be_resumed(account: sf.Account, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sf.steps(small_net(), small_data(), plan(), account="rows", out=out).close()  # never asked for a step
    assert account.balance().held == ()
    from saltflat.training.prepare import prepare

    begun = prepare(small_net(), small_data(), plan(), account="rows", out=out)
    begun.let_go()
    (held,) = account.balance().held
    account.give_back(held.reservation)
    assert account.balance().share == 0
    with pytest.raises(ReservationError, match="was given back"):
        sf.fit(small_net(), small_data(), resume=out, progress=False)
    assert Ledger.read(out / "ledger.jsonl").releases == 0


def test_a_folder_in_use_gives_nothing_back(account: sf.Account, tmp_path: Path) -> None:
    from saltflat.record.lock import InUseError
    from saltflat.training.prepare import prepare

    begun = prepare(small_net(), small_data(), plan(), account="rows", out=tmp_path / "run")
    (held,) = account.balance().held
    with pytest.raises(InUseError):
        account.give_back(held.reservation)
    begun.let_go()


def test_a_run_that_was_cut_off_before_it_began_returns_its_part_when_it_begins_anew(
    account: sf.Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power goes between the reservation and the plan's file; then the same command is given again."""
    from saltflat.record.folder import RunFolder

    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_plan", power_cut)
        with pytest.raises(KeyboardInterrupt):
            sf.fit(small_net(), small_data(), plan(), account="rows", out=tmp_path / "run", progress=False)
    assert len(account.balance().live) == 1
    sf.fit(small_net(), small_data(), plan(), account="rows", out=tmp_path / "run", progress=False)
    assert len(account.balance().held) == 2
    assert len(account.balance().live) == 1


def test_many_small_runs_cost_less_than_their_sum(account: sf.Account) -> None:
    """Joint accounting: the runs that fit have more ε in sum than the account has."""
    account = sf.Account.create("joint", 2.0, 1e-6)
    made = plan(3.0, delta=1e-6)
    granted = 0
    while granted < 60:
        try:
            account.reserve(spend.charge_of(made))
        except OverdrawnError:
            break
        granted += 1
    assert granted < 60
    assert granted * made.epsilon > 1.5 * 2.0
    assert account.balance().epsilon_if_fixed <= 2.0
