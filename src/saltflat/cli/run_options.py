"""What commands that train share: options, and names for run folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from saltflat.cli import known
from saltflat.errors import InputError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


def options_of(*options: Decorator) -> Decorator:
    """These options, in this order, as one decorator."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


data_dir_option = click.option(
    "--data-dir", type=click.Path(file_okay=False), help="Where to look for data sets."
)
label_option = click.option("--label", help="The column that holds the label, in a table.")
PARTS = ("test", "train", "all")
part_option = click.option(
    "--part", type=click.Choice(PARTS), help="Which rows.  [default: test, or all if there are none]"
)
seed_option = click.option("--seed", type=int, help="A repeatable test run: NOT private.")
device_option = click.option("--device", help="cpu, cuda, ...")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
json_at_the_end = click.option("--json", "as_json", is_flag=True, help="End by printing one JSON object.")
quiet_option = click.option("--quiet", is_flag=True, help="Only the result: no progress.")

# which data, and which model
data_options = options_of(
    click.option("--data", default="digits", show_default=True, shell_complete=known.complete_data,
                 help="A data set's name, or a path."),
    data_dir_option,
    label_option,
    click.option("--group", help="The column that says whose row it is: people are protected, not rows."),
    click.option("--classes", help="Declare the labels of your own data: their names, or how many. Left out, they are "
                 "read from the data, and zero-out is certified."),
    click.option("--image-size", type=int, help="Resize the images of a folder to this height and width."),
    click.option("--test-fraction", type=float,
                 help="Share of the rows to hold out and to test on, where the data has no test rows."),
    click.option("--model", shell_complete=known.complete_model,
                 help="A model's name; see: saltflat models.  [default: one that fits the data]"),
)  # fmt: skip

# the plan; their names are those of the Python arguments
plan_options = options_of(
    click.option("--epsilon", type=float, help="The budget ε (inf: clip, but add no noise).  [default: 3]"),
    click.option("--delta", type=float, default=1e-5, show_default=True, help="δ, well below 1/population."),
    click.option("--noise-multiplier", type=float, help="The noise itself, instead of --epsilon."),
    click.option("--population", type=int, help="Declared number of rows (or people). Left out, it is read from the "
                 "data, and zero-out is certified."),
    click.option("--batch-size", type=int, help="Expected batch size.  [default: from the population]"),
    click.option("--epochs", type=float, help="Passes over the population.  [default: from the budget]"),
    click.option("--steps", type=int, help="Releases, instead of --epochs."),
    click.option("--clip-norm", type=float, help="Length to which each gradient is clipped.  [default: 1]"),
    click.option("--learning-rate", type=float, help="Learning rate.  [default: from the clip norm]"),
    click.option("--optimizer", shell_complete=known.complete_optimizer,
                 help="sgd, adam, adam-bc, adamw, rmsprop or adagrad.  [default: sgd]"),
    click.option("--momentum", type=float, help="Momentum of sgd.  [default: 0.9]"),
    click.option("--schedule", type=click.Choice(["constant", "cosine", "linear"]),
                 help="Of the learning rate.  [default: constant]"),
    click.option("--rho", type=float, help="Radius of the ascent, for methods that have one."),
    click.option("--switch", type=SwitchType(), help="Where the sharpness-aware phase ends."),
    click.option("--noise-ratio", type=float, help="σ₂/σ₁ of sai, σ_a/σ_d of dp-sam."),
    click.option("--split", type=click.Choice(["joint", "paper"]), help="How sai divides the budget."),
    click.option("--portion", type=float, help="Share of ε for sai's first phase, with --split paper."),
    click.option("--stairs", type=int, help="In how many stairs the rate of dp-sgd-tapered falls.  [default: 6]"),
    click.option("--taper", type=float, help="How its noise grows as the rate falls: rate to minus this power.  "
                 "[default: 0.5]"),
    click.option("--clipping", type=click.Choice(["flat", "automatic", "per-layer", "quantile"]),
                 help="Clipping function."),
    click.option("--views", type=int, help="Augmentation multiplicity: gradients averaged for each example."),
    click.option("--augmentations", metavar="flip,crop,cutout,auto", shell_complete=known.complete_augmentations,
                 help="What changes the views."),
    click.option("--randomness", type=click.Choice(["fast", "secure", "exact"]), default="fast", show_default=True,
                 help="Tier of noise and sampling."),
    click.option("--preset", type=click.Choice(["paper"]), help="The paper's settings for this model and ε."),
)  # fmt: skip

# of a command that takes what train takes
method_option = click.option(
    "--method", default="dp-sgd", show_default=True, shell_complete=known.complete_method,
    help="As in: saltflat train.",
)  # fmt: skip

checkpoint_option = click.option(
    "--checkpoint-every", type=float, metavar="SECONDS",
    help="How often to write a checkpoint (0: every step; inf: never, no --resume).  [default: 60]",
)  # fmt: skip

budgets_option = click.option(
    "--budgets", type=click.Path(file_okay=False),
    help="The folder of all accounts.  [default: $SALTFLAT_BUDGETS, or a folder in ~/.local/state]",
)  # fmt: skip

# which account a run is paid from
account_options = options_of(
    click.option("--account", shell_complete=known.complete_account,
                 help="Reserve from this account before the start; see: saltflat budget."),
    budgets_option,
    click.option("--fingerprint", metavar="TEXT",
                 help="Names the data; must be the one the account was created with."),
)  # fmt: skip

# of a run that is stored, and can go on
folder_options = options_of(
    click.option("--out", type=click.Path(file_okay=False), help="The run folder.  [default: runs/DATA-METHOD]"),
    click.option("--resume", type=click.Path(file_okay=False), shell_complete=known.complete_run,
                 help="Go on with the run in this folder, as it was started."),
    checkpoint_option,
    account_options,
    seed_option,
    device_option,
    json_at_the_end,
    click.option("--quiet", is_flag=True, help="Only the result: no plan, no progress."),
)  # fmt: skip

# what a check lets pass
accept_option = click.option(
    "--accept", multiple=True, type=click.Choice(["not-private", "unfinished"]),
    help="Let a run pass that is a test run or has no noise, or that stopped early.",
)  # fmt: skip


def listed(text: str) -> tuple[str, ...]:
    """The words of a list with commas.

    >>> listed("flip, crop,")
    ('flip', 'crop')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


def said(options: dict[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Of these options, those that say something."""
    return {word: options[word] for word in words if options.get(word) is not None}


def folder_of(options: dict[str, Any]) -> str:
    """The run folder that the options name, or one that is free; --out and --resume exclude each other."""
    if options["resume"] and options["out"]:
        raise InputError(
            "resume", options["resume"], "--out for a new run, or --resume for one that was cut off",
            problem=f"is given beside out={options['out']!r}",
        )  # fmt: skip
    named: str | None = options["resume"] or options["out"]
    return named or free_run(options["data"], options["method"])


def free_run(data: str, what: str) -> str:
    """A free folder under ``runs``, named by the data and by what is done with it."""
    return free_folder(f"runs/{stem_of(data)}-{what}")


def free_folder(wanted: str) -> str:
    """The folder that is wanted, with a number behind its name if that is taken."""
    folder, number = wanted, 1
    while Path(folder).exists():
        number += 1
        folder = f"{wanted}-{number}"
    return folder


def stem_of(data: str) -> str:
    """A data set's name or path as part of a folder's name.

    >>> stem_of("some/where/table.csv")
    'table'
    """
    return data.rstrip("/").rpartition("/")[2].partition(".")[0] or "data"
