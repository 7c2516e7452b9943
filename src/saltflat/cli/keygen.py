"""``saltflat keygen``: a pair of keys to sign certificates with."""

from __future__ import annotations

import json

import click

from saltflat.cli.run_options import json_option


@click.command(
    epilog="""\b
Examples:
  saltflat keygen key.pem
  saltflat sign runs/digits --key key.pem
"""
)
@click.argument("key", type=click.Path(dir_okay=False))
@json_option
def command(key: str, as_json: bool) -> None:
    """Make a new pair of keys, ed25519 in PEM.

    KEY is to sign with, and to keep to yourself. KEY.pub is to check with, and to give away.
    """
    from saltflat.record.signing import make_keys

    public = f"{key}.pub"
    make_keys(key, public)
    if as_json:
        click.echo(json.dumps({"private_key": key, "public_key": public}))
        return
    click.echo(f"private key {key}: keep it to yourself\npublic key {public}: give it to those who verify")
