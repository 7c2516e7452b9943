"""Samples in a file, with what they were made from.

Batches are kept as they are drawn, each from a stream of its own: a sampling that was cut off goes on, and its
samples are those of one that was not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat import __version__
from saltflat.data import Examples
from saltflat.errors import InputError, check_count, is_number
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError, fingerprint
from saltflat.record.packed import packed, unpacked
from saltflat.synthesis.chance import stream
from saltflat.synthesis.folder import SynthesisFolder, npz
from saltflat.synthesis.guidance import Discriminator, DiscriminatorSettings, train_discriminator
from saltflat.synthesis.model import Synthesizer, balanced_labels

PROVENANCE = "synthetic-from-public"
DISCRIMINATOR = "discriminator.safetensors"
DTYPES = ("uint8", "float32")
_FOR_DISCRIMINATOR = 7  # a seed that no sampling of the user's has: streams, not seeds, are compared

Progress = Callable[[int, int], None]


def sample(
    folder: str | Path,
    out: str | Path,
    *,
    count: int = 10_000,
    steps: int = 20,
    guidance: float = 0.0,
    seed: int = 0,
    batch_size: int = 200,
    dtype: str = "uint8",
    labels: Tensor | None = None,
    device: str = "cpu",
    discriminator: DiscriminatorSettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Draw samples from the model in ``folder`` and write them to ``out``, an ``.npz`` file.

    It holds ``X`` (images, N x C x H x W), ``y`` (labels), ``provenance`` ("synthetic-from-public") and ``made_from``
    (JSON: the public rows by name, count and hash, the model's settings, the sampler's). ``saltflat.data.load(out,
    provenance="synthetic")`` reads it, and `read_samples`.

    Args:
        folder: A folder that `train` wrote.
        out: The file to write. One that is there is replaced.
        count: How many, the same number of each class.
        steps: Noise levels of Heun's method.
        guidance: The weight w_d of discriminator guidance; 0 is none. The discriminator is trained when it is first
            needed, and kept in the folder. More weight gives more diverse and less faithful samples.
        seed: Of the noise they start from.
        batch_size: Images at once. Samples depend on it, as their noise does.
        dtype: ``"uint8"`` or ``"float32"`` in [0, 1].
        labels: The classes to draw, instead of ``count``.
        device: Where to compute.
        discriminator: How to train it.
        progress: Called with samples done and samples wanted.
    """
    check_count("count", count)
    check_count("steps", steps)
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    if not is_number(guidance) or not 0 <= guidance < float("inf"):
        raise InputError(
            "guidance", guidance, "a weight of at least 0", cure="0 is no guidance; try 3 or 10."
        )
    if dtype not in DTYPES:
        raise InputError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    place, made = SynthesisFolder(folder), SynthesisFolder(folder).synthesizer(device)
    wanted = balanced_labels(count, made.frame.classes) if labels is None else labels
    guide, told = None, None
    if guidance:
        judge, told = discriminator_of(place, made, discriminator or DiscriminatorSettings(seed=seed))
        guide = judge.to(device).guide
    origin: dict[str, Any] = {
        **made.origin,
        "sampler": {
            "method": "heun", "steps": steps, "seed": seed, "batch_size": batch_size, "guidance": guidance,
            "discriminator": told,
        },
        "saltflat": __version__,
    }  # fmt: skip
    path = Path(out)
    identity = {**origin, "dtype": dtype, "labels": wanted.tolist()}
    parts = path.with_name(f".{path.name}.{fingerprint(identity)[:12]}.parts")
    parts.mkdir(parents=True, exist_ok=True)
    images = []
    for number, some in enumerate(wanted.split(batch_size)):
        file = parts / f"{number:06d}.npz"
        found = _kept(file, len(some))
        if found is None:
            drawn = made.images(some, steps=steps, seed=stream(seed, number), guide=guide, weight=guidance)
            found = as_dtype(drawn, dtype)
            write_whole(file, npz({"X": found}))
        images.append(found)
        if progress is not None:
            progress(min((number + 1) * batch_size, len(wanted)), len(wanted))
    write_whole(
        path,
        npz(
            {
                "X": np.concatenate(images),
                "y": wanted.numpy(),
                "provenance": np.array(PROVENANCE),
                "made_from": np.array(json.dumps(origin)),
            }
        ),
    )
    shutil.rmtree(parts)
    return path


def read_samples(path: str | Path) -> tuple[Examples, dict[str, Any]]:
    """Images in [0, 1] of provenance synthetic, and what they were made from."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            held = {name: archive[name] for name in archive.files}
        if str(held["provenance"]) != PROVENANCE:
            raise ValueError(f"its provenance is {str(held['provenance'])!r}")
        origin = json.loads(str(held["made_from"]))
        images, labels = torch.from_numpy(held["X"]), torch.from_numpy(held["y"])
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib, header and JSON faults, each with its own kind
        raise InputError(
            "samples", str(path), "a file that saltflat synthesize sample wrote",
            problem=f"cannot be read ({type(error).__name__}: {error})",
        ) from error  # fmt: skip
    if images.dtype == torch.uint8:
        images = images.float() / 255
    name = f"samples from {origin['public']['name']}"
    return Examples(images, labels, "synthetic", name, int(labels.max()) + 1), origin


def discriminator_of(
    folder: SynthesisFolder, made: Synthesizer, settings: DiscriminatorSettings
) -> tuple[Discriminator, dict[str, Any]]:
    """The folder's discriminator and facts about it; trained first where there is none for these weights."""
    facts = {"trained_steps": made.origin["trained_steps"], "settings": asdict(settings)}
    path = folder.path / DISCRIMINATOR
    kept = unpacked(path.read_bytes(), str(path))[1] if path.exists() else {}
    if {key: kept.get(key) for key in facts} != facts:
        _write_discriminator(path, folder, made, settings, facts)
    # also a new one is read back: a guided sampling is then the same whether or not it had to train
    tensors, kept = unpacked(path.read_bytes(), str(path))
    judge = Discriminator(made.frame.size, made.frame.channels, made.frame.classes)
    judge.load_state_dict(tensors)
    return judge.eval().requires_grad_(False), kept


def _write_discriminator(
    path: Path,
    folder: SynthesisFolder,
    made: Synthesizer,
    settings: DiscriminatorSettings,
    facts: dict[str, Any],
) -> None:
    public = folder.public()
    labels = public.targets
    drawn = [
        made.images(some, steps=12, seed=stream(settings.seed, _FOR_DISCRIMINATOR, number))
        for number, some in enumerate(labels.split(200))
    ]
    trained = train_discriminator(
        (made.frame.scaled(public.inputs), labels), (made.frame.scaled(torch.cat(drawn)), labels),
        made.frame.size, made.frame.classes, settings, folder.settings().augmentation,
    )  # fmt: skip
    accuracy = round(trained.accuracy, 4)
    write_whole(path, packed(trained.model.state_dict(), {**facts, "held_out_accuracy": accuracy}))


def as_dtype(images: Tensor, dtype: str) -> NDArray[Any]:
    """Images in [0, 1] as bytes or as they are."""
    return images.numpy() if dtype == "float32" else (images * 255).round().to(torch.uint8).numpy()


def _kept(file: Path, count: int) -> NDArray[Any] | None:
    if not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = archive["X"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DamagedError(
            f"{file} cannot be read ({error}). Remove its folder, and sample again."
        ) from error
    return found if len(found) == count else None
