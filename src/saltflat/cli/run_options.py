"""What commands that train share: options, and names for run folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from saltflat.cli import known
from saltflat.errors import InputError


class SwitchType(click.ParamType):  # type: ignore[type-arg]  # generic in recent clicks only
    """A fraction, a step, or the word automatic."""

    name = "fraction|step|automatic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it as what it is."""
        if value == "automatic" or not isinstance(value, str):
            return value
        try:
            return int(value) if value.isdigit() and int(value) > 1 else float(value)
        except ValueError:
            self.fail(f"{value!r} is not a fraction, a step or 'automatic'", param, ctx)


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which data and which model."""
    return with_options(
        command,
        click.option(
            "--data", default="digits", show_default=True, shell_complete=known.complete_data,
            help="A data set's name, or a path.",
        ),
        click.option("--data-dir", type=click.Path(file_okay=False), help="Where to look for data sets."),
        click.option("--label", help="The column that holds the label, in a table."),
        click.option("--group", help="The column that says whose row it is: people are protected, not rows."),
        click.option(
            "--test-fraction", type=float,
            help="Share of the rows to hold out and to test on, where the data has no test rows.",
        ),
        click.option(
            "--model", shell_complete=known.complete_model,
            help="A model's name; see: saltflat models.  [default: one that fits the data]",
        ),
    )  # fmt: skip


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that describe the plan; their names are those of the Python arguments."""
    return with_options(
        command,
        click.option("--epsilon", type=float, help="The budget ε (inf: clip, but add no noise).  [default: 3]"),
        click.option("--delta", type=float, default=1e-5, show_default=True, help="δ, well below 1/population."),
        click.option("--noise-multiplier", type=float, help="The noise itself, instead of --epsilon."),
        click.option(
            "--population", type=int,
            help="Declared number of rows (or people). Left out, it is read from the data, and zero-out is certified.",
        ),
        click.option("--batch-size", type=int, help="Expected batch size.  [default: from the population]"),
        click.option("--epochs", type=float, help="Passes over the population.  [default: from the budget]"),
        click.option("--steps", type=int, help="Releases, instead of --epochs."),
        click.option("--clip-norm", type=float, help="Length to which each gradient is clipped.  [default: 1]"),
        click.option("--learning-rate", type=float, help="Learning rate.  [default: from the clip norm]"),
        click.option(
            "--optimizer", shell_complete=known.complete_optimizer,
            help="sgd, adam, adam-bc, adamw, rmsprop or adagrad.  [default: sgd]",
        ),
        click.option("--momentum", type=float, help="Momentum of sgd.  [default: 0.9]"),
        click.option(
            "--schedule", type=click.Choice(["constant", "cosine", "linear"]),
            help="Of the learning rate.  [default: constant]",
        ),
        click.option("--rho", type=float, help="Radius of the ascent, for methods that have one."),
        click.option("--switch", type=SwitchType(), help="Where the sharpness-aware phase ends."),
        click.option("--noise-ratio", type=float, help="σ₂/σ₁ of sai, σ_a/σ_d of dp-sam."),
        click.option("--split", type=click.Choice(["joint", "paper"]), help="How sai divides the budget."),
        click.option("--portion", type=float, help="Share of ε for sai's first phase, with --split paper."),
        click.option(
            "--clipping", type=click.Choice(["flat", "automatic", "per-layer", "quantile"]), help="Clipping function."
        ),
        click.option("--views", type=int, help="Augmentation multiplicity: gradients averaged for each example."),
        click.option(
            "--augmentations", metavar="flip,crop,cutout,auto", shell_complete=known.complete_augmentations,
            help="What changes the views.",
        ),
        click.option(
            "--randomness", type=click.Choice(["fast", "secure", "exact"]), default="fast", show_default=True,
            help="Tier of noise and sampling.",
        ),
        click.option("--preset", type=click.Choice(["paper"]), help="The paper's settings for this model and ε."),
    )  # fmt: skip


def method_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a command that takes what train takes."""
    return with_options(
        command,
        click.option(
            "--method", default="dp-sgd", show_default=True, shell_complete=known.complete_method,
            help="As in: saltflat train.",
        ),
    )  # fmt: skip


def checkpoint_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """How often a run writes down its whole state."""
    return with_options(
        command,
        click.option(
            "--checkpoint-every", type=float, metavar="SECONDS",
            help="How often to write a checkpoint (0: every step; inf: never, no --resume).  [default: 60]",
        ),
    )  # fmt: skip


def account_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which account a run is paid from."""
    return with_options(
        command,
        click.option(
            "--account", shell_complete=known.complete_account,
            help="Reserve from this account before the start; see: saltflat budget.",
        ),
        budgets_option,
        click.option(
            "--fingerprint", metavar="TEXT", help="Names the data; must be the one the account was created with."
        ),
    )  # fmt: skip


def budgets_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the accounts lie."""
    return with_options(
        command,
        click.option(
            "--budgets", type=click.Path(file_okay=False),
            help="The folder of all accounts.  [default: $SALTFLAT_BUDGETS, or a folder in ~/.local/state]",
        ),
    )  # fmt: skip


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a run that is stored, and can go on."""
    return with_options(
        command,
        click.option("--out", type=click.Path(file_okay=False), help="The run folder.  [default: runs/DATA-METHOD]"),
        click.option(
            "--resume", type=click.Path(file_okay=False), shell_complete=known.complete_run,
            help="Go on with the run in this folder, as it was started.",
        ),
        checkpoint_option,
        account_options,
        click.option("--seed", type=int, help="A repeatable test run: NOT private."),
        click.option("--device", help="cpu, cuda, ..."),
        click.option("--json", "as_json", is_flag=True, help="End by printing one JSON object."),
        click.option("--quiet", is_flag=True, help="Only the result: no plan, no progress."),
    )  # fmt: skip


def accept_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a check lets pass."""
    return with_options(
        command,
        click.option(
            "--accept", multiple=True, type=click.Choice(["not-private", "unfinished"]),
            help="Let a run pass that is a test run or has no noise, or that stopped early.",
        ),
    )  # fmt: skip


def with_options(command: Callable[..., Any], *options: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def folder_of(options: dict[str, Any]) -> str:
    """The run folder that the options name, or one that is free; --out and --resume exclude each other."""
    if options["resume"] and options["out"]:
        raise InputError(
            "resume", options["resume"], "--out for a new run, or --resume for one that was cut off",
            problem=f"is given beside out={options['out']!r}",
        )  # fmt: skip
    named: str | None = options["resume"] or options["out"]
    return named or free_folder(f"{stem_of(options['data'])}-{options['method']}")


def free_folder(stem: str) -> str:
    """``runs/<stem>``, with a number behind it if that is taken."""
    path = Path("runs") / stem
    number = 2
    while path.exists():
        path = Path("runs") / f"{stem}-{number}"
        number += 1
    return str(path)


def stem_of(data: str) -> str:
    """A data set's name or path as part of a folder's name.

    >>> stem_of("some/where/table.csv")
    'table'
    """
    return data.rstrip("/").rpartition("/")[2].partition(".")[0] or "data"
