"""The clipped gradient beside its alternatives: one process, interleaved, medians, ratios.

    python benchmarks/speed/engines.py cnn-selu --examples 256 --rounds 5 [--json]

The yardstick is an ordinary, unhooked, non-private torch step in the default memory format at the faster of
two physical batches. Peers that are not installed are listed as such.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import saltflat as sf

Step = Callable[[], Any]


def per_example_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, one number an example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def fresh(name: str) -> torch.nn.Module:
    """The same model with the same weights, every time."""
    torch.manual_seed(0)
    return sf.models.build(name)


def ordinary(name: str, x: Tensor, y: Tensor, physical: int, channels_last: bool) -> Step:
    """Plain torch: forward, backward, summed gradients."""
    model = fresh(name)
    if channels_last and x.dim() == 4:
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )

    def step() -> None:
        model.zero_grad(set_to_none=True)
        for rows, labels in zip(x.split(physical), y.split(physical)):
            per_example_loss(model(rows), labels).sum().backward()

    return step


def saltflat(name: str, x: Tensor, y: Tensor, clip_norm: float = 1.0) -> Step:
    """This library."""
    model = fresh(name)
    return lambda: sf.clipped_sum(model, per_example_loss, x, y, clip_norm)


def opacus_hooks(name: str, x: Tensor, y: Tensor, physical: int) -> Step:
    """Opacus's default mode: per-example gradients by hooks."""
    from opacus import GradSampleModule

    model = GradSampleModule(fresh(name))
    parameters = list(model.parameters())

    def step() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for rows, labels in zip(x.split(physical), y.split(physical)):
            model.zero_grad(set_to_none=True)
            per_example_loss(model(rows), labels).sum().backward()
            grads = [p.grad_sample for p in parameters]
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
            factors = (1.0 / norms).clamp(max=1.0)
            for sum_, g in zip(total, grads):
                sum_ += torch.einsum("i,i...->...", factors, g)
            for p in parameters:
                p.grad_sample = None

    return step


def opacus_ghost(name: str, x: Tensor, y: Tensor, physical: int) -> Step:
    """Opacus's ghost clipping: two backward passes."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        fresh(name), max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum"
    )

    def step() -> None:
        model.zero_grad(set_to_none=True)
        for rows, labels in zip(x.split(physical), y.split(physical)):
            model.enable_hooks()
            losses = per_example_loss(model(rows), labels)
            losses.sum().backward(retain_graph=True)
            factors = model.get_clipping_coef()
            model.disable_hooks()
            for p in model.parameters():
                p.grad = None
            (losses * factors).sum().backward()

    return step


def torch_func(name: str, x: Tensor, y: Tensor, physical: int) -> Step:
    """vmap(grad) over examples."""
    model = fresh(name)
    parameters = {key: p.detach() for key, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights: Any, row: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, (weights, buffers), (row[None],))
        return per_example_loss(outputs, label[None])[0]

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        for rows, labels in zip(x.split(physical), y.split(physical)):
            grads = per_example(parameters, rows, labels)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            factors = (1.0 / norms).clamp(max=1.0)
            for g in grads.values():
                torch.einsum("i,i...->...", factors, g)

    return step


def candidates(name: str, x: Tensor, y: Tensor) -> tuple[dict[str, Step], list[str]]:
    """Every engine that can run here, and those that cannot."""
    steps: dict[str, Step] = {"saltflat": saltflat(name, x, y)}
    for physical in (64, 256):
        steps[f"ordinary, batch {physical}"] = ordinary(name, x, y, physical, channels_last=False)
        steps[f"ordinary channels_last, batch {physical}"] = ordinary(
            name, x, y, physical, channels_last=True
        )
    missing = []
    try:
        steps["opacus hooks, batch 64"] = opacus_hooks(name, x, y, 64)
        steps["opacus ghost, batch 64"] = opacus_ghost(name, x, y, 64)
        steps["opacus ghost, batch 256"] = opacus_ghost(name, x, y, 256)
    except ImportError:
        missing.append("opacus: not installed")
    except NotImplementedError as error:
        missing.append(f"opacus: {error}")
    steps["torch.func, batch 64"] = torch_func(name, x, y, 64)
    return steps, missing


def measure(steps: dict[str, Step], rounds: int, missing: list[str]) -> dict[str, float]:
    """Median seconds of each, after one warm-up, the engines taking turns; a peer that fails is noted."""
    for key, step in list(steps.items()):
        try:
            step()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if key == "saltflat" or key.startswith("ordinary"):
                raise
            del steps[key]
            missing.append(f"{key}: fails on this model ({str(error).splitlines()[0]})")
    times: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            started = time.perf_counter()
            step()
            times[key].append(time.perf_counter() - started)
    return {key: statistics.median(values) for key, values in times.items()}


def compare(name: str, examples: int, rounds: int) -> dict[str, Any]:
    """Throughput of every engine on one model, relative to the ordinary step."""
    shape = sf.models.describe(name).input_shape
    torch.manual_seed(1)
    x, y = torch.rand(examples, *shape), torch.randint(0, 10, (examples,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps, missing = candidates(name, x, y)
        seconds = measure(steps, rounds, missing)
    yardstick = min(value for key, value in seconds.items() if key.startswith("ordinary,"))
    ratios = {key: yardstick / value for key, value in seconds.items()}
    return {"model": name, "examples": examples, "seconds": seconds, "throughput": ratios, "missing": missing}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    for model_name in chosen.models:
        result = compare(model_name, chosen.examples, chosen.rounds)
        if chosen.json:
            print(json.dumps(result))
            continue
        print(f"{model_name}, {chosen.examples} examples, {torch.get_num_threads()} threads")
        for key, ratio in sorted(result["throughput"].items(), key=lambda item: -item[1]):
            print(f"  {ratio:5.2f} x  {1000 * result['seconds'][key]:8.1f} ms  {key}")
        for line in result["missing"]:
            print(f"  {line}")
