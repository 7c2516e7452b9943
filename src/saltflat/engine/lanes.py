"""Lanes: several micro-batches side by side, a thread each, instead of many threads in every operation.

Torch splits each operation over its threads and joins them again, some hundred times a micro-batch, and the
small products of per-unit gradients gain little from it. Here each thread takes whole micro-batches, with
operations that stay on it. Which lane computes which micro-batch is fixed, so results do not depend on which
thread is faster.

A model may keep something on itself during a pass, which two passes at once would share. So every lane but the
first has a copy of the model, with the same parameters; and should rows of one lane still reach another (through
a global variable, say), the tape sees it (`SharedRowsError`) and the sum is computed again in one lane.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

S = TypeVar("S")
T = TypeVar("T")


class SharedRowsError(Exception):
    """A lane met rows of another one: the model shares state between its passes."""


def lane_count(parameters: Sequence[nn.Parameter]) -> int:
    """How many lanes this thread may open now: as many as torch would use threads, on a CPU."""
    here = all(p.device.type == "cpu" for p in parameters)
    # Settings of this thread alone would not reach the lanes.
    special = (
        torch.is_autocast_enabled("cpu")
        or _get_current_function_mode_stack()
        or _get_current_dispatch_mode_stack()
        or torch.is_anomaly_enabled()
    )
    return torch.get_num_threads() if here and not special else 1


def copies(model: nn.Module, count: int, own_weights: bool = False) -> list[nn.Module] | None:
    """The model and ``count - 1`` copies on the same tensors; None if it cannot be copied.

    With ``own_weights`` each copy has trainable weights of its own, with the same values.
    """
    kept = _kept(model)
    if own_weights:
        moved = {id(p) for p in model.parameters() if p.requires_grad}
        kept = [value for value in kept if id(value) not in moved]
    try:
        others = [copy.deepcopy(model, {id(value): value for value in kept}) for _ in range(count - 1)]
    except Exception:  # whatever a model's own way of being copied may raise: one lane is always right
        return None
    return [model, *others]


def _kept(model: nn.Module) -> list[Any]:
    """What all copies share: parameters, buffers, and other tensors that a module holds."""
    kept: list[Any] = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        kept += [value for value in vars(module).values() if isinstance(value, Tensor)]
    return kept


def _keep_to_this_thread() -> None:
    torch.get_num_threads()  # torch sets up a new thread at its first question, and would undo the next line
    torch.set_num_threads(1)


def _opened(size: int) -> ThreadPoolExecutor:
    """Threads that live on, each with operations that stay on it."""
    before = torch.get_num_threads()
    threads = ThreadPoolExecutor(size, "saltflat-lane", initializer=_keep_to_this_thread)
    ready = threading.Barrier(size)
    for future in [threads.submit(ready.wait) for _ in range(size)]:
        future.result()
    torch.set_num_threads(before)  # the threads told torch of theirs, which new threads would take over
    return threads


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_opening = threading.Lock()


def run(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run the tasks at the same time, a thread each, and return their results in order.

    If one fails, its error is raised when all have ended.
    """
    key = os.getpid(), len(tasks)  # threads do not survive a fork
    with _opening:
        if key not in _pools:
            _pools[key] = _opened(len(tasks))
    futures = [_pools[key].submit(task) for task in tasks]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def dealt(work: Callable[[int, Sequence[S]], list[T]], items: Sequence[S], many: int) -> list[T]:
    """What ``work(lane, items of the lane)`` gives for the items that are dealt out to the lanes, in their order."""
    if many == 1:
        return work(0, items)
    done = run([partial(work, lane, items[lane::many]) for lane in range(many)])
    return [done[i % many][i // many] for i in range(len(items))]
