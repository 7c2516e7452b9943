"""A private training script as people write it for Opacus. `opacus.py` beside it runs it with one import changed."""

from __future__ import annotations

import argparse
import json
import time

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import saltflat as sf


def small_cnn() -> nn.Module:
    """The network of Opacus's MNIST example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", required=True, help="a file of tensors: rows to train on, and to test on")
    parser.add_argument("--model", choices=["small-cnn", "cnn-selu"], default="small-cnn")
    parser.add_argument("--grad-sample-mode", default="hooks")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    rows = torch.load(arguments.rows, weights_only=True)
    model = small_cnn() if arguments.model == "small-cnn" else sf.models.build(arguments.model)
    loader = DataLoader(TensorDataset(*rows["train"]), batch_size=arguments.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    engine = PrivacyEngine(accountant="rdp")
    made = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        criterion=criterion,
        data_loader=loader,
        target_epsilon=arguments.epsilon,
        target_delta=1e-5,
        epochs=arguments.epochs,
        max_grad_norm=1.0,
        grad_sample_mode=arguments.grad_sample_mode,
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if len(made) == 4 else criterion

    started, worked = time.perf_counter(), time.process_time()
    for _ in range(arguments.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
    seconds, worked = time.perf_counter() - started, time.process_time() - worked

    model.eval()
    with torch.no_grad():
        images, labels = rows["test"]
        accuracy = float((model(images).argmax(1) == labels).float().mean())
    found = {
        "accuracy": accuracy,
        "seconds": seconds,
        "processor_seconds": worked,  # what a busy machine does not blur
        "epsilon": engine.get_epsilon(1e-5),
        "noise_multiplier": optimizer.noise_multiplier,
        "steps": arguments.epochs * len(loader),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
