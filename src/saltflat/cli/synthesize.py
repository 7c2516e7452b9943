"""``saltflat synthesize``: a diffusion model on public images, samples from it, and their quality."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from saltflat.cli.run_options import data_dir_option, free_run, json_at_the_end
from saltflat.errors import InputError

if TYPE_CHECKING:
    from saltflat.training.progress import NotedBar

_quiet = click.option("--quiet", is_flag=True, help="No progress; only the result.")
_device = click.option(
    "--device", default="cpu", show_default=True, help="Where to compute, for example cuda."
)
_seed = click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is drawn.")


@click.group(name="synthesize")
def command() -> None:
    """Make images out of public ones: a diffusion model (EDM), its samples, and their quality.

    Only public rows may go in, so what comes out costs no budget. Samples say what they were made from.

    \b
    Examples:
      saltflat synthesize train --public mnist --public-fraction 0.04 --out runs/mnist-edm
      saltflat synthesize sample runs/mnist-edm --count 10000 --out samples.npz
      saltflat synthesize evaluate runs/mnist-edm samples.npz
    """


@command.command(name="train")
@click.option("--public", metavar="NAME|PATH", help="Public images: a data set's name, a folder or a file.")
@click.option(
    "--public-fraction", type=float,
    help="Only this share of the training rows is public, the same number of each class; the rest stays untouched.",
)  # fmt: skip
@click.option("--public-seed", type=int, default=0, show_default=True, help="Which rows those are.")
@click.option("--image-size", type=int, help="Resize the images of a folder to this height and width.")
@click.option(
    "--size", type=click.Choice(["tiny", "small", "full"]),
    help="The network: for 8 x 8, for 28 x 28 on a CPU, the paper's on a GPU.  [default: from the images]",
)  # fmt: skip
@click.option("--steps", type=int, help="Batches to train on.  [default: from the size]")
@click.option("--batch-size", type=int, help="Images a batch.  [default: from the size]")
@click.option("--learning-rate", type=float, help="Of Adam.  [default: from the size]")
@click.option("--grids", type=int, default=6, show_default=True, help="Pictures of samples on the way.")
@click.option("--flip", is_flag=True, help="Let the augmentation mirror images (clothes, not digits).")
@_seed
@click.option("--out", type=click.Path(file_okay=False), help="The model's folder.  [default: under runs/]")
@click.option("--resume", type=click.Path(file_okay=False), metavar="FOLDER", help="Go on with this model.")
@click.option("--checkpoint-every", type=float, default=60.0, show_default=True, metavar="SECONDS",
              help="How often to write a checkpoint.")  # fmt: skip
@data_dir_option
@_device
@json_at_the_end
@_quiet
def train_command(**options: Any) -> None:
    """Train a class-conditional diffusion model on public images.

    --public declares rows public: all of them, or with --public-fraction a share of a data set whose other rows
    are private. The folder records which rows, so that private training can leave them out
    (saltflat.data.public_split makes the same split).

    A training that was cut off goes on with --resume, exactly; with --steps also further than was planned.

    \b
    Examples:
      saltflat synthesize train --public digits --public-fraction 0.2 --out runs/digits-edm
      saltflat synthesize train --public photos/ --image-size 32 --size full --device cuda
      saltflat synthesize train --resume runs/digits-edm --steps 12000
    """
    from saltflat.synthesis import SynthesisFolder, resume, train

    shared = {word: options[word] for word in ("checkpoint_every", "grids")}
    shared["device"] = _checked_device(options["device"])
    if options["resume"]:
        for name in ("public", "public_fraction", "out", "size", "batch_size", "learning_rate", "image_size"):
            if options[name] is not None:
                raise InputError(
                    name, options[name], "only --steps, --checkpoint-every and --device beside --resume",
                    problem="does not apply here", cure="A model goes on with what it began with.",
                )  # fmt: skip
        out = options["resume"]
        with _bar("training", options["quiet"]) as bar:
            resume(out, steps=options["steps"], progress=_noting(bar), **shared)
    else:
        if options["public"] is None:
            raise InputError(
                "public", None, "a data set's name or a path", problem="is missing",
                cure="Say which images are public: --public digits --public-fraction 0.2, or --public FOLDER.",
            )  # fmt: skip
        public, rows, source = _public(options)
        out = options["out"] or free_run(options["public"], "edm")
        settings = _settings(options, public)
        with _bar("training", options["quiet"]) as bar:
            train(public, settings, out=out, rows=rows, source=source, progress=_noting(bar), **shared)
    folder = SynthesisFolder(out)
    facts, found = folder.facts(), folder.load()
    history = found[1]["history"] if found else []
    answer = {
        "out": str(out), "public": {**facts["public"]}, "size": facts["frame"]["size"],
        "steps": found[1]["step"] if found else 0, "loss": history[-1]["loss"] if history else None,
        "grids": [str(path) for path in sorted((folder.path / "grids").glob("*.png"))],
    }  # fmt: skip
    if options["as_json"]:
        click.echo(json.dumps(answer))
        return
    click.echo(f"trained on {facts['public']['rows']} public rows of {facts['public']['name']}")
    click.echo(f"model in {out}: {answer['steps']} steps, loss {answer['loss']}")
    if answer["grids"]:
        click.echo(f"samples on the way: {answer['grids'][-1]}")


@command.command(name="sample")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--out", type=click.Path(dir_okay=False), default="samples.npz", show_default=True, help="The file."
)
@click.option(
    "--count", type=int, default=10_000, show_default=True, help="How many, the same of each class."
)
@click.option("--steps", type=int, default=20, show_default=True, help="Noise levels of Heun's method.")
@click.option("--guidance", type=float, default=0.0, show_default=True,
              help="Weight w_d of discriminator guidance: more is more diverse, and less faithful.")  # fmt: skip
@click.option(
    "--discriminator-steps", type=int, default=1_000, show_default=True, help="Batches it is trained on."
)
@click.option("--batch-size", type=int, default=200, show_default=True, help="Images at once.")
@click.option(
    "--dtype", type=click.Choice(["uint8", "float32"]), default="uint8", show_default=True, help="Of pixels."
)
@_seed
@_device
@json_at_the_end
@_quiet
def sample_command(folder: str, as_json: bool, quiet: bool, discriminator_steps: int, **options: Any) -> None:
    """Draw samples from the model in FOLDER into an .npz file, with what they were made from.

    A sampling that was cut off goes on when the same command is given again.

    \b
    Examples:
      saltflat synthesize sample runs/mnist-edm --count 50000 --out mnist-samples.npz
      saltflat synthesize sample runs/mnist-edm --count 1000 --guidance 3 --out guided.npz
    """
    from saltflat.synthesis import DiscriminatorSettings, read_samples, sample

    options["device"] = _checked_device(options["device"])
    judge = DiscriminatorSettings(steps=discriminator_steps, seed=options["seed"])
    if options["guidance"] and not quiet:
        click.echo("guidance: a discriminator is trained first, unless the folder has it", err=True)
    with _bar("sampling", quiet) as bar:
        path = sample(
            folder, discriminator=judge,
            progress=lambda done, total: bar.update(completed=done, total=total), **options,
        )  # fmt: skip
    examples, origin = read_samples(path)
    if as_json:
        answer = {"out": str(path), "count": len(examples), "provenance": "synthetic-from-public", **origin}
        click.echo(json.dumps(answer))
        return
    made_from = f"{origin['public']['rows']} public rows of {origin['public']['name']}"
    click.echo(f"{len(examples)} samples in {path}, made from {made_from}")
    told = origin["sampler"]["discriminator"]
    if told:
        click.echo(
            f"the discriminator was right on {told['held_out_accuracy']:.1%} of held-out images "
            "(50 %: it sees no difference)"
        )


@command.command(name="evaluate")
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("samples", type=click.Path(dir_okay=False))
@click.option("--test", metavar="NAME|PATH",
              help="Rows to score classifiers on.  [default: the data set's own, if it has a name]")  # fmt: skip
@click.option("--features", type=click.Choice(["classifier", "scattering"]), default="classifier", show_default=True,
              help="The space of precision, recall and Fréchet distance.")  # fmt: skip
@click.option("--neighbours", "k", type=int, default=3, show_default=True, help="That make a manifold.")
@click.option(
    "--classifier-steps", type=int, default=1_000, show_default=True, help="Batches of each classifier."
)
@_seed
@click.option(
    "--out", type=click.Path(file_okay=False), help="Where the pictures go.  [default: FOLDER/evaluation]"
)
@data_dir_option
@json_at_the_end
@_quiet
def evaluate_command(folder: str, samples: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Measure SAMPLES beside the public rows of the model in FOLDER.

    A classifier trained on samples alone (the classification accuracy score) beside one trained on as many augmented
    copies of the public rows; precision, recall, Fréchet distance and class score in a named feature space; and how
    many samples are copies of a public image, with a picture of nearest neighbours.

    \b
    Examples:
      saltflat synthesize evaluate runs/mnist-edm samples.npz
      saltflat synthesize evaluate runs/mnist-edm samples.npz --features scattering --json
    """
    from saltflat.record.atomic import write_whole
    from saltflat.synthesis import SynthesisFolder, evaluate, read_samples

    place = SynthesisFolder(folder)
    public = place.public()
    examples, _ = read_samples(samples)
    rows = _test_rows(options.pop("test"), place.facts()["public"].get("data"), options.pop("data_dir"))
    say = None if as_json or quiet else lambda words: click.echo(f"measuring: {words}", err=True)
    target = Path(options.pop("out") or place.path / "evaluation")
    quality = evaluate(examples, public, test=rows, out=target, announce=say, **options)
    content = json.dumps(quality.to_dict() | {"samples_file": str(samples)}, indent=2)
    write_whole(target / "quality.json", content.encode() + b"\n")
    click.echo(json.dumps(quality.to_dict()) if as_json else str(quality))


def _public(options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Public rows, their numbers if they are a share, and where they came from."""
    from saltflat.data import load, names
    from saltflat.data.split import public_part

    name, fraction = options["public"], options["public_fraction"]
    shown = {"data_dir": options["data_dir"], "image_size": options["image_size"]}
    source = {"data": name if name in names() else str(Path(name).absolute())}
    if fraction is None:
        declared = _declared(load(name, provenance="public", **shown).train, name)
        click.echo(f"all training rows of {name} are taken as public, because --public says so", err=True)
        return declared, None, source
    part, rows = public_part(load(name, **shown).train, fraction, options["public_seed"])
    return part, rows, source | {"public_fraction": fraction, "public_seed": options["public_seed"]}


def _declared(rows: Any, name: str) -> Any:
    """Rows that --public declares public, unless their own file says that they are private."""
    import numpy as np

    from saltflat.synthesis.folder import refuse_private

    if name.lower().endswith(".npz"):
        with np.load(name, allow_pickle=False) as archive:
            said = str(archive["provenance"]) if "provenance" in archive.files else "public"
        refuse_private(replace(rows, provenance="private" if said == "private" else "public"))
    return rows


def _settings(options: dict[str, Any], public: Any) -> Any:
    from saltflat.synthesis import settings_for

    side = min(public.inputs.shape[2:]) if public.inputs.dim() == 4 else 0
    size = options["size"] or ("tiny" if side < 16 else "small")
    words = ("steps", "batch_size", "learning_rate", "seed")
    settings = settings_for(size, **{word: options[word] for word in words})
    if options["flip"]:
        settings = replace(settings, augmentation=replace(settings.augmentation, flip_x=True))
    return settings


def _test_rows(test: str | None, data: str | None, data_dir: str | None) -> Any:
    """The test part that was named, or that of the data set the public rows were split from."""
    from saltflat.data import load, names

    name = test or (data if data in names() else None)
    if name is None:
        return None
    found = load(name, data_dir=data_dir)
    if found.test is None and test is not None:
        raise InputError("test", test, "a data set with a test part", problem="has none")
    return found.test


def _checked_device(device: str) -> str:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            "device", device, "a device that this machine has", problem=f"cannot be used ({cause})",
            cure="cpu always can.",
        ) from error  # fmt: skip
    return device


def _bar(words: str, quiet: bool) -> NotedBar:
    from saltflat.training.progress import NotedBar

    return NotedBar(words, None, shown=sys.stderr.isatty() and not quiet)


def _noting(bar: NotedBar) -> Callable[[int, int, float], None]:
    """Shows one more step of training."""
    return lambda done, total, loss: bar.update(completed=done, total=total, note=f"loss {loss:.4f}")
