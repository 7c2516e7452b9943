"""A Flower network inside one process: messages are real, and so is the app that answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from saltflat.federated.flower import Job
from saltflat.federated.flower.client_app import client_app

Change = Callable[[int, Any], Any]
"""From a node's partition and its reply to what arrives instead; None for nothing."""


@contextmanager
def task_identity() -> Iterator[None]:
    """Messages ask for the identity of the process that Flower started them in."""
    from flwr.supercore.task_identity import TaskIdentity

    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


class InsideGrid:
    """What the engine needs of a grid. Node 100 + p has partition p; ``change`` tampers with replies to tasks."""

    def __init__(self, job: Job, nodes: int, change: Change | None = None) -> None:
        from flwr.app import Context, RecordDict

        self.app, self.change, self.gone = client_app(), change, set[int]()
        self.homes = {
            100 + part: Context(
                1, 100 + part, {"partition-id": part, "num-partitions": nodes}, RecordDict(), job.config()
            )
            for part in range(nodes)
        }
        self.replies: dict[str, list[Any]] = {}
        self.sent: list[Any] = []

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.homes if node not in self.gone]

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        for message in messages:
            name = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            context = self.homes[message.metadata.dst_node_id]
            reply = self.app(message, context)
            if self.change is not None and message.metadata.message_type == "train":
                reply = self.change(context.node_config["partition-id"], reply)
            self.replies[name] = [] if reply is None else [reply]
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        for name in message_ids:
            held = self.replies.get(name, [])
            if held and isinstance(held[0], Exception):
                raise held[0]
            yield from held


class Content:
    """A reply with some content, as far as the engine looks."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def has_content(self) -> bool:
        return True
