"""Clients as units: the same clip, noise and ledger as central training, on whole updates of clients."""

from saltflat.federated.clients import Clients, partition
from saltflat.federated.diagnostics import Diagnostics, read_diagnostics
from saltflat.federated.protocol import Answer, Engine, Task
from saltflat.federated.run import federate, prepare_rounds
from saltflat.federated.server import Server
from saltflat.federated.simulation import Simulation

__all__ = [
    "Answer",
    "Clients",
    "Diagnostics",
    "Engine",
    "Server",
    "Simulation",
    "Task",
    "federate",
    "partition",
    "prepare_rounds",
    "read_diagnostics",
]
