"""``saltflat recipe``: public split, diffusion model, samples, warm-up, private training and report in one command."""

from __future__ import annotations

import json
from typing import Any

import click

from saltflat.cli import run_options
from saltflat.cli.public_options import own_options, split_options, warm_up_options, warm_up_settings
from saltflat.cli.words import say_accuracy, shown_epsilon, telling
from saltflat.errors import InputError

PLAN_OPTIONS = (
    "batch_size", "epochs", "steps", "clip_norm", "learning_rate", "rho", "public_batch", "population",
)  # fmt: skip


@click.command(
    epilog="""\b
Examples:
  saltflat recipe --data cifar10 --epsilon 2 --out runs/cifar-recipe
  saltflat recipe --data fashion-mnist --model dpnas-fmnist --size small --count 10000 --epsilon 2
  saltflat recipe --data mnist --model dpnas-mnist --samples samples.npz --epsilon 1 --views 4
  saltflat recipe --data scans/ --model gn-resnet10 --public open-scans/ --public-by "the clinics that publish them"
  saltflat recipe --data digits --model mlp --scenario warm --public-fraction 0.2 --delta 1e-4

Given again with the same --out, it goes on where it was cut off.
"""
)
@click.option("--data", default="cifar10", show_default=True, help="A data set's name, or a path.")
@run_options.data_dir_option
@click.option("--model", default="wrn-16-4", show_default=True, help="A model's name; see: saltflat models.")
@click.option(
    "--epsilon", type=float, default=2.0, show_default=True, help="The budget ε of the private training."
)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ, well below 1/population.")
@click.option(
    "--scenario", type=click.Choice(["cold", "warm", "warm-syn", "extended"]), default="extended", show_default=True,
    help="What public data is used for.",
)  # fmt: skip
@click.option("--method", help="The private method.  [default: weight-multiplicity if extended, else dp-sgd]")
@split_options
@own_options
@click.option("--population", type=int, help="Declared number of private rows.  [default: from the data]")
@click.option("--batch-size", type=int, help="Expected batch size.  [default: as in the paper]")
@click.option("--epochs", type=float, help="Passes over the population.  [default: as in the paper]")
@click.option("--steps", type=int, help="Releases, instead of --epochs.")
@click.option("--clip-norm", type=float, help="Length to which each gradient is clipped.  [default: 1]")
@click.option("--learning-rate", type=float, help="Learning rate.  [default: as in the paper]")
@click.option("--rho", type=float, help="Radius of weight multiplicity.  [default: 0.1, as in the paper]")
@click.option(
    "--public-batch", type=int, help="Public rows a gradient.  [default: 64 for weight multiplicity]"
)
@click.option("--views", type=int, help="Gradients averaged for each example.  [default: 16]")
@click.option("--augmentations", metavar="flip,crop", help="What changes the views.  [default: flip,crop]")
@warm_up_options
@click.option("--samples", type=click.Path(exists=True, dir_okay=False), help="Use these samples; make none.")
@click.option("--size", type=click.Choice(["tiny", "small", "full"]), help="Of the diffusion model.")
@click.option("--synthesis-steps", type=int, help="Batches that the diffusion model is trained on.")
@click.option("--count", type=int, default=50_000, show_default=True, help="How many samples to make.")
@click.option(
    "--guidance", type=float, default=0.0, show_default=True, help="Weight of discriminator guidance."
)
@click.option("--until", type=click.Choice(["diffusion", "samples", "warm-up", "run", "report"]), default="report",
              show_default=True, help="The last stage to run.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False), help="The folder.  [default: runs/DATA-recipe]")
@run_options.seed_option
@run_options.device_option
@run_options.json_at_the_end
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
def command(**options: Any) -> None:
    """Train privately with all that public data can give, stage by stage.

    A class-balanced public split (4 %) or public rows of your own, a diffusion model of them, samples, a warm-up on
    both, private training with views at displaced weights and an average, and a report. The defaults are the settings
    of the paper.
    """
    from saltflat.cli.training_run import summary_of
    from saltflat.public import Recipe, recipe

    out = options["out"] or run_options.free_run(options["data"], "recipe")
    announce, progress = telling(options)
    run = recipe(
        out, Recipe(**_settings(options)),
        data_dir=options["data_dir"], device=options["device"], until=options["until"],
        announce=announce, progress=progress,
    )  # fmt: skip
    if run is None:
        click.echo(
            json.dumps({"out": out, "until": options["until"]}) if options["as_json"] else f"recipe in {out}"
        )
        return
    summary = summary_of(run, options["data"], options["model"])
    if options["as_json"]:
        click.echo(json.dumps(summary | {"out": out, "run": str(run.folder)}))
        return
    say_accuracy(summary, f"ε = {shown_epsilon(summary['epsilon'])}, δ = {summary['delta']:g}")
    click.echo(f"recipe in {out}, run folder {run.folder}")


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Recipe`; what was not said keeps its default there."""
    from saltflat.plan import Multiplicity

    for word in ("public_fraction", "public_seed"):
        if options["public"] is not None and options[word] is not None:
            raise InputError(
                word, options[word], "--public or a split, not both", problem="is given beside --public",
                cure=f"Leave --{word.replace('_', '-')} out: all rows of --public are public.",
            )  # fmt: skip
    plan = run_options.said(options, PLAN_OPTIONS)
    if options["views"] is not None or options["augmentations"] is not None:
        names = options["augmentations"] if options["augmentations"] is not None else "flip,crop"
        views = 16 if options["views"] is None else options["views"]
        plan["multiplicity"] = Multiplicity(views, run_options.listed(names))
    synthesis = {"size": options["size"], "steps": options["synthesis_steps"]}
    words = (
        "data", "model", "epsilon", "delta", "scenario", "method", "public_fraction", "public_seed", "public",
        "public_by", "samples", "count", "guidance", "seed",
    )  # fmt: skip
    return run_options.said(options, words) | {
        "plan": plan,
        "synthesis": run_options.said(synthesis, synthesis),
        "warm_up": warm_up_settings(options, optimizer="sam", augmentations=("crop", "flip", "cutout")),
    }
