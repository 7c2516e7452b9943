"""A rank that does not lead: it computes its part of clipped sums, as it is told, and keeps nothing.

It has no noise, no sampler, no ledger and no files. In the end it has the same result as the leader.
"""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saltflat
from saltflat.data.source import Source, as_source
from saltflat.engine.frame import Frame
from saltflat.errors import LostRankError, PrivacyWarning, SaltflatError
from saltflat.mechanism.exact import Grid
from saltflat.mechanism.randomness import seed_torch
from saltflat.plan import Plan
from saltflat.ranks.group import Group, own_part, shard
from saltflat.ranks.stopping import ending_in_order
from saltflat.record.certificate import Certificate
from saltflat.training.evaluate import tally
from saltflat.training.lead import PROCESSOR, gathered
from saltflat.training.run import Run
from saltflat.training.sums import Sums
from saltflat.training.task import END, MEASURE, SCALE, SHIFT, START, STOP, SUM, Task, seed_of_rank


def follow(
    group: Group, model: nn.Module, data: Any, plan: Plan | None, test: Any, settings: Mapping[str, Any]
) -> Run:
    """Take part in the run that the leader of the group keeps; returns its result, the same on every rank."""
    try:
        # the leader says it
        with ending_in_order(), warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            opening = json.loads(group.text())
            _refuse(opening)
            if opening["plan"] is None:
                return Follower(group, model, None).served()
            follower = _agreed(group, model, data, plan, Plan.from_dict(opening["plan"]), test, settings)
            return follower.served()
    finally:
        group.close()


def _agreed(
    group: Group,
    model: nn.Module,
    data: Any,
    given: Plan | None,
    plan: Plan,
    test: Any,
    settings: Mapping[str, Any],
) -> Follower:
    """Check what this rank brought, and hear what the others say of theirs."""
    from saltflat.training.prepare import own_sums

    own: Exception | None = None
    told: dict[str, Any] = {}
    try:
        sums = own_sums(model, data, plan, test, settings, shard_of=(group.rank, group.size))
        told = {"facts": facts_of(sums, test)}
        if given is not None and given != plan:
            told = {"error": "its plan is another than that of rank 0"}
    except Exception as error:
        own, told = error, {"error": str(error) if isinstance(error, SaltflatError) else type(error).__name__}
    said = [json.loads(text) for text in group.texts(json.dumps(told))]
    if own is not None and said[0].get("error") != told["error"]:
        raise own
    for each in said:
        _refuse(each)
    return Follower(group, model, sums, None if test is None else as_source(test))


def facts_of(sums: Sums, test: Any) -> dict[str, Any]:
    """What must be the same on all ranks, for the leader to compare. It is compared in memory, and not kept."""
    form = hashlib.sha256()
    for name, value in sums.model.state_dict().items():
        form.update(f"{name} {value.dtype} {tuple(value.shape)} {name in sums.weights};".encode())
    assert sums.source is not None
    loss = sums.loss_fn
    return {
        "saltflat": saltflat.__version__,
        "torch": torch.__version__,
        "model": f"{len(sums.weights)} weights, {form.hexdigest()[:8]}",
        "data": f"{len(sums.source)} rows",
        "evaluate": None if test is None else f"{len(as_source(test))} rows",
        "loss_fn": str(getattr(loss, "__qualname__", type(loss).__qualname__)),
        PROCESSOR: processor_of(sums.device),
    }


def processor_of(device: torch.device) -> str:
    """What decides the last bits of a gradient, beside the version of torch."""
    here = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return f"{here} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else here


def _refuse(said: Mapping[str, Any]) -> None:
    if "error" in said:
        raise LostRankError(f"Another rank stopped: {said['error']}")


class Follower:
    """Serves one task after the other until the leader ends the run."""

    def __init__(self, group: Group, model: nn.Module, sums: Sums | None, test: Source | None = None) -> None:
        self.group, self.model, self.sums, self.test = group, model, sums, test

    def served(self) -> Run:
        """Do what the leader asks for, to the end."""
        while True:
            task = Task.read(self.group.broadcast(Task.blank()))
            if task.kind == START:
                self._start(task)
            elif task.kind == SUM:
                self._sum(task)
            elif task.kind == MEASURE:
                self._measure()
            elif task.kind == END:
                return self._result()
            elif task.kind == STOP:
                _refuse(json.loads(self.group.text()))
            else:
                raise LostRankError(f"Rank 0 asked for {task.kind}, which this version does not know.")

    def _start(self, task: Task) -> None:
        state = self.model.state_dict()
        self.model.load_state_dict(self.group.shared(state, None))
        if task.seed is None:  # what a model draws by itself is not the same on two ranks, and not known
            seed_torch(None)

    def _take_weights(self) -> Mapping[str, Tensor]:
        assert self.sums is not None
        weights = self.sums.weights
        with torch.no_grad():
            for name, value in self.group.shared(weights, None).items():
                weights[name].copy_(value)
        return weights

    def _sum(self, task: Task) -> None:
        assert self.sums is not None
        group, sums = self.group, self.sums
        assert sums.source is not None
        batch = group.broadcast(torch.zeros(task.units, dtype=torch.long))
        weights = self._take_weights()
        views = [group.shared(weights, None) for _ in range(task.views)]
        parts = {kind: group.shared(weights, None) for kind in (SHIFT, SCALE) if task.frame & kind}
        frame = Frame(parts.get(SHIFT), parts.get(SCALE)) if parts else None
        grid = Grid.for_clip_norm(task.clip_norm) if task.on_grid else None
        if task.seed is not None:
            torch.manual_seed(seed_of_rank(task.seed, group.rank, task.number))
        own = own_part(batch, len(sums.source), group.rank, group.size)
        gathered(group, *sums.over(own, task.clip_norm, grid, views or None, frame))

    def _measure(self) -> None:
        assert self.sums is not None
        assert self.test is not None
        self._take_weights()
        own = shard(len(self.test), self.group.rank, self.group.size)
        rows = torch.arange(own.start, own.stop)
        self.group.add_up(tally(self.model, self.test, rows, self.sums.device, self.sums.loss_fn))

    def _result(self) -> Run:
        told = json.loads(self.group.text())
        state = self.model.state_dict()
        self.model.load_state_dict(self.group.shared(state, None))
        average = None
        if told["average"] is not None:
            parameters = dict(self.model.named_parameters())
            average = self.group.shared({name: parameters[name].detach() for name in told["average"]}, None)
        return Run(
            Plan.from_dict(told["plan"]),
            self.model,
            Certificate(told["certificate"]),
            told["history"],
            average,
            told["rules"],
            None if told["folder"] is None else Path(told["folder"]),
            told["seconds"],
        )
