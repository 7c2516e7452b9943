"""``saltflat sign``: vouch for the certificate of a run, after verifying it."""

from __future__ import annotations

import json

import click

from saltflat.cli.known import complete_run
from saltflat.cli.run_options import json_option
from saltflat.cli.words import painted_checks


@click.command(
    epilog="""\b
Examples:
  saltflat keygen key.pem
  saltflat sign runs/digits --key key.pem
  saltflat verify runs/digits --public-key key.pem.pub

The exit code is 1 if the run cannot be verified; it is not signed then.
"""
)
@click.argument("run", type=click.Path(exists=True, file_okay=False), shell_complete=complete_run)
@click.option("--key", required=True, type=click.Path(exists=True, dir_okay=False),
              help="Your private key, ed25519 in PEM.")  # fmt: skip
@json_option
@click.pass_context
def command(ctx: click.Context, run: str, key: str, as_json: bool) -> None:
    """Sign the certificate of a run. Only a run that verifies is signed.

    The signature covers the bytes of certificate.json, which hold the hashes of all other files. It is written
    to signature.json in the run folder, in place of an earlier one.
    """
    from saltflat.record.signing import sign_run
    from saltflat.record.verify import verify

    found = verify(run)
    if set(found.failed) - {"signature"}:  # an earlier signature may be damaged: it is about to be replaced
        if as_json:
            click.echo(json.dumps({"signed": False, "run": run, "verification": found.to_dict()}))
        else:
            click.echo(
                f"{painted_checks(str(found))}\nNot signed: only a run that verifies can be vouched for."
            )
        ctx.exit(1)
    signature = sign_run(run, found.certificate_bytes, key)
    if as_json:
        facts = {"key": signature.key_fingerprint, "certificate_sha256": found.certificate_hash}
        click.echo(json.dumps({"signed": True, "run": run, **facts}))
        return
    click.echo(f"signed {run} with key {signature.key_fingerprint}; certificate {found.certificate_hash}")
