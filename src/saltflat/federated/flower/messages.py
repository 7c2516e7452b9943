"""Tasks and answers as Flower's records, and back. What comes from a node is read as if it were hostile.

A message to a node holds the task and the numbers of the clients it is for; the reply holds one record of arrays for
each client. `Task` and `Answer` are those of `saltflat.federated.protocol`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from saltflat.errors import InputError
from saltflat.federated.protocol import Answer, Task

FORMAT = 1
TYPES = ("float32", "float64", "uint8")


def pack_task(task: Task, clients: Collection[int]) -> Any:
    """A `RecordDict` with the task, for these clients of one node."""
    from flwr.app import ConfigRecord, RecordDict

    facts = ConfigRecord({**task.facts(), "clients": [int(client) for client in clients]})
    return RecordDict({"task": facts, "arrays": _record(task.arrays())})


def read_task(content: Any) -> tuple[Task, list[int]]:
    """The task in a message, and the clients it is for."""
    try:
        facts = dict(content["task"])
        clients = [int(client) for client in facts.pop("clients")]
        arrays = {name: tensor_of(array) for name, array in content["arrays"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "message", type(error).__name__, "a task that a saltflat server sent", problem=f"failed: {error}"
        ) from error
    return Task.read(arrays, facts), clients


def pack_answers(number: int, answers: Iterable[Answer]) -> Any:
    """A `RecordDict` with the updates of some clients in a round."""
    from flwr.app import ConfigRecord, RecordDict

    about = ConfigRecord({"saltflat_answer": FORMAT, "number": number})
    return RecordDict({"about": about} | {_key(one.client): _record(one.update) for one in answers})


def read_answers(content: Any, number: int, asked: Collection[int]) -> Iterator[Answer]:
    """The answers in a reply, of the clients that were asked in this message and of no others.

    Nothing that a node sends makes this raise. A reply to another round holds no answers. What cannot be read is an
    answer without an update, which the server's sum takes for a zero.
    """
    try:
        if content["about"]["number"] != number:
            return
    except Exception:  # whatever a node has put there instead
        return
    for client in asked:
        try:
            record = content[_key(client)]
        except Exception:
            continue
        yield Answer(client, _update(record))


def tensor_of(array: Any) -> Tensor:
    """A Flower array as a tensor. Raises ValueError unless it is exactly what its header promises.

    numpy would first reserve the memory that a header asks for; here the size is compared with what was sent.
    """
    held = array.data
    if array.stype != "numpy.ndarray" or not isinstance(held, bytes):
        raise ValueError("not a numpy array")
    stream = BytesIO(held)
    if npy.read_magic(stream) != (1, 0):
        raise ValueError("not of npy format 1.0")
    shape, by_columns, dtype = npy.read_array_header_1_0(stream)
    rest = held[stream.tell() :]
    if by_columns or dtype.name not in TYPES or not dtype.isnative:
        raise ValueError(f"of type {dtype}")
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError("of another size than its header says")
    return torch.from_numpy(np.frombuffer(rest, dtype).reshape(shape).copy())


def _update(record: Any) -> dict[str, Tensor] | None:
    try:
        return {str(name): tensor_of(array) for name, array in record.items()}
    except Exception:  # a broken answer is a zero, never an error
        return None


def _record(tensors: Mapping[str, Tensor]) -> Any:
    from flwr.app import Array, ArrayRecord

    # ascontiguousarray alone would turn a number without sides into a vector of one
    plain = {name: np.array(t.detach().cpu().numpy(), order="C") for name, t in tensors.items()}
    return ArrayRecord({name: Array(array) for name, array in plain.items()})


def _key(client: int) -> str:
    return f"client-{client}"
