"""The `ClientApp`: what a node does with a message. Clients of one node are trained in its process, by turns.

A node that brings its own data (``data`` in its --node-config) holds one client: its ``partition-id``. Any other node
deals the rows of the run out as the server does, and holds its share of them: for trying things out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from saltflat.errors import InputError
from saltflat.federated.clients import Clients
from saltflat.federated.flower.job import Job, check_installed, is_installed
from saltflat.federated.flower.messages import pack_answers, read_task
from saltflat.federated.simulation import Simulation
from saltflat.training.losses import default_loss

OWN_WORDS = ("data", "data-dir", "label")


def home_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Partition and number of partitions of a node, from its configuration.

    >>> home_of({"partition-id": 1, "num-partitions": 4})
    (1, 4)
    """
    part, parts = config.get("partition-id"), config.get("num-partitions")
    if type(part) is not int or type(parts) is not int or not 0 <= part < parts:
        raise InputError(
            "node-config", f"partition-id={part} num-partitions={parts}", "0 <= partition-id < num-partitions",
            cure='Start the SuperNode with --node-config "partition-id=0 num-partitions=4".',
        )  # fmt: skip
    return part, parts


def workers(job: Job, config: Mapping[str, Any]) -> Simulation:
    """The clients that live on a node, ready to train."""
    part, parts = home_of(config)
    own = {word.replace("-", "_"): config[word] for word in OWN_WORDS if word in config}
    if "data" in own:
        kept = {word: value for word, value in job.words.items() if word not in ("group", "public_fraction")}
        data = Job(job.plan_text, job.spec, kept | own).data()
        rows = torch.arange(len(data.train))
        clients = Clients(
            data.train, tuple(rows if client == part else rows[:0] for client in range(parts)), "its own"
        )
    else:
        data = job.data()
        clients = job.clients(data)
    model = job.model()
    loss_fn = default_loss(data.train.fetch(torch.tensor([0]))[1])
    return Simulation(model, clients, loss_fn, together=job.words.get("together"))


def train(message: Any, context: Any) -> Any:
    """Answer a task for the clients of this node that it names. One that lives elsewhere is not answered for."""
    from flwr.app import Message

    job = Job.read(context.run_config)
    task, asked = read_task(message.content)
    if task.noise:
        raise InputError("noise", task.noise, "noise at the server", problem="is asked of a client")
    part, parts = home_of(context.node_config)
    seed = job.words.get("seed")
    if seed is None:
        torch.seed()  # every process would shuffle alike otherwise
    else:
        torch.manual_seed((seed * 1_000_003 + task.number * 1009 + part) % 2**62)
    here = workers(job, context.node_config)
    mine = [client for client in asked if client % parts == part and 0 <= client < len(here)]
    return Message(pack_answers(task.number, here.collect(task, mine)), reply_to=message)


def greet(message: Any, context: Any) -> Any:
    """Say which partition this node is."""
    from flwr.app import ConfigRecord, Message, RecordDict

    part, parts = home_of(context.node_config)
    told = ConfigRecord({"partition-id": part, "num-partitions": parts})
    return Message(RecordDict({"home": told}), reply_to=message)


def client_app() -> Any:
    """The `ClientApp`; `app` in this module is one."""
    check_installed()
    from flwr.clientapp import ClientApp

    made = ClientApp()
    made.train()(train)
    made.query()(greet)
    return made


app = client_app() if is_installed() else None
