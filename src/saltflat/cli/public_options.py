"""Public data on the command line: which rows are public, on whose word, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from saltflat.cli.run_options import options_of, said
from saltflat.errors import InputError

if TYPE_CHECKING:
    from saltflat.data import DataSet, Examples
    from saltflat.public import WarmUp

PUBLIC_WORDS = (
    "scenario", "public", "public_fraction", "public_seed", "public_by", "synthetic", "warm_up", "warm_up_epochs",
    "warm_up_batch_size", "warm_up_learning_rate", "warm_up_rho", "warm_up_augmentations", "warm_up_seed",
)  # fmt: skip
"""Options that a run must be started with again when it goes on."""

_SOURCES = ("scenario", "public", "public_fraction", "synthetic")


# how a data set is divided, for experiments
split_options = options_of(
    click.option(
        "--public-fraction", type=float,
        help="Declare this share of the training rows public, the same number of each class.  [default: 0.04 where "
        "a scenario needs public rows and none are named]",
    ),
    click.option("--public-seed", type=int, help="Which rows those are.  [default: 0]"),
)  # fmt: skip

# public rows of the user's own
own_options = options_of(
    click.option("--public", metavar="NAME|PATH", help="Public data of your own: a data set, a folder or a file."),
    click.option("--public-by", metavar="WHO", help="On whose word it is public; the certificate says so."),
)  # fmt: skip

# how the model is trained on public data first
warm_up_options = options_of(
    click.option("--warm-up", type=click.Choice(["sgd", "sam"]), help="Its optimizer.  [default: sgd]"),
    click.option("--warm-up-epochs", type=int, help="Passes over the public data.  [default: 100]"),
    click.option("--warm-up-batch-size", type=int, help="Public rows a batch.  [default: 100]"),
    click.option("--warm-up-learning-rate", type=float, help="At its start, then a cosine.  [default: 0.05]"),
    click.option("--warm-up-rho", type=float, help="Radius of sam.  [default: 0.1]"),
    click.option("--warm-up-augmentations", metavar="common,cutout",
                 help="Names among flip, crop, cutout, cutmix, auto; common is crop and flip.  [default: none]"),
    click.option("--warm-up-seed", type=int, help="Of order and augmentations.  [default: 0]"),
)  # fmt: skip

# options that say what is public; their names are those of the Python arguments
public_options = options_of(
    click.option("--scenario", type=click.Choice(["cold", "warm", "warm-syn", "extended"]),
                 help="What public data is used for.  [default: from what is given]"),
    split_options,
    own_options,
    click.option("--synthetic", type=click.Path(dir_okay=False), metavar="FILE.npz",
                 help="Samples made from public data: see saltflat synthesize."),
    click.option("--public-batch", type=int, help="Public rows a gradient, for methods that look at them."),
    warm_up_options,
)  # fmt: skip


def with_usual_split(options: dict[str, Any], announce: Callable[[str], None] | None) -> dict[str, Any]:
    """The options, with the usual public fraction where a scenario needs public rows and none are named."""
    from saltflat.data.split import PUBLIC_FRACTION

    if options.get("scenario") not in ("warm", "extended"):
        return options
    if any(options.get(word) is not None for word in ("public", "public_fraction", "synthetic")):
        return options
    if announce is not None:
        announce(
            f"public rows: none are named, so a share of {PUBLIC_FRACTION:g} of the training rows is declared public "
            "(--public-fraction), the same number of each class; ε does not cover them"
        )
    return options | {"public_fraction": PUBLIC_FRACTION}


@dataclass(frozen=True)
class PublicParts:
    """What the options say about public data."""

    scenario: str
    public: Examples | None
    synthetic: Examples | None
    settings: WarmUp


def public_parts(options: dict[str, Any], data: DataSet, needs_public: bool) -> PublicParts | None:
    """The public data that the options name, and the scenario; None if they name none."""
    if all(options.get(word) is None for word in _SOURCES):
        for word in PUBLIC_WORDS:
            if options.get(word) is not None:
                raise InputError(
                    word, options[word], "public data beside it", problem="says something about data that is not there",
                    cure="Name it: --public-fraction 0.04, --public PATH or --synthetic FILE.npz.",
                )  # fmt: skip
        return None
    from saltflat.public import read_public, read_samples

    public = data.public
    if options.get("public") is not None:
        if public is not None:
            raise InputError(
                "public", options["public"], "--public or --public-fraction, not both",
                problem="is given beside the other",
            )  # fmt: skip
        about = {"data_dir": options.get("data_dir"), "label": options.get("label")}
        public = read_public(options["public"], data, by=options.get("public_by"), **about)
    if public is not None and options.get("public_by"):
        public = replace(public, declared_by=options["public_by"])
    synthetic = None
    if options.get("synthetic") is not None:
        synthetic = read_samples(options["synthetic"], data.train, public)
    return PublicParts(
        _scenario(options, synthetic, needs_public), public, synthetic, warm_up_settings(options)
    )


def _scenario(options: dict[str, Any], synthetic: Any, needs_public: bool) -> str:
    if options.get("scenario") is not None:
        return str(options["scenario"])
    return "extended" if needs_public else "warm" if synthetic is None else "warm-syn"


def warm_up_settings(options: dict[str, Any], **defaults: Any) -> WarmUp:
    """The warm-up that the options describe."""
    from saltflat.public import WarmUp

    words = {"warm_up": "optimizer"} | {
        f"warm_up_{word}": word
        for word in ("epochs", "batch_size", "learning_rate", "rho", "augmentations", "seed")
    }
    return WarmUp(**defaults | {words[option]: value for option, value in said(options, words).items()})
