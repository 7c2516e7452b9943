"""The time of a step of each method against a step of DP-SGD, paired and interleaved.

python benchmarks/speed/methods.py --batch-size 2048 --rounds 7
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import torch

import saltflat as sf
from saltflat.record.ledger import Ledger
from saltflat.training.build import build_mechanism
from saltflat.training.losses import cross_entropy
from saltflat.training.step import Loop, build_optimizer

METHODS = ("dp-sgd", "dp-sat", "sai", "dp-sgd+ema", "dp-sgd+swa", "dp-sam")


def loop_for(method: str, model_name: str, batch_size: int) -> Loop:
    """A training loop on random images, its first steps done."""
    plan = sf.plans.by_name(
        method, noise_multiplier=1.0, population=batch_size, batch_size=batch_size, steps=1000
    )
    if method.endswith("swa"):
        plan = sf.plans.by_name(
            "dp-sgd", noise_multiplier=1.0, population=batch_size, batch_size=batch_size, steps=1000,
            averaging=sf.plans.Swa(start=0.0),
        )  # fmt: skip
    torch.manual_seed(0)
    model = sf.models.build(model_name)
    shape = sf.models.describe(model_name).input_shape
    data = sf.data.Examples(torch.rand(batch_size, *shape), torch.randint(0, 10, (batch_size,)))
    mechanism = build_mechanism(plan, data, Ledger(), torch.device("cpu"), None)
    loop = Loop(model, data, plan, mechanism, cross_entropy, build_optimizer(plan, model, None))
    for number in (1, 2):
        loop.private_step(number, plan.phase_at(0))
    return loop


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="cnn-selu")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    loops = {method: loop_for(method, chosen.model, chosen.batch_size) for method in METHODS}
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for round_number in range(chosen.rounds):
        for method, loop in loops.items():
            started = time.perf_counter()
            loop.private_step(3 + round_number, loop.plan.phase_at(0))
            times[method].append(time.perf_counter() - started)
    for method, values in times.items():
        ratios = sorted(value / base for value, base in zip(values, times["dp-sgd"]))
        print(
            f"{method:12} {statistics.median(values):7.3f} s a step, {statistics.median(ratios):.3f} times DP-SGD"
            f" (paired, {ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
