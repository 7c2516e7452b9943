"""The folder of a diffusion model: what it was made from, where its training stands, and what it looks like.

| file | holds |
|---|---|
| `synthesis.json` | settings, frame, and where the public rows came from |
| `public.npz` | the public images themselves, their labels, and their row numbers |
| `checkpoint.safetensors` | the whole state of training, replaced as one |
| `metrics.jsonl` | the loss, a line each stretch of steps |
| `grids/` | pictures of samples on the way |
| `discriminator.safetensors` | when guidance was asked for |

Nothing here is private: only rows that are public may come in.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat.data import Examples
from saltflat.data.shared_rows import refuse_private as refuse_marked
from saltflat.data.shared_rows import rows_hash
from saltflat.errors import InputError
from saltflat.record.atomic import clear_partials, write_whole
from saltflat.record.canonical import DamagedError, parsed, spelled
from saltflat.record.packed import packed, under, unpacked
from saltflat.synthesis.model import Frame, Synthesizer
from saltflat.synthesis.settings import Settings

FORMAT = 1
FACTS, PUBLIC, CHECKPOINT, METRICS, GRIDS = (
    "synthesis.json", "public.npz", "checkpoint.safetensors", "metrics.jsonl", "grids",
)  # fmt: skip


def refuse_private(public: Examples, argument: str = "public") -> None:
    """Refuse rows that are marked private: what is made from them would not be covered by any ε."""
    refuse_marked(public, argument, "and a diffusion model of it would leak its rows at no recorded cost")


class SynthesisFolder:
    """Reads and writes the files above. Every file is replaced as a whole, so a crash leaves the old or the new."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        """Whether a model lies here. Its facts are written last when it begins."""
        return (self.path / FACTS).exists()

    def begin(
        self,
        settings: Settings,
        frame: Frame,
        public: Examples,
        rows: NDArray[np.int64] | None,
        source: dict[str, Any],
    ) -> None:
        """Write down what the model will be made from."""
        refuse_private(public)
        self.path.mkdir(parents=True, exist_ok=True)
        clear_partials(self.path)
        arrays: dict[str, NDArray[Any]] = {
            "X": public.inputs.numpy(),
            "y": public.targets.numpy(),
            "provenance": np.array(public.provenance),
        }
        if rows is not None:
            arrays["rows"] = np.asarray(rows, np.int64)
        write_whole(self.path / PUBLIC, npz(arrays))
        facts = {
            "format": FORMAT,
            "public": {
                "name": public.name, "provenance": public.provenance, "rows": len(public),
                "sha256": rows_hash(public.inputs, public.targets), **source,
            },
            "frame": asdict(frame),
            "settings": settings.as_dict(),
        }  # fmt: skip
        write_whole(self.path / FACTS, spelled(facts))

    def facts(self) -> dict[str, Any]:
        """What `begin` wrote."""
        path = self.path / FACTS
        if not path.exists():
            raise InputError(
                "folder", str(self.path), f"a folder with {FACTS}", problem="holds no diffusion model",
                cure="Make one with: saltflat synthesize train --public ... --out FOLDER",
            )  # fmt: skip
        facts = parsed(path.read_bytes(), FACTS)
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            found = facts.get("format") if isinstance(facts, dict) else None
            raise DamagedError(f"{FACTS} has format {found}; this saltflat reads format {FORMAT}.")
        return facts

    def settings(self) -> Settings:
        """The settings that it began with."""
        return _as_value(lambda: Settings.from_dict(self.facts()["settings"]))

    def frame(self) -> Frame:
        """Shape and scale of its images."""
        return _as_value(lambda: Frame(**self.facts()["frame"]))

    def public(self) -> Examples:
        """The public rows that it was made from."""
        facts, path = self.facts(), self.path / PUBLIC
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                inputs, targets = torch.from_numpy(archive["X"]), torch.from_numpy(archive["y"])
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DamagedError(f"{path} cannot be read ({error}).") from error
        known = facts["public"]
        if rows_hash(inputs, targets) != known["sha256"]:
            raise DamagedError(f"{path} was changed: its hash is not the one in {FACTS}.")
        return Examples(inputs, targets, known["provenance"], known["name"], facts["frame"]["classes"])

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any], history: list[dict[str, Any]]) -> None:
        """Replace the checkpoint, then the metrics, which follow from it."""
        write_whole(self.path / CHECKPOINT, packed(tensors, {**state, "history": history}))
        lines = "".join(json.dumps(row) + "\n" for row in history)
        write_whole(self.path / METRICS, lines.encode())

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint, if there is one."""
        path = self.path / CHECKPOINT
        return unpacked(path.read_bytes(), str(path)) if path.exists() else None

    def synthesizer(self, device: str = "cpu") -> Synthesizer:
        """The averaged model of the last checkpoint, to sample from; also while training goes on."""
        facts, found = self.facts(), self.load()
        if found is None:
            raise InputError(
                "folder", str(self.path), f"a folder with {CHECKPOINT}", problem="holds a model without weights",
                cure="Train it: saltflat synthesize train --resume FOLDER",
            )  # fmt: skip
        tensors, state = found
        frame = self.frame()
        model = frame.build(seed=0)
        model.load_state_dict(under("ema.", tensors))
        origin = {"public": facts["public"], "trained_steps": state["step"], "settings": facts["settings"]}
        return Synthesizer(model.to(device).eval().requires_grad_(False), frame, origin)

    def grid(self, step: int) -> Path:
        """Where the picture of samples after a step goes."""
        (self.path / GRIDS).mkdir(exist_ok=True)
        return self.path / GRIDS / f"step-{step:07d}.png"


def npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    """The bytes of a compressed ``.npz`` file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # its stub takes keyword arrays badly
    return buffer.getvalue()


def _as_value(make: Any) -> Any:
    try:
        return make()
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{FACTS} lacks or misnames a part ({error}).") from error
