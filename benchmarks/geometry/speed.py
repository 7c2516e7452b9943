"""How long sharpness and landscapes take: python benchmarks/geometry/speed.py [--data-dir FOLDER]

λ_max of ``dpnas-fmnist`` on 2,000 images of Fashion-MNIST, and a landscape of ``cnn-selu`` on 1,000 images of
CIFAR-10. Both networks are trained a little first, without privacy: curvature at random weights is not typical.
Prints one JSON object. Processor seconds are over all threads; on a machine with nothing else to do, two threads
need about half as many seconds by the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import saltflat as sf
from saltflat import geometry


def trained(name: str, rows: Any, steps: int) -> nn.Module:
    """A few steps of plain SGD on images of the training part."""
    torch.manual_seed(0)
    model = sf.models.build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        inputs, targets = rows.fetch(torch.arange(32 * step, 32 * step + 32))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def timed(task: Any) -> tuple[Any, dict[str, float]]:
    clock, processor = time.perf_counter(), time.process_time()
    found = task()
    spent = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    return found, {key: round(value, 1) for key, value in spent.items()}


def sharpness(data_dir: str | None, rows: int) -> dict[str, Any]:
    data = sf.data.load("fashion-mnist", data_dir=data_dir)
    loss = geometry.Loss(trained("dpnas-fmnist", data.train, 30), data.test, rows=rows)
    told: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        told[what] = done

    found, spent = timed(lambda: geometry.eigenvalues(loss, 1, progress=progress))
    value = {
        "lambda_max": float(found.values[0]),
        "error": float(found.errors[0]),
        "converged": found.converged,
    }
    return {"model": "dpnas-fmnist", "rows": rows, **value, "products": told, **spent}


def plane(data_dir: str | None, rows: int, points: int) -> dict[str, Any]:
    data = sf.data.load("cifar10", data_dir=data_dir)
    loss = geometry.Loss(trained("cnn-selu", data.train, 30), data.test, rows=rows)
    loss.measure()  # opens the lanes
    _, spent = timed(lambda: geometry.landscape(loss, points))
    return {"model": "cnn-selu", "rows": rows, "points": points, **spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--parts", default="sharpness,landscape")
    parser.add_argument("--points", type=int, default=21)
    options = parser.parse_args()
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    if "sharpness" in options.parts:
        found["sharpness"] = sharpness(options.data_dir, 2000)
    if "landscape" in options.parts:
        found["landscape"] = plane(options.data_dir, 1000, options.points)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
