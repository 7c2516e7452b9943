"""Training a diffusion model on public images: EDM's loss, Adam, and an average of the weights.

Every step draws from a stream of its own, made of the seed and the step's number. So the state of a run is its
weights, their average, Adam's moments and a number, and a run that was cut off goes on exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat.data import Examples
from saltflat.errors import InputError, MissingDependencyError, SaltflatError, check_count, is_number
from saltflat.record.lock import FolderLock
from saltflat.record.packed import under
from saltflat.synthesis.chance import drawing, stream
from saltflat.synthesis.folder import SynthesisFolder, refuse_private
from saltflat.synthesis.model import Frame, Synthesizer, balanced_labels
from saltflat.synthesis.pictures import grid
from saltflat.synthesis.precondition import denoising_loss
from saltflat.synthesis.settings import Settings, settings_for

# an average over more than this share of the images seen would hold the first steps too long
EMA_RAMPUP = 0.05
_ORDER, _STEP = 3, 4  # streams of seeds, after those of model.py

Progress = Callable[[int, int, float], None]
"""Called after each step with its number, the number of steps, and the loss."""


class DivergedError(SaltflatError):
    """The loss is not a number any more."""


class Trainer:
    """The loop, one step at a time.

    Guarantee: the state after step t depends on the settings and the images alone, not on interruptions.
    """

    def __init__(self, settings: Settings, frame: Frame, public: Examples, device: str = "cpu") -> None:
        refuse_private(public)
        self.settings, self.frame, self.device = settings, frame, device
        self.images = frame.scaled(public.inputs)
        self.labels = public.targets
        self.model = frame.build(settings.seed).to(device).train()
        self.average = frame.build(settings.seed).to(device).eval().requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.learning_rate)
        self.step = 0
        self._epoch: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.long))

    def advance(self) -> float:
        """One step; returns the loss of its batch."""
        settings = self.settings
        seen = (self.step + 1) * settings.batch_size
        rate = settings.learning_rate * min(1.0, seen / max(settings.rampup, 1))
        rows = self._rows(self.step)
        with drawing(settings.seed, _STEP, self.step, device=self.device):
            images, changes = settings.augmentation(self.images[rows])
            images = images.to(self.device).contiguous(memory_format=torch.channels_last)
            labels = self.labels[rows].to(self.device)
            loss = denoising_loss(self.model, images, labels, changes.to(self.device))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self._observe(seen)
        self.step += 1
        return float(loss.detach())

    @torch.no_grad()
    def _observe(self, seen: int) -> None:
        """The average moves toward the weights, slower as more images have been seen."""
        half_life = min(float(self.settings.half_life), seen * EMA_RAMPUP)
        share = 1 - 0.5 ** (self.settings.batch_size / max(half_life, 1e-8))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), share)

    def _rows(self, step: int) -> Tensor:
        """The rows of a step: whole passes over the data, each in an order of its own."""
        size, total = self.settings.batch_size, len(self.labels)
        places = torch.arange(step * size, (step + 1) * size)
        return torch.stack([self._order(int(p) // total)[int(p) % total] for p in places])

    def _order(self, epoch: int) -> Tensor:
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(stream(self.settings.seed, _ORDER, epoch))
            self._epoch = (epoch, torch.randperm(len(self.labels), generator=generator))
        return self._epoch[1]

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, as tensors by name."""
        result = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        result |= {f"ema.{name}": value for name, value in self.average.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                result[f"adam.{key}.{name}"] = value
        return result

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from what `tensors` gave after ``step`` steps."""
        self.model.load_state_dict(under("model.", tensors))
        self.average.load_state_dict(under("ema.", tensors))
        for name, parameter in self.model.named_parameters():
            moments = {  # in the weights' own layout
                key: torch.empty_like(parameter).copy_(tensors[f"adam.{key}.{name}"])
                for key in ("exp_avg", "exp_avg_sq")
            }
            self.optimizer.state[parameter] = {"step": tensors[f"adam.step.{name}"].clone(), **moments}
        self.step = step

    def synthesizer(self) -> Synthesizer:
        """The averaged model as it is now."""
        return Synthesizer(self.average, self.frame, {"trained_steps": self.step})


def train(
    public: Examples,
    settings: Settings | None = None,
    *,
    out: str | Path | None = None,
    rows: NDArray[np.int64] | None = None,
    source: dict[str, Any] | None = None,
    checkpoint_every: float = 60.0,
    grids: int = 6,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Synthesizer:
    """Train a class-conditional diffusion model (EDM) on public images.

    Guarantee: rows marked private are refused. Killed anywhere, a run with ``out`` loses at most
    ``checkpoint_every`` seconds, and `resume` ends in the same weights, bit for bit on one machine.

    Args:
        public: Images in [0, 1] with labels, of provenance public or synthetic.
        settings: See `Settings`; those of size ``small`` if left out.
        out: A folder for checkpoints, the public rows and grids of samples.
        rows: The numbers of these rows in the set they were split from; recorded, so that others can leave them out.
        source: More facts about where they came from; recorded.
        checkpoint_every: Seconds between checkpoints.
        grids: How many pictures of samples to draw on the way, the last one at the end.
        device: Where to train.
        progress: Called after each step.

    >>> from saltflat.data import load
    >>> digits = load("digits", public_fraction=0.2)
    >>> made = train(digits.public, settings_for("tiny", steps=2, batch_size=4))
    >>> made.images(torch.tensor([3, 7]), steps=2).shape
    torch.Size([2, 1, 8, 8])
    >>> train(digits.train)
    Traceback (most recent call last):
    saltflat.errors.InputError: public='digits' is marked private...
    """
    refuse_private(public)
    _check_intervals(checkpoint_every, grids)
    settings = settings or settings_for("small")
    classes = public.num_classes or int(public.targets.max()) + 1
    frame = Frame.of(settings.size, public.inputs, classes)
    trainer = Trainer(settings, frame, public, device)
    if out is None:
        for _ in _losses(trainer, progress):
            pass
        return trainer.synthesizer()
    folder = SynthesisFolder(out)
    if folder.exists:
        raise InputError(
            "out", str(out), "a folder without a model", problem="holds a diffusion model already",
            cure="Go on with it (--resume; saltflat.synthesis.resume), or choose another folder.",
        )  # fmt: skip
    folder.path.mkdir(parents=True, exist_ok=True)
    with FolderLock(folder.path):
        folder.begin(settings, frame, public, rows, source or {})
        return _run(trainer, folder, [], checkpoint_every, grids, progress)


def resume(
    out: str | Path,
    *,
    steps: int | None = None,
    checkpoint_every: float = 60.0,
    grids: int = 6,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Synthesizer:
    """Go on with a training that was cut off, or with more ``steps`` than it had."""
    _check_intervals(checkpoint_every, grids)
    folder = SynthesisFolder(out)
    settings = folder.settings()
    settings = settings if steps is None else replace(settings, steps=steps)
    with FolderLock(folder.path):
        trainer = Trainer(settings, folder.frame(), folder.public(), device)
        found, history = folder.load(), []
        if found is not None:
            tensors, state = found
            trainer.restore(tensors, int(state["step"]))
            history = state["history"]
        return _run(trainer, folder, history, checkpoint_every, grids, progress)


def _run(
    trainer: Trainer,
    folder: SynthesisFolder,
    history: list[dict[str, Any]],
    every: float,
    grids: int,
    progress: Progress | None,
) -> Synthesizer:
    steps = trainer.settings.steps
    row = max(1, steps // 200)  # a line of metrics so often
    saved, losses = time.monotonic(), []
    for loss in _losses(trainer, progress):
        losses.append(loss)
        if trainer.step % row == 0 or trainer.step == steps:
            history.append({"step": trainer.step, "loss": round(sum(losses) / len(losses), 6)})
            losses = []
        if trainer.step == steps or time.monotonic() - saved > every:
            folder.save(trainer.tensors(), {"step": trainer.step}, history)
            saved = time.monotonic()
        if trainer.step * grids // steps > (trainer.step - 1) * grids // steps:
            draw_grid(trainer.synthesizer(), folder.grid(trainer.step), trainer.step)
    return folder.synthesizer(trainer.device)


COLUMNS = 10  # of a grid of samples


def draw_grid(made: Synthesizer, path: Path, step: int) -> None:
    """A grid of samples, the same noise each time; nothing where pillow is missing."""
    classes = min(made.frame.classes, 20)
    labels = balanced_labels(classes * COLUMNS, classes)
    try:
        grid(made.images(labels, steps=12), labels, path, COLUMNS, f"samples after {step:,} steps")
    except MissingDependencyError:
        return


def _check_intervals(checkpoint_every: float, grids: int) -> None:
    check_count("grids", grids, least=0)
    if not is_number(checkpoint_every) or checkpoint_every < 0:
        raise InputError(
            "checkpoint_every", checkpoint_every, "seconds, 0 or more", cure="0 is after every step."
        )


def _losses(trainer: Trainer, progress: Progress | None) -> Iterator[float]:
    """The steps that are left, with the loss of each."""
    steps = trainer.settings.steps
    while trainer.step < steps:
        loss = trainer.advance()
        if math.isnan(loss):
            raise DivergedError(
                f"the loss is not a number after step {trainer.step}.\n"
                f"  Expected a finite loss. Take a smaller learning_rate than {trainer.settings.learning_rate:g}."
            )
        if progress is not None:
            progress(trainer.step, steps, loss)
        yield loss
