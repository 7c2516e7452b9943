"""Clients a second: saltflat's simulation beside Flower's, on the same task.

    python benchmarks/federated/against_flower.py                       fed-cnn, 20 clients a round, 3 rounds
    python benchmarks/federated/against_flower.py --model mlp --clients 200

A client has a hundred made-up rows and trains one local epoch in batches of 32, by the same function on both sides, so
what differs is the engine around it. One round to warm up, then the best of the others. Both get one core: Flower's
engine (Ray) one actor of one CPU, torch one thread. Flower's engine needs Ray: pip install 'flwr[simulation]==1.41.0'.
Where it is missing the line says so. With --processes there is a third line, `--engine flower`: real processes, which
start anew for each message, with two nodes.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.util import find_spec
from typing import Any

import torch

from saltflat.data.source import Examples
from saltflat.federated import Clients, Simulation, Task
from saltflat.federated.aggregate import Form, sum_of_clipped
from saltflat.models import build, describe
from saltflat.plan import LocalTraining, NoAscent
from saltflat.training.losses import cross_entropy

ROWS = 100


def made_up(model: str, clients: int) -> Clients:
    """Rows of the shape that the model takes; what is in them does not change the time."""
    generator = torch.Generator().manual_seed(0)
    shape = describe(model).input_shape
    inputs = torch.randn(ROWS * clients, *shape, generator=generator)
    targets = torch.randint(0, 10, (ROWS * clients,), generator=generator)
    return Clients(Examples(inputs, targets), tuple(torch.arange(ROWS * clients).view(clients, ROWS)))


def task_of(model: torch.nn.Module) -> Task:
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return Task(1, weights, LocalTraining(epochs=1), NoAscent(), 0.1, 1.0)


def ours(name: str, clients: int, rounds: int) -> float:
    """Clients a second of `saltflat.federated.Simulation`, with the server's sum."""
    model = build(name)
    engine, task = Simulation(model, made_up(name, clients), cross_entropy), task_of(model)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        sum_of_clipped(engine.collect(task, range(clients)), range(clients), Form.of(task.weights), 1.0)
        times.append(time.perf_counter() - start)
    return clients / min(times[1:])


def flowers(name: str, clients: int, rounds: int) -> float | None:
    """Clients a second of Flower's simulation engine: one virtual node a client, one message each."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        return None
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from saltflat.federated.flower.messages import pack_answers, pack_task, read_answers, read_task

    times: list[float] = []
    held: dict[str, Any] = {}  # a Ray actor keeps it between messages, as an app would

    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        task, asked = read_task(message.content)
        if not held:
            held["engine"] = Simulation(build(name), made_up(name, clients), cross_entropy)
        return Message(pack_answers(task.number, held["engine"].collect(task, asked)), reply_to=message)

    def serve(grid: Any, context: Any) -> None:
        task = task_of(build(name))
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        for _ in range(rounds + 1):
            start = time.perf_counter()
            messages = [Message(pack_task(task, [i]), node, "train") for i, node in enumerate(nodes)]
            replies = grid.send_and_receive(messages)
            # which client a reply is from does not matter here; each has one record
            found = [
                a for r in replies if r.has_content() for a in read_answers(r.content, 1, range(clients))
            ]
            sum_of_clipped(found, range(clients), Form.of(task.weights), 1.0)
            assert len(found) == clients, f"{clients - len(found)} clients did not answer"
            times.append(time.perf_counter() - start)

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    run_simulation(
        server, client, clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}},
    )  # fmt: skip
    return clients / min(times[1:])


def processes(name: str, clients: int, rounds: int, nodes: int = 2) -> float | None:
    """Clients a second of `--engine flower`: digits over SuperNodes. Only small models, whose rows are digits."""
    if find_spec("flwr") is None or name != "mlp":
        return None
    from saltflat import plans
    from saltflat.federated.flower import Deployment, Job, write_project

    clients = min(clients, 1000)
    plan = plans.dp_fedavg(noise_multiplier=1.0, clients=clients, rate=1.0, rounds=rounds, local_epochs=1)
    spec = {"name": "mlp", "overrides": {"classes": 10, "in_features": 64}}
    with Deployment(nodes) as network:
        words = {
            "data": "digits", "clients": clients, "nodes": nodes, "seed": 0, "out": str(network.folder / "run"),
        }  # fmt: skip
        app = write_project(network.folder / "app", Job(plan.to_toml(), spec, words))
        start = time.perf_counter()
        network.submit(app).wait()
        taken = time.perf_counter() - start
        if not (network.folder / "run" / "certificate.json").exists():
            raise SystemExit(f"the run failed:\n{network.tail('run')}")
    return clients * rounds / taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="fed-cnn")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--processes", action="store_true", help="also --engine flower, with two nodes (mlp only)"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        "saltflat, simulation": ours(given.model, given.clients, given.rounds),
        "Flower, simulation (Ray)": flowers(given.model, given.clients, given.rounds),
    }
    if given.processes:
        found["saltflat on Flower, processes"] = processes(given.model, given.clients, given.rounds)
    if given.json:
        print(json.dumps({"model": given.model, "clients": given.clients, "clients_a_second": found}))
        return
    print(f"{given.model}, {given.clients} clients a round, {ROWS} rows each, one local epoch")
    for engine, rate in found.items():
        print(f"  {engine:<32}" + ("not measured here" if rate is None else f"{rate:8.1f} clients a second"))


if __name__ == "__main__":
    main()
