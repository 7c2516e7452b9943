"""``saltflat verify``: is a run folder what its certificate says?"""

from __future__ import annotations

import json
from typing import Any

import click

from saltflat.cli.known import complete_run
from saltflat.cli.run_options import accept_option, json_option
from saltflat.cli.words import painted_checks


@click.command(
    epilog="""\b
Examples:
  saltflat verify runs/digits
  saltflat verify runs/digits --quiet
  saltflat verify runs/digits --json
  saltflat verify runs/digits --public-key key.pem.pub
  saltflat verify runs/digits --head 3f0c...
  saltflat verify runs/test --accept not-private

The exit code is 0 if every check passed, 1 if one failed, 2 for bad input.
"""
)
@click.argument("run", type=click.Path(exists=True, file_okay=False), shell_complete=complete_run)
@click.option("--public-key", type=click.Path(exists=True, dir_okay=False),
              help="The certificate must be signed with the private key of this one.")  # fmt: skip
@click.option("--head", help="A hash kept elsewhere: the ledger's head, or that of certificate.json.")
@accept_option
@json_option
@click.option("--quiet", is_flag=True, help="Only the verdict.")
@click.pass_context
def command(ctx: click.Context, /, run: str, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Check a run folder against its certificate, and compute its ε again from the ledger.

    Every byte of plan, ledger, weights, metrics, certificate and its page is covered. What no file can show is
    that the process was honest.
    """
    from saltflat.record.verify import verify

    found = verify(run, **asked)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    else:
        click.echo(found.verdict if quiet else painted_checks(str(found)))
    if not found.passed:
        ctx.exit(1)
