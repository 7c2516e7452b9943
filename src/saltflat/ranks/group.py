"""The ranks of one run, over `torch.distributed`: numbers and texts that go from the leader to all, or back.

Small messages always go over gloo, which notices at once when the process at the other end is gone. Vectors as
long as the model go over NCCL where all ranks compute on GPUs, else over gloo as well. The connections are the
group's own: closing it ends them, so that the others notice, and leaves the caller's process group as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from saltflat.errors import InputError, LostRankError
from saltflat.ranks.vectors import as_bytes, flat_sums, from_bytes, from_flat_sums

LEADER = 0
PATIENCE = 600.0
"""Seconds to wait for a rank that is there and says nothing. One that was killed is noticed at once."""


def patience() -> timedelta:
    """How long to wait for a silent rank: ``SALTFLAT_RANK_TIMEOUT`` in seconds, or ten minutes.

    >>> patience() > timedelta(0)
    True
    """
    said = os.environ.get("SALTFLAT_RANK_TIMEOUT")
    try:
        seconds = PATIENCE if said is None else float(said)
        if not 0 < seconds < 1e9:
            raise ValueError
    except ValueError:
        raise InputError("SALTFLAT_RANK_TIMEOUT", said, "a number of seconds above 0") from None
    return timedelta(seconds=seconds)


def several() -> bool:
    """Whether this process is one of several ranks of an initialised process group.

    >>> several()
    False
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class Group:
    """All ranks of a process group. Every method is called by all of them, in the same order.

    Raises `LostRankError` as soon as another rank is gone. What travels is as private as the rows are, and is
    not encrypted: the network between ranks is on the private side.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.lost = False
        self._small: Any = None
        self._large: Any = None
        with self._noticing():
            self._small = dist.new_group(backend="gloo", timeout=patience())
            kinds = self.texts(device)
            if set(kinds) == {"cuda"} and dist.is_nccl_available():
                self._large = dist.new_group(backend="nccl", timeout=patience())

    @property
    def leads(self) -> bool:
        """Whether this is the rank that keeps everything: ledger, noise, optimizer, files."""
        return self.rank == LEADER

    def close(self) -> None:
        """End the connections: ranks that still wait for this one notice at once. May be called again."""
        for held in (self._large, self._small):
            if held is not None and dist.is_initialized():
                try:
                    dist.destroy_process_group(held)
                except (RuntimeError, ValueError, AssertionError):
                    continue  # it went with the ranks that were lost
        self._large = self._small = None

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The leader's numbers on every rank, in place."""
        return self._sent(tensor, lambda held, way: dist.broadcast(held, LEADER, group=way))

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place, at the leader; what the others hold afterwards means nothing."""
        return self._sent(tensor, lambda held, way: dist.reduce(held, LEADER, group=way))

    def add_up_for_all(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place, on every rank: the same bits on all of them."""
        return self._sent(tensor, lambda held, way: dist.all_reduce(held, group=way))

    def numbers(self, own: Sequence[float]) -> list[list[float]]:
        """As many numbers as every rank has to say, rank by rank."""
        held = torch.tensor(list(own), dtype=torch.float64)
        found = [torch.zeros_like(held) for _ in range(self.size)]
        with self._noticing():
            dist.all_gather(found, held, group=self._small)
        return [each.tolist() for each in found]

    def text(self, said: str | None = None) -> str:
        """What the leader says."""
        content = (said or "").encode()
        length = self.broadcast(torch.tensor([len(content)]))
        held = torch.zeros(int(length), dtype=torch.uint8)
        if self.leads and content:
            held = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return bytes(self.broadcast(held).tolist()).decode() if len(held) else ""

    def texts(self, said: str) -> list[str]:
        """What every rank says, in their order."""
        content = said.encode()
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        with self._noticing():
            dist.all_gather(lengths, torch.tensor([len(content)]), group=self._small)
            longest = max(1, int(torch.cat(lengths).max()))
            own = torch.zeros(longest, dtype=torch.uint8)
            own[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[
                : len(content)
            ]
            held = [torch.zeros_like(own) for _ in range(self.size)]
            dist.all_gather(held, own, group=self._small)
        return [
            bytes(each[: int(length)].tolist()).decode() for each, length in zip(held, lengths, strict=True)
        ]

    def shared(self, form: Mapping[str, Tensor], vectors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The leader's vectors, bit for bit, on every rank: names, shapes and types are those of ``form``."""
        if not self.leads:
            return from_bytes(self.broadcast(as_bytes(form)), form)
        assert vectors is not None
        self.broadcast(as_bytes({name: vectors[name] for name in form}))
        return dict(vectors)

    def summed(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum of all ranks' vectors, at the leader. Integers are added exactly, in any order."""
        parts = {kind: self.add_up(part) for kind, part in flat_sums(vectors).items()}
        return from_flat_sums(parts, vectors)

    def _sent(self, tensor: Tensor, send: Callable[[Tensor, Any], Any]) -> Tensor:
        """The tensor after a message about it, in place; nothing is sent about nothing."""
        if not tensor.numel():
            return tensor
        large = tensor.is_cuda and self._large is not None
        held, way = (tensor, self._large) if large else (tensor.cpu(), self._small)
        with self._noticing():
            send(held, way)
        return tensor if held is tensor else tensor.copy_(held)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        if self.lost:
            raise LostRankError("Another rank was lost.")
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises, whatever happened
            self.lost = True
            raise LostRankError(
                "Another rank was lost: its process ended, or it was silent for longer than "
                f"{patience().total_seconds():g} seconds (SALTFLAT_RANK_TIMEOUT)."
            ) from error


def shard(units: int, rank: int, size: int) -> range:
    """The units of one rank: a contiguous range, so that a rank needs to read one stretch of a file only.

    Guarantees: over all ranks, every unit is in exactly one shard; lengths differ by at most one.

    >>> [list(shard(7, rank, 3)) for rank in range(3)]
    [[0, 1], [2, 3], [4, 5, 6]]
    """
    return range(units * rank // size, units * (rank + 1) // size)


def own_part(batch: Tensor, units: int, rank: int, size: int) -> Tensor:
    """Those units of a batch that lie in the shard of one rank, in the order of the batch.

    >>> import torch
    >>> [own_part(torch.tensor([0, 3, 4, 6]), 7, rank, 3).tolist() for rank in range(3)]
    [[0], [3], [4, 6]]
    """
    own = shard(units, rank, size)
    return batch[(batch >= own.start) & (batch < own.stop)]
