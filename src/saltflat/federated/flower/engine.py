"""The engine that asks clients over a Flower network. It sends, waits and hands over; it decides nothing.

Clients live on nodes: client c on the node whose ``partition-id`` is c modulo ``num-partitions``. With as many nodes
as clients that is one client a node. A node is asked once where it lives, by a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError, SaltflatError, check_count, check_positive
from saltflat.federated.flower.job import check_installed
from saltflat.federated.flower.messages import pack_task, read_answers
from saltflat.federated.protocol import Answer, Task

TIMEOUT = 600.0
PAUSE = 0.1
REPLY_BYTES = 256 * 2**20

log = logging.getLogger(__name__)


class FlowerEngine:
    """Clients behind a Flower grid, for `sf.federate` inside a `ServerApp`.

    ``timeout`` seconds after the tasks of a round went out, what is missing stays missing: a zero, which changes
    neither the divisor nor the noise. A reply that comes later is never read. A node can answer for the clients
    that it was asked about, and only once.

    Guarantees: none of its own. Those of `saltflat.federated.server` hold whatever a node sends.
    """

    def __init__(
        self,
        grid: Any,
        clients: int,
        *,
        nodes: int | None = None,
        timeout: float = TIMEOUT,
        loss_fn: LossFunction | None = None,
    ) -> None:
        check_installed()
        check_count("clients", clients)
        check_positive("timeout", timeout)
        self.grid, self.clients, self.timeout, self.loss_fn = grid, clients, float(timeout), loss_fn
        self.nodes = clients if nodes is None else nodes
        check_count("nodes", self.nodes)
        if self.nodes > clients:
            raise InputError("nodes", self.nodes, f"at most one node a client, nodes <= {clients}")
        self._homes: dict[int, int] = {}  # from a partition to its node
        self._greeted: dict[int, str] = {}  # from a node to the query that waits for its reply
        self._known: set[int] = set()

    def __len__(self) -> int:
        return self.clients

    def wait(self, timeout: float = 120.0) -> None:
        """Wait until every partition has a node."""
        until = time.monotonic() + timeout
        while len(self.homes()) < self.nodes:
            if time.monotonic() > until:
                raise SaltflatError(
                    f"{len(self._homes)} of {self.nodes} nodes are there after {timeout:g} s.\n"
                    '  Each SuperNode needs --node-config "partition-id=... num-partitions=..." '
                    f"with num-partitions={self.nodes}, and saltflat installed."
                )
            time.sleep(PAUSE)

    def homes(self) -> dict[int, int]:
        """Which node each partition is on, of nodes that are connected. New nodes are asked where they live."""
        from flwr.app import ConfigRecord, Message, RecordDict

        here = set(self.grid.get_node_ids())
        self._homes = {part: node for part, node in self._homes.items() if node in here}
        for node in here - self._known:
            self._known.add(node)
            hello = Message(RecordDict({"hello": ConfigRecord({"saltflat": 1})}), node, "query")
            for sent in self._push([hello]):
                self._greeted[node] = sent
        for node, sent in list(self._greeted.items()):
            for reply in self._pull(sent):
                del self._greeted[node]
                part = _partition(reply, self.nodes)
                if part is not None and node in here:
                    self._homes.setdefault(part, node)  # the first that says so, as long as it is there
                break
        return dict(self._homes)

    def collect(self, task: Task, cohort: Sequence[int]) -> Iterator[Answer]:
        """Send the task to the nodes of these clients, and hand out answers as they come."""
        from flwr.app import Message

        if task.noise:
            raise InputError(
                "survivors", "given", "noise at the server",
                problem="needs secure aggregation, and there is none on this network",
                cure="Leave survivors out.",
            )  # fmt: skip
        homes = self.homes()
        waiting: dict[str, list[int]] = {}
        for part, node in homes.items():
            here = [int(client) for client in cohort if client % self.nodes == part]
            for some in _portions(here, task):
                message = Message(
                    pack_task(task, some), node, "train", ttl=self.timeout, group_id=str(task.number)
                )
                for sent in self._push([message]):
                    waiting[sent] = some
        until = time.monotonic() + self.timeout
        while waiting and time.monotonic() < until:
            before = len(waiting)
            for sent in list(waiting):
                for reply in self._pull(sent):
                    asked = waiting.pop(sent)
                    if reply is not None and reply.has_content():
                        yield from read_answers(reply.content, task.number, asked)
                    break
            if len(waiting) == before:
                time.sleep(PAUSE)

    def _push(self, messages: list[Any]) -> list[str]:
        """The ids of the messages that the network took."""
        return [sent for sent in self.grid.push_messages(messages) if sent]

    def _pull(self, sent: str) -> list[Any]:
        """The reply to a message, if it is there: a list of none or one; [None] for one that cannot be read.

        An error of the connection is the server's own and is raised. Everything else comes from a node.
        """
        import httpx

        try:
            return list(self.grid.pull_messages([sent]))[:1]
        except httpx.TransportError:
            raise
        except Exception as error:
            log.warning("a reply could not be read (%s)", type(error).__name__)
            return [None]


def _partition(reply: Any, nodes: int) -> int | None:
    """Where a node says that it lives; None if it says nothing of use."""
    try:
        told = reply.content["home"]
        part = told["partition-id"]
        return part if told["num-partitions"] == nodes and type(part) is int and 0 <= part < nodes else None
    except Exception:  # whatever a node has put there instead
        return None


def _portions(clients: list[int], task: Task) -> Iterator[list[int]]:
    """Clients in groups whose answers together stay below a size that a connection and the memory can take."""
    size = sum(weight.numel() * weight.element_size() for weight in task.weights.values())
    count = max(1, REPLY_BYTES // max(size, 1))
    for first in range(0, len(clients), count):
        yield clients[first : first + count]
