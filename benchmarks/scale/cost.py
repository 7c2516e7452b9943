"""The cost model of a private step on several ranks, with constants that were measured on one machine.

A step on R ranks takes: the rows of the busiest rank, the weights to all ranks and the sum back, and what rank 0
does by itself (batch, noise, optimizer, ledger). Everything but the first is the same for one rank or many, or grows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).resolve().parents[1] / "ranks" / "results" / "speed.json"
BYTES = 4  # float32
LEDGER = 0.002  # seconds: one synced line on a common cloud disk (docs/runs.md)


@dataclass(frozen=True)
class Link:
    """What ranks talk over: bytes a second, and seconds until a short message is there."""

    name: str
    bandwidth: float
    latency: float

    @staticmethod
    def measured() -> Link:
        """Gloo through the loopback, with the copies before and after: from what speed.py wrote."""
        held = json.loads(MEASURED.read_text(encoding="utf-8"))["messages"]
        longest = held[-1]
        return Link(
            "gloo, as measured",
            2 * BYTES * longest["parameters"] / longest["seconds"],
            held[0]["seconds"] / 5,  # five short messages
        )


# what their makers say
ETHERNET_100 = Link("100 Gb/s Ethernet", 12.5e9, 20e-6)


@dataclass(frozen=True)
class Constants:
    """Nanoseconds a coordinate (noise, optimizer) and a row of the population (sampling) at rank 0."""

    noise: float
    optimizer: float
    sampling: float

    @staticmethod
    def measured(tier: str = "fast") -> Constants:
        """From the file that benchmarks/ranks/speed.py wrote."""
        held = json.loads(MEASURED.read_text(encoding="utf-8"))["constants"]
        return Constants(held[f"noise_{tier}_ns"], held["optimizer_ns"], held[f"sampling_{tier}_ns"])


def busiest(batch: float, ranks: int) -> float:
    """The expected number of rows of the rank that has most of a Poisson batch."""
    mean = batch / ranks
    return mean + math.sqrt(2 * mean * math.log(ranks)) if ranks > 1 else mean


def talking(parameters: float, ranks: int, link: Link) -> float:
    """Seconds for the weights to all ranks and the sum back, as gloo does it.

    The broadcast is a tree: every level sends the whole vector. The reduction passes pieces round a ring and
    gathers them: twice the vector. Five short messages come before and between.
    """
    if ranks == 1:
        return 0.0
    levels = math.ceil(math.log2(ranks))
    once = parameters * BYTES / link.bandwidth
    return levels * once + 2 * once * (ranks - 1) / ranks + 5 * levels * link.latency


def leading(parameters: float, population: float, constants: Constants) -> float:
    """Seconds that rank 0 needs by itself, while the others wait."""
    own = parameters * (constants.noise + constants.optimizer) + population * constants.sampling
    return own * 1e-9 + LEDGER


def step(
    ranks: int,
    batch: float,
    parameters: float,
    population: float,
    rows_a_second: float,
    link: Link,
    constants: Constants,
) -> dict[str, float]:
    """The parts of one step, in seconds."""
    return {
        "rows": busiest(batch, ranks) / rows_a_second,
        "messages": talking(parameters, ranks, link),
        "rank 0": leading(parameters, population, constants),
    }


def useful_ranks(
    batch: float, parameters: float, population: float, rows_a_second: float, link: Link, constants: Constants,
    efficiency: float = 0.5,
) -> int:  # fmt: skip
    """The largest number of ranks that still work for at least this share of their time."""
    single = sum(step(1, batch, parameters, population, rows_a_second, link, constants).values())
    best, ranks = 1, 2
    while ranks <= 1_048_576:
        taken = sum(step(ranks, batch, parameters, population, rows_a_second, link, constants).values())
        if single / (ranks * taken) < efficiency:
            break
        best, ranks = ranks, ranks * 2
    return best
