"""Rounds over a Flower network: a `ServerApp`, a `ClientApp`, and the processes of a deployment on this machine.

Flower carries messages and nothing else. Who is asked, the clip, the noise, the divisor and the ledger are those of
`saltflat.federated.server`; Flower's strategies, its weights by example count and its privacy wrappers are not used.
Without Flower these modules can be imported and say what to install when they are used.
"""

from saltflat.federated.flower.client_app import client_app
from saltflat.federated.flower.deployment import Deployment
from saltflat.federated.flower.engine import FlowerEngine
from saltflat.federated.flower.job import Job, write_project
from saltflat.federated.flower.server_app import server_app

__all__ = ["Deployment", "FlowerEngine", "Job", "client_app", "server_app", "write_project"]
