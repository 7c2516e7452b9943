"""``saltflat budget``: one account for a data set over all its runs."""

from __future__ import annotations

import json
from typing import Any

import click

from saltflat.cli.known import complete_account
from saltflat.cli.run_options import budgets_option, json_option
from saltflat.record.account import Account, names
from saltflat.record.balance import Balance


@click.group(name="budget")
def command() -> None:
    """Keep one budget for a data set over many runs.

    Runs reserve from an account before they start (saltflat train --account NAME). The run that would overdraw
    it is refused. Accounts lie in the folder of --budgets or SALTFLAT_BUDGETS, or in ~/.local/state/saltflat.

    \b
    Examples:
      saltflat budget create visits --epsilon 4 --delta 1e-6 --fingerprint "visits 2026-03, 5,000 declared"
      saltflat train --data visits.csv --label outcome --population 5000 --epsilon 1 --account visits
      saltflat budget show visits
      saltflat budget return visits 3c56127c8259
    """


@command.command()
@click.argument("name")
@click.option("--epsilon", type=float, required=True, help="What all runs together may cost.")
@click.option("--delta", type=float, required=True, help="δ, well below 1/population.")
@click.option("--relation", type=click.Choice(["add-remove", "zero-out"]), default="add-remove", show_default=True,
              help="That of all its runs: zero-out for runs without --population.")  # fmt: skip
@click.option("--unit", type=click.Choice(["example", "person", "client"]), default="example", show_default=True,
              help="That of all its runs.")  # fmt: skip
@click.option("--rule", type=click.Choice(["rdp", "sum"]), default="rdp", show_default=True,
              help="How runs add up: Rényi divergences, or ε and δ themselves.")  # fmt: skip
@click.option("--order", type=float, help="The order of the Rényi divergence.  [default: from ε and δ]")
@click.option("--fingerprint", metavar="TEXT", help="Names the data; runs may be asked to name them alike.")
@budgets_option
@json_option
def create(name: str, as_json: bool, **terms: Any) -> None:
    """Open the account NAME. Its terms never change.

    \b
    Examples:
      saltflat budget create visits --epsilon 4 --delta 1e-6
      saltflat budget create digits --epsilon 8 --delta 1e-4 --relation zero-out
    """
    _print(Account.create(name, **terms).balance(), as_json)


@command.command()
@click.argument("name", required=False, shell_complete=complete_account)
@budgets_option
@json_option
def show(name: str | None, budgets: str | None, as_json: bool) -> None:
    """What the account NAME has granted, run by run, and what is left. Without NAME: all accounts.

    \b
    Examples:
      saltflat budget show visits
      saltflat budget show visits --json
    """
    if name is None:
        _list(budgets, as_json)
        return
    _print(Account.open(name, budgets=budgets).balance(), as_json)


@command.command(name="list")
@budgets_option
@json_option
def list_command(budgets: str | None, as_json: bool) -> None:
    """All accounts.

    \b
    Examples:
      saltflat budget list
      SALTFLAT_BUDGETS=/data/budgets saltflat budget list --json
    """
    _list(budgets, as_json)


@command.command(name="return")
@click.argument("name", shell_complete=complete_account)
@click.argument("reservation")
@click.option(
    "--without-ledger", is_flag=True,
    help="There is no ledger of that run, and you know that it never released anything. The account records this.",
)  # fmt: skip
@budgets_option
@json_option
def return_command(
    name: str, reservation: str, without_ledger: bool, budgets: str | None, as_json: bool
) -> None:
    """Give back to NAME what a run reserved that never released anything.

    The run's ledger must show it. What was recorded there is spent, and stays spent.

    \b
    Examples:
      saltflat budget return visits 3c56127c8259
    """
    account = Account.open(name, budgets=budgets)
    account.give_back(reservation, without_ledger=without_ledger)
    _print(account.balance(), as_json)


@command.command()
@click.argument("name", shell_complete=complete_account)
@budgets_option
@json_option
def close(name: str, budgets: str | None, as_json: bool) -> None:
    """Let the account NAME grant nothing any more. What is reserved may be used to its end.

    \b
    Examples:
      saltflat budget close visits
    """
    account = Account.open(name, budgets=budgets)
    account.close()
    _print(account.balance(), as_json)


def _list(budgets: str | None, as_json: bool) -> None:
    from saltflat.plan.table import aligned

    balances = [Account.open(name, budgets=budgets).balance() for name in names(budgets)]
    if as_json:
        click.echo(json.dumps([summary(balance) for balance in balances]))
        return
    if not balances:
        click.echo("no accounts yet: saltflat budget create NAME --epsilon 4 --delta 1e-6")
        return
    lines = [["account", "ε", "δ", "unit", "relation", "rule", "spent or reserved", "runs"]]
    for balance in balances:
        terms = balance.terms
        lines.append(
            [
                terms.name, f"{terms.epsilon:g}", f"{terms.delta:g}", terms.unit, terms.relation, terms.rule,
                f"{balance.share:.2%}" + (", closed" if balance.closed else ""), str(len(balance.live)),
            ]
        )  # fmt: skip
    click.echo("\n".join(aligned(lines)))


def summary(balance: Balance) -> dict[str, Any]:
    """An account for JSON."""
    words = ("epsilon", "delta", "relation", "unit", "rule", "order", "fingerprint_sha256")
    figures = ("closed", "share", "epsilon_left", "epsilon_if_fixed")
    return {
        "account": balance.terms.name,
        "account_id": balance.terms.id,
        **{word: getattr(balance.terms, word) for word in words},
        **{word: getattr(balance, word) for word in figures},
        "reservations": [
            {
                **{word: getattr(held, word) for word in ("reservation", "time", "where", "returned")},
                "share": balance.share_of(held),
                **held.charge.to_dict(),
            }
            for held in balance.held
        ],
    }


def _print(balance: Balance, as_json: bool) -> None:
    from saltflat.plan.table import aligned

    if as_json:
        click.echo(json.dumps(summary(balance)))
        return
    terms = balance.terms
    relation = {"add-remove": "add or remove", "zero-out": "zero out"}[terms.relation]
    how = f"Rényi divergences of order {terms.order:g}" if terms.rule == "rdp" else "sums of ε and of δ"
    closed = "; closed" if balance.closed else ""
    click.echo(
        f"{terms.name}: ε = {terms.epsilon:g} at δ = {terms.delta:g}, {relation} one {terms.unit}{closed}"
    )
    click.echo(f"  {balance.words} (by {how})")
    if balance.held:
        lines = [["  reservation", "since", "for", "ε alone", "share", "run folder"]]
        for held in balance.held:
            share = "returned" if held.returned else f"{balance.share_of(held):.2%}"
            alone = f"{held.charge.epsilon:.4g} at {held.charge.delta:g}"
            lines.append(
                [f"  {held.reservation}", held.time, held.charge.what, alone, share, held.where or "–"]
            )
        click.echo("\n".join(aligned(lines)))
        click.echo(
            f"  jointly by PLD: ε = {balance.epsilon_if_fixed:.4g}, if no run was chosen from another's results"
        )
    if not balance.closed:
        click.echo(f"  what is left would buy one Gaussian release of ε = {balance.epsilon_left:.4g} alone")
