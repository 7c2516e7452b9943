"""What a bench should show, and whether it did: from the kept numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saltflat.bench.contenders import CHANNELS_LAST, ORDINARY
from saltflat.bench.engines import LARGEST_ERROR, is_right
from saltflat.bench.settings import MODELS
from saltflat.bench.tasks import LOGICAL
from saltflat.bench.timing import geometric_mean

Sections = Mapping[str, Mapping[str, Mapping[str, Any]]]
FASTEST_PEER = "fastest peer"


@dataclass(frozen=True)
class Goal:
    """A figure, its bound, and on what it rests. ``met`` is None where nothing was measured.

    ``bound`` is the least value where ``at_least``, else the largest.
    """

    name: str
    value: float | None
    bound: float
    at_least: bool
    over: str

    @property
    def met(self) -> bool | None:
        """Whether the value is on the right side of the bound."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "met": self.met}


def summary(sections: Sections) -> dict[str, Any]:
    """Geometric means over the models, and where saltflat is slower than a peer.

    A model that a family could not run does not count in that family's mean; ``models`` says how many did.
    ``limit`` is that mean if gradients of matrices and kernels cost nothing at all.
    """
    found = sections.get("engines", {})
    means = {}
    for family in (ORDINARY, CHANNELS_LAST, "opacus", "torch.func", "jax-privacy", FASTEST_PEER):
        rows = [row for row in found.values() if family in row["ratios"]]
        ratios = [row["ratios"][family]["median"] for row in rows]
        limits = [ratio / row["floor"]["median"] for ratio, row in zip(ratios, rows)]
        means[family] = {
            "geometric_mean": geometric_mean(ratios), "limit": geometric_mean(limits), "models": len(ratios),
        }  # fmt: skip
    slower = [
        {"model": name, "peer": row["fastest"][FASTEST_PEER], "ratio": row["ratios"][FASTEST_PEER]["median"]}
        for name, row in found.items()
        if FASTEST_PEER in row["ratios"] and row["ratios"][FASTEST_PEER]["median"] < 1
    ]
    wrong = [name for name, row in found.items() if not is_right(row)]
    return {"means": means, "slower_than_a_peer": slower, "wrong_gradients": wrong}


def goals(sections: Sections) -> list[Goal]:
    """Every goal, measured or not."""
    return [*_engine_goals(sections), *_step_goals(sections), *_memory_goals(sections)]


def _engine_goals(sections: Sections) -> list[Goal]:
    found, told = sections.get("engines", {}), summary(sections)

    def mean(family: str, words: str, bound: float) -> Goal:
        row = told["means"][family]
        name = f"throughput against {words}"
        return Goal(name, row["geometric_mean"], bound, True, _models(row["models"]))

    errors = [max(row["gradient_error"], row["clipped_error"]) for row in found.values()]
    raced = [row for row in found.values() if FASTEST_PEER in row["ratios"]]
    slower = float(len(told["slower_than_a_peer"])) if raced else None
    return [
        mean(ORDINARY, "ordinary", 1.0),
        mean(CHANNELS_LAST, "ordinary, channels_last", 0.8),
        mean("opacus", "the fastest Opacus mode", 3.0),
        mean("torch.func", "torch.func", 2.0),
        Goal("models slower than the fastest peer", slower, 0.0, False, _models(len(raced))),
        Goal(
            "relative error of the sums", max(errors) if errors else None, LARGEST_ERROR, False,
            _models(len(found)),
        ),
    ]  # fmt: skip


def _step_goals(sections: Sections) -> list[Goal]:
    step = sections.get("step", {}).get("dp-sgd")
    methods = sections.get("methods", {})
    cheap = {name: row for name, row in methods.items() if name != "dp-sam"}
    dearest = max((row["ratio"]["median"] for row in cheap.values()), default=None)
    sam = methods.get("dp-sam")
    return [
        Goal(
            "whole step against its clipped gradient", _median(step), 1.15, False,
            _rows(step),
        ),
        Goal(
            "DP-SAT, SAI and averages against DP-SGD", dearest, 1.02, False,
            f"{len(cheap)} method{'s' * (len(cheap) > 1)}" if cheap else "not measured",
        ),
        Goal("DP-SAM against DP-SGD", _median(sam), 2.0, False, _rows(sam)),
    ]  # fmt: skip


def _memory_goals(sections: Sections) -> list[Goal]:
    found = sections.get("memory", {})
    logical = found.get(LOGICAL)
    models = {name: row for name, row in found.items() if name != LOGICAL and row["judged"] and row["ratio"]}
    # Memory that shrinks with the batch would be as odd as memory that grows: both sides count.
    ratio: float | None = None if logical is None else logical["ratio"]
    apart = None if ratio is None else max(ratio, 1 / ratio)
    words = "not measured" if logical is None else "{:,} against {:,}".format(*reversed(logical["batches"]))
    return [
        Goal("memory over the logical batch", apart, 1.05, False, words),
        Goal(
            "memory against the ordinary step",
            max((row["ratio"] for row in models.values()), default=None), 1.5, False, _models(len(models)),
        ),
    ]  # fmt: skip


def _models(count: int) -> str:
    return f"{count} of {len(MODELS)} models" if count else "not measured"


def _median(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None else row["ratio"]["median"]


def _rows(row: Mapping[str, Any] | None) -> str:
    return "not measured" if row is None else f"{row['model']}, batch {row['batch_size']:,}"
