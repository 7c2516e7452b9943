"""``saltflat federate``: one model over many clients, each of them protected as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from saltflat.cli.run_file import merge_run_file, run_file_argument
from saltflat.cli.run_options import data_options, folder_of, folder_options, options_of
from saltflat.cli.train import given_options
from saltflat.cli.words import say_accuracy, say_folder, shown_epsilon, stopped_run, telling
from saltflat.errors import InputError

# options that describe clients and rounds; their names are those of the Python arguments
round_options = options_of(
    click.option("--clients", type=int, help="Declared number of clients.  [default: 500, or as the column has]"),
    click.option("--partition", type=click.Choice(["iid", "dirichlet", "column"]),
                 help="How rows are dealt out.  [default: iid; column with --group]"),
    click.option("--alpha", type=float, help="Concentration of the Dirichlet law.  [default: 0.6]"),
    click.option("--partition-seed", type=int, help="Decides the partition and nothing else.  [default: 0]"),
    click.option("--rate", type=float, help="Probability with which a client joins a round.  [default: 0.1]"),
    click.option("--rounds", type=int, help="Releases.  [default: 100]"),
    click.option("--epsilon", type=float, help="The budget ε of all rounds.  [default: 8]"),
    click.option("--delta", type=float, help="δ, below 1/clients.  [default: clients^-1.1]"),
    click.option("--noise-multiplier", type=float, help="The noise itself, instead of --epsilon."),
    click.option("--clip-norm", type=float, help="Length to which each whole update is clipped.  [default: 0.2]"),
    click.option("--clipping", type=click.Choice(["flat", "automatic", "quantile"]), help="Clipping function."),
    click.option("--local-epochs", type=int, help="Passes over a client's rows.  [default: 5]"),
    click.option("--local-batch-size", type=int, help="Batch size inside a client.  [default: 32]"),
    click.option("--local-learning-rate", type=float, help="Rate inside a client.  [default: 0.1]"),
    click.option("--local-momentum", type=float, help="Momentum inside a client.  [default: 0.5]"),
    click.option("--local-weight-decay", type=float, help="Weight decay inside a client.  [default: 0]"),
    click.option("--local-decay", type=float, help="What the local rate loses a round.  [default: 0.0005]"),
    click.option("--rho", type=float, help="Radius of SAM inside a client.  [default: 0.5]"),
    click.option("--ratio", type=float, help="Share of the coordinates that is released.  [default: 0.4]"),
    click.option("--explore", type=float, help="Share of a top-k mask that is drawn at random.  [default: 0.1]"),
    click.option("--public-fraction", type=float, help="Set so many rows aside as public; the mask is theirs."),
    click.option("--penalty", type=float, help="Weight of BLUR's term.  [default: 5 for blur]"),
    click.option("--radius", type=float, help="Where BLUR's term begins.  [default: the clip norm]"),
    click.option("--switch", type=float, help="Where fed-sai's sharpness-aware rounds end.  [default: 0.4]"),
    click.option("--noise-ratio", type=float, help="σ₂/σ₁ of fed-sai.  [default: 1.5]"),
    click.option("--optimizer", help="Of the server, on the release: sgd, adam, ...  [default: sgd]"),
    click.option("--learning-rate", type=float, help="Of the server.  [default: 1; 0.01 for others than sgd]"),
    click.option("--momentum", type=float, help="Of the server's sgd.  [default: 0]"),
    click.option("--survivors", type=int,
                 help="Clients share the noise; rounds with fewer answers are aborted. No amplification counts."),
    click.option("--randomness", type=click.Choice(["fast", "secure", "exact"]), default="fast",
                 show_default=True, help="Tier of noise and sampling."),
)  # fmt: skip


@click.command(
    epilog="""\b
Examples:
  saltflat federate --data digits --clients 100 --rate 0.3 --rounds 30 --epsilon 8
  saltflat federate --data mnist --model fed-cnn --method dp-fedsam --clients 500 --rate 0.1 --rounds 100 \\
      --epsilon 2 --partition dirichlet --alpha 0.6 --out runs/fed --json
  saltflat federate --data visits.csv --label outcome --group hospital --method dp-fedsam-topk
  saltflat federate run.toml
  saltflat federate --data digits --clients 100 --rate 0.3 --rounds 10 --engine flower --nodes 4
  saltflat federate --resume runs/fed

A run file holds the same words: data = "mnist", clients = 500, local-epochs = 5 ...
"""
)
@run_file_argument
@data_options
@click.option(
    "--method", default="dp-fedavg", show_default=True,
    help="dp-fedavg, dp-fedsam, dp-fedsam-topk, fed-smp-topk, fed-smp-randk, blur, lus or fed-sai; with +swa, +ema, "
    "+momentum, +adam, +asam, +lus.",
)  # fmt: skip
@round_options
@click.option(
    "--engine", type=click.Choice(["simulation", "flower"]), default="simulation", show_default=True,
    help="Where the clients are: all in this process, or on nodes of a Flower network on this machine.",
)  # fmt: skip
@click.option(
    "--nodes", type=int, help="SuperNodes among which --engine flower shares the clients.  [default: 4]"
)
@click.option(
    "--timeout", type=float, help="Seconds after which a client's answer counts as missing.  [default: 600]"
)
@click.option(
    "--app", type=click.Path(file_okay=False),
    help="Start nothing; write the Flower app of this run into a folder, for a deployment that is there.",
)  # fmt: skip
@click.option(
    "--together",
    type=int,
    help="Clients trained at a time.  [default: 50 for small models, else 1]",
)
@click.option(
    "--diagnostics", is_flag=True, help="Also store update norms and the train-test gap: NOT private."
)
@click.option(
    "--picture", type=click.Path(dir_okay=False), help="Draw the class mix of the clients: NOT private."
)
@folder_options
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> None:
    """Train a model over clients with client-level privacy: simulated in this process, or on a Flower network.

    With no arguments: embedded digits over 500 clients, DP-FedAvg at ε = 8.
    """
    options = merge_run_file(ctx, params.pop("run_file"), params)
    from saltflat.cli.federated_run import federate_once, resume_rounds

    announce, progress = telling(options)
    out = folder_of(options)
    if options["app"]:
        _write_app(options, announce)
        return
    try:
        if options["resume"]:
            run, summary = resume_rounds(
                options["resume"], given_options(ctx, options), announce=announce, progress=progress
            )
        else:
            run, summary = federate_once(options, out=out, announce=announce, progress=progress)
    except KeyboardInterrupt:
        stopped_run(Path(out), "federate")
    if options["as_json"]:
        click.echo(json.dumps(summary))
        return
    _say(summary)
    say_folder(summary, run, options["quiet"])


def _write_app(options: dict[str, Any], announce: Callable[[str], None] | None) -> None:
    from saltflat.cli.flower_run import write_app

    if options["resume"]:
        raise InputError("app", options["app"], "--app for a new run", problem="is given beside resume")
    where = write_app(options, announce=announce)
    if options["as_json"]:
        click.echo(json.dumps({"app": str(where)}))
    else:
        click.echo(f"wrote {where}; start it with: flwr run {where} NAME --stream")


def _say(summary: dict[str, Any]) -> None:
    spent = f"ε = {shown_epsilon(summary['epsilon'])}, δ = {summary['delta']:g} for each client"
    say_accuracy(summary, spent)
    found = summary.get("diagnostics")
    if found is not None:
        gap = found["train_test_gap"]
        click.echo(
            f"diagnostics, not covered by ε: mean update norm {found['mean_update_norm'] or 0:.3g}"
            + ("" if gap is None else f", train-test gap {gap:.2%}")
        )
