"""Warm-up: ordinary training on public data, before the first private step. It costs no budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from saltflat.data.shared_rows import joined, refuse_private
from saltflat.data.source import Examples, map_tensors
from saltflat.engine.batch import LossFunction
from saltflat.engine.calling import call_model
from saltflat.errors import InputError, check_count, check_not_negative, check_positive
from saltflat.methods.ascent import displaced, scaled_to
from saltflat.methods.multiplicity import AUGMENTATIONS, cutmix
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError
from saltflat.record.packed import number_from, packed, plain_number, under, unpacked
from saltflat.training.build import trainable
from saltflat.training.losses import default_loss
from saltflat.training.public_side import described

FORMAT = 1
WarmUpOptimizer = Literal["sgd", "sam"]
NAMES = (*AUGMENTATIONS, "cutmix")
WORDS = {"common": ("crop", "flip"), "none": ()}
"""Names for usual sets of augmentations: "common" is padding, a random crop and a flip."""

Watch = Callable[[int, int, float], None]
"""Called after each epoch with its number, the number of epochs and the mean loss."""


@dataclass(frozen=True)
class WarmUp:
    """How a model is trained on public data: the settings of the public-data paper (its Table 12).

    ``optimizer`` is ``"sgd"`` or ``"sam"`` with radius ``rho``; the learning rate falls as a cosine to zero.
    ``augmentations`` are names among flip, crop, cutout, auto and cutmix, or ``"common"`` for crop and flip.

    >>> WarmUp(augmentations="common").augmentations, WarmUp("sam").rho
    (('crop', 'flip'), 0.1)
    """

    optimizer: WarmUpOptimizer = "sgd"
    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    rho: float = 0.1
    augmentations: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(WarmUpOptimizer):
            raise InputError("optimizer", self.optimizer, "'sgd' or 'sam' for a warm-up")
        for name in ("epochs", "batch_size"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, least=0)
        check_positive("learning_rate", self.learning_rate)
        for name in ("momentum", "weight_decay", "rho"):
            check_not_negative(name, getattr(self, name))
        given: Any = self.augmentations
        names = given.split(",") if isinstance(given, str) else list(given)
        flat = [part for name in names if name.strip() for part in WORDS.get(name.strip(), (name.strip(),))]
        for name in flat:
            if name not in NAMES:
                raise InputError("augmentations", name, f"names among {', '.join((*WORDS, *NAMES))}")
        object.__setattr__(self, "augmentations", tuple(flat))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"augmentations": list(self.augmentations)}


@dataclass(frozen=True)
class WarmedUp:
    """What a warm-up did: its settings, the mean loss of each epoch, and the public data that it saw."""

    settings: WarmUp
    losses: tuple[float, ...]
    seconds: float
    public: tuple[dict[str, Any], ...]


def warm_up(
    model: nn.Module,
    *data: Examples,
    settings: WarmUp | None = None,
    loss_fn: LossFunction | None = None,
    device: torch.device | str | None = None,
    watch: Watch | None = None,
    keep: str | Path | None = None,
) -> WarmedUp:
    """Train ``model`` on public ``data``, in place, without privacy and at no cost.

    Several data sets, such as public rows and samples made from them, are joined. Guarantees: rows that are not
    marked public or synthetic are refused. What is drawn follows from the settings' seed, and global randomness
    is left alone. ``keep`` names a file for the state after each epoch. If it is there, the warm-up goes on from it,
    with the same settings and data, and ends in the same weights to the bit on the same machine.

    Reference: SAM as in Foret et al., ICLR 2021; the warm-up of Nasr et al., ICML 2023.

    >>> from saltflat.data import load
    >>> from saltflat.models import build
    >>> digits = load("digits", public_fraction=0.2)
    >>> done = warm_up(build("mlp"), digits.public, settings=WarmUp("sam", epochs=2))
    >>> len(done.losses), done.public[0]["used"]
    (2, 'warm-up')
    >>> warm_up(build("mlp"), digits.train)
    Traceback (most recent call last):
    saltflat.errors.InputError: data='digits' is marked private, and a warm-up has no privacy...
    """
    settings = WarmUp() if settings is None else settings
    for part in data:
        refuse_private(part, "data", "and a warm-up has no privacy")
    if not data:
        raise InputError("data", None, "public data to warm up on", problem="is missing")
    started = time.perf_counter()
    rows = joined(*data)
    where = torch.device(device) if device is not None else next(model.parameters()).device
    model.to(where).train()
    weights = trainable(model)
    loss = loss_fn or default_loss(rows.targets)
    optimizer = torch.optim.SGD(
        list(weights.values()), lr=settings.learning_rate, momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )  # fmt: skip
    course = Course(model, weights, optimizer, torch.Generator().manual_seed(settings.seed), where)
    used = tuple(described(part, "warm-up") for part in data)
    kept = None if keep is None else Path(keep)
    begun = {"settings": settings.to_dict(), "data": [part["sha256"] for part in used]}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)  # what a model draws by itself: dropout
        if kept is not None and kept.exists():
            course.read(kept, begun)
        before = course.seconds
        for epoch in range(len(course.losses), settings.epochs):
            total = 0.0
            for share, batch in _batches(rows, settings, course.generator, epoch):
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
                total += _step(model, weights, loss, optimizer, settings, batch, where) * len(batch[1])
            course.losses.append(total / len(rows))
            course.seconds = before + time.perf_counter() - started
            if kept is not None:
                course.write(kept, begun)
            if watch is not None:
                watch(epoch + 1, settings.epochs, course.losses[-1])
    return WarmedUp(settings, tuple(course.losses), course.seconds, used)


Batch = tuple[Any, Tensor, Tensor | None, Tensor | None]
"""Inputs and targets; where images were mixed, the other targets and the share of the first."""


def _batches(
    rows: Examples, settings: WarmUp, generator: torch.Generator, epoch: int
) -> Iterator[tuple[float, Batch]]:
    """One pass over the rows in a random order, each with the share of all steps that came before it."""
    order = torch.randperm(len(rows), generator=generator).split(settings.batch_size)
    for number, some in enumerate(order):
        share = (epoch + number / len(order)) / settings.epochs
        yield share, augmented(*rows.fetch(some), settings.augmentations, generator)


def augmented(inputs: Any, targets: Tensor, names: tuple[str, ...], generator: torch.Generator) -> Batch:
    """A batch after its augmentations."""
    if names and not (isinstance(inputs, Tensor) and inputs.dim() == 4):
        raise InputError(
            "augmentations", ", ".join(names), "images of shape N x C x H x W",
            problem="cannot change inputs of another form",
        )  # fmt: skip
    for name in names:
        if name != "cutmix":
            inputs = AUGMENTATIONS[name](inputs, generator)
    if "cutmix" not in names:
        return inputs, targets, None, None
    inputs, partner, share = cutmix(inputs, generator)
    return inputs, targets, targets[partner], share


def _step(
    model: nn.Module,
    weights: dict[str, nn.Parameter],
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    settings: WarmUp,
    batch: Batch,
    device: torch.device,
) -> float:
    """One step of SGD, or of SAM: the gradient at w + ρ g/‖g‖, and the step from w. Returns the loss at w."""
    inputs, targets, others, share = batch
    inputs, targets = map_tensors(lambda t: t.to(device), inputs), targets.to(device)

    def gradient() -> tuple[float, dict[str, Tensor]]:
        with torch.enable_grad():
            outputs = call_model(model, inputs)
            losses = loss_fn(outputs, targets)
            if others is not None and share is not None:
                kept = share.to(losses)
                losses = kept * losses + (1 - kept) * loss_fn(outputs, others.to(device))
            mean = losses.mean()
            found = torch.autograd.grad(mean, list(weights.values()), allow_unused=True)
        whole = {n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(weights.items(), found)}
        return float(mean.detach()), whole

    value, found = gradient()
    if settings.optimizer == "sam" and settings.rho:
        with displaced(weights, scaled_to(found, settings.rho)):
            _, found = gradient()
    for name, weight in weights.items():
        weight.grad = found[name]
    optimizer.step()
    for weight in weights.values():
        weight.grad = None
    return value


@dataclass
class Course:
    """All that the next epoch depends on, and what is known of those before it; kept on disk between two epochs."""

    model: nn.Module
    weights: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    device: torch.device
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, path: Path, begun: dict[str, Any]) -> None:
        """Keep the state after an epoch. ``begun`` is what the warm-up must agree with when it goes on."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, weight in self.weights.items():
            momentum = self.optimizer.state.get(weight, {}).get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum/{name}"] = momentum
        tensors["random/order"] = self.generator.get_state()
        tensors["random/torch"] = torch.get_rng_state()  # what a model draws by itself: dropout
        if self.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        facts = {
            "format": FORMAT, "begun": begun, "losses": [plain_number(loss) for loss in self.losses],
            "seconds": self.seconds,
        }  # fmt: skip
        write_whole(path, packed(tensors, facts))

    def read(self, path: Path, begun: dict[str, Any]) -> None:
        """Take up what `write` kept. Another warm-up's state is refused, and so is a damaged file."""
        with _readable(path):
            tensors, facts = unpacked(path.read_bytes(), path.name)
            if facts["format"] != FORMAT:
                raise ValueError(f"format {facts['format']}")
            stored, losses = facts["begun"], [number_from(loss) for loss in facts["losses"]]
            seconds = number_from(facts["seconds"])
        if stored != begun:
            raise InputError(
                "keep", str(path), "a warm-up with the settings and the data of this one", problem="holds another one",
                cure="Give settings and data as before, or another file.",
            )  # fmt: skip
        with _readable(path):
            self._restore(tensors)
        self.losses, self.seconds = losses, seconds

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict(under("model/", tensors))
        for name, weight in self.weights.items():
            if f"momentum/{name}" in tensors:
                momentum = tensors[f"momentum/{name}"].to(weight.device)
                if momentum.shape != weight.shape:
                    raise ValueError(f"momentum of another shape for {name}")
                self.optimizer.state[weight]["momentum_buffer"] = momentum
        self.generator.set_state(tensors["random/order"])
        torch.set_rng_state(tensors["random/torch"])
        if self.device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], self.device)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file, one error that says what to do."""
    try:
        yield
    except (DamagedError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(
            f"{path} is not the state of this warm-up ({error}). Delete it: the warm-up then begins again, at no cost."
        ) from error
