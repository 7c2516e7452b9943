"""A warm-up between two epochs, on disk: one that was cut off goes on, and ends in the same weights to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.errors import InputError
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError
from saltflat.record.packed import number_from, packed, plain_number, unpacked

FORMAT = 1


@dataclass
class Course:
    """All that the next epoch depends on, and what is known of those before it."""

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
        held = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
        self.model.load_state_dict(held)
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
