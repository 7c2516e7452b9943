"""Two ranks against one process, side by side:

    torchrun --nproc-per-node 2 benchmarks/ranks/speed.py --out benchmarks/ranks/results/speed.json

Rank 0 takes turns in one process: some steps alone on one thread, some alone on two threads (rank 1 waits, and
uses no processor), some together with rank 1, one thread each. So all three meet the same machine at the same time,
and their ratios are those of one round. Run it on two cores that have nothing else to do. It also measures what
the cost model of docs/scale.md needs: messages, noise, sampling, the optimizer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import saltflat as sf
from saltflat.bench.machine import facts
from saltflat.bench.workload import input_shape
from saltflat.data.source import Examples
from saltflat.mechanism.noise import noised
from saltflat.mechanism.randomness import Randomness
from saltflat.mechanism.sampling import draw
from saltflat.plan import Plan, Poisson
from saltflat.ranks.group import Group
from saltflat.training.follow import follow
from saltflat.training.lead import leading
from saltflat.training.prepare import prepare

# model, expected batch size, timed steps in a turn
WORKLOADS = (
    ("mlp", 1024, 10),
    ("cnn-selu", 256, 1),
    ("cnn-tanh", 512, 1),
    ("dpnas-fmnist", 64, 1),
)
WARM_UP = 1


def model_and_rows(name: str, batch: int) -> tuple[nn.Module, Examples, Plan]:
    """The model, random rows of its shape, and a plan with a tenth of them in a batch."""
    torch.manual_seed(0)
    rows = min(10 * batch, 4096)
    inputs = torch.rand(rows, *input_shape(name), generator=torch.Generator().manual_seed(1))
    data = Examples(inputs, torch.randint(0, 10, (rows,)), num_classes=10)
    return sf.models.build(name), data, Plan.from_dict(plan_of(rows, batch).to_dict())


def plan_of(rows: int, batch: int) -> Plan:
    return sf.plans.dp_sat(noise_multiplier=2.0, delta=1e-5, population=rows, batch_size=batch, steps=100_000)


def turn(loop: Any, steps: int) -> float:
    """Seconds a step, over some steps after a few that do not count."""
    started = 0.0
    for count, _ in enumerate(loop, 1):
        if count == WARM_UP:
            started = time.perf_counter()
        if count == WARM_UP + steps:
            break
    return (time.perf_counter() - started) / steps


def alone(name: str, batch: int, steps: int, threads: int) -> float:
    """One process. It has not joined the other rank: `prepare` looks at no process group."""
    torch.set_num_threads(threads)
    try:
        model, data, plan = model_and_rows(name, batch)
        return turn(prepare(model, data, plan, seed=1).loop, steps)
    finally:
        torch.set_num_threads(1)


def together(name: str, batch: int, steps: int) -> float | None:
    """All ranks; the time is that of rank 0."""
    model, data, plan = model_and_rows(name, batch)
    group = Group()
    if not group.leads:
        try:
            follow(group, model, data, plan, None, {})
        except sf.SaltflatError:
            return None  # rank 0 has seen enough
    with leading(group) as ranks:
        session = prepare(model, data, plan, None, ranks, seed=1)
        found = turn(session.loop, steps)
        ranks.stop(sf.SaltflatError("measured"))
        return found


def rounds(name: str, batch: int, steps: int, count: int) -> dict[str, Any]:
    """Turns of all three, in another order each round."""
    leads = dist.get_rank() == 0
    found: dict[str, list[float]] = {"one thread": [], "two threads": [], "two ranks": []}
    turns: list[tuple[str, Callable[[], float | None]]] = [
        ("one thread", lambda: alone(name, batch, steps, 1) if leads else None),
        ("two threads", lambda: alone(name, batch, steps, 2) if leads else None),
        ("two ranks", lambda: together(name, batch, steps)),
    ]
    for number in range(count):
        for kind, measured in turns[number % 3 :] + turns[: number % 3]:
            dist.barrier()
            seconds = measured()
            if seconds is not None:
                found[kind].append(seconds)
    if not leads:
        return {}
    model, _, _ = model_and_rows(name, batch)
    medians = {kind: statistics.median(values) for kind, values in found.items()}
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch_size": batch,
        "seconds_a_step": {kind: [round(v, 5) for v in values] for kind, values in found.items()},
        "rows_a_second": {kind: round(batch / value, 1) for kind, value in medians.items()},
        "two ranks over one thread": ratio(found["one thread"], found["two ranks"]),
        "two ranks over two threads": ratio(found["two threads"], found["two ranks"]),
    }


def ratio(slow: list[float], fast: list[float]) -> dict[str, float]:
    """How many times as fast: the median over rounds, with the smallest and the largest."""
    each = [a / b for a, b in zip(slow, fast, strict=True)]
    values = {"median": statistics.median(each), "least": min(each), "most": max(each)}
    return {key: round(value, 3) for key, value in values.items()}


def seconds(work: Callable[[], Any], least: float = 0.3) -> float:
    """Seconds a call: the best of three stretches of at least ``least`` seconds together."""
    work()
    best = float("inf")
    for _ in range(3):
        started, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - started < least / 3:
            work()
            count += 1
        best = min(best, (time.perf_counter() - started) / count)
    return best


def messages() -> list[dict[str, float]]:
    """What weights to all and a sum back take over the loopback, by the number of parameters."""
    group, found = Group(), []
    for parameters in (1_000, 100_000, 1_000_000, 10_000_000):
        vectors, repeats = {"w": torch.zeros(parameters)}, 20 if parameters < 5_000_000 else 6
        taken = []
        for _ in range(repeats):
            dist.barrier()
            started = time.perf_counter()
            group.shared(vectors, vectors if group.leads else None)
            group.summed(vectors)
            taken.append(time.perf_counter() - started)
        found.append({"parameters": parameters, "seconds": statistics.median(taken)})
    group.close()
    return found


def constants() -> dict[str, float]:
    """Nanoseconds a coordinate or a row of what rank 0 does by itself."""
    size = 1_000_000
    total = {"w": torch.zeros(size)}
    weights = nn.Parameter(torch.zeros(size))
    weights.grad = torch.ones(size)
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
    found = {"optimizer_ns": seconds(optimizer.step)}
    for tier in ("fast", "secure"):
        source = Randomness.fresh(tier=tier)
        plan = Poisson(size, size // 1000)
        found[f"noise_{tier}_ns"] = seconds(lambda s=source: noised(total, 1.0, 1.0, s.noise))
        found[f"sampling_{tier}_ns"] = seconds(lambda s=source, p=plan: draw(p, size, s.sampling))
    return {key: round(value / size * 1e9, 2) for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=[name for name, _, _ in WORKLOADS])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    leads = dist.get_rank() == 0
    found: dict[str, Any] = {
        "machine": facts() if leads else {},
        "what": "steps of dp-sat on random rows; rank 0 takes turns alone and together, in the same minutes",
        "messages": messages(),
        "constants": constants() if leads else {},
        "workloads": [],
    }

    def keep() -> None:
        if leads and arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    keep()
    for name, batch, steps in WORKLOADS:
        if name in arguments.models:
            found["workloads"].append(rounds(name, batch, steps, arguments.rounds))
            keep()  # what is measured stays, also if it is stopped
            if leads:
                print(json.dumps(found["workloads"][-1]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
