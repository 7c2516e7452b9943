"""A run over clients on a Flower network: the processes around it, and what came of it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saltflat.data.people import Rows
from saltflat.errors import InputError, SaltflatError, check_count, check_positive
from saltflat.federated import Clients
from saltflat.federated.checks import check_model, rehearse
from saltflat.federated.flower import Deployment, Job, write_project
from saltflat.federated.flower.job import PATHS, WORDS, check_installed
from saltflat.plan import Plan
from saltflat.record.folder import RunFolder
from saltflat.training.losses import default_loss
from saltflat.training.progress import NotedBar
from saltflat.training.resume import finished_run
from saltflat.training.run import Run, rebuilt

NODES = 4
PAUSE = 0.1
RELEASE = re.compile(rb'"kind": ?"release"')


def run_on_flower(
    model: nn.Module,
    clients: Clients,
    plan: Plan,
    options: dict[str, Any],
    *,
    facts: dict[str, Any] | None = None,
    out: str | None = None,
    resume: str | None = None,
    progress: bool | None = None,
) -> Run:
    """Start a SuperLink and SuperNodes, run the job there, stop them, and read the run from its folder."""
    job = job_for(model, clients, plan, options, facts or {})
    folder = out if resume is None else resume
    assert folder is not None
    if resume is None and (Path(folder) / "plan.json").exists():
        raise InputError(
            "out", folder, "a folder without a run in it", problem="already holds a run",
            cure="Choose another name; go on with that run by --resume; or remove that folder.",
        )  # fmt: skip
    paths = {"out": _whole(out), "resume": _whole(resume)}
    with Deployment(job.words["nodes"]) as network:
        report = network.folder / "report.json"
        told = Job(job.plan_text, job.spec, job.words | paths, job.facts, str(report))
        process = network.submit(write_project(network.folder / "app", told))
        ledger = Path(folder) / "ledger.jsonl"  # of the server, which writes down each round
        with NotedBar(plan.method, plan.steps, sys.stderr.isatty() if progress is None else progress) as bar:
            while not report.exists():
                network.check()
                if process.poll() is not None and not report.exists():
                    raise SaltflatError(f"The Flower run ended before it began.\n{network.tail('run')}")
                if bar.shown and ledger.exists():
                    bar.update(completed=len(RELEASE.findall(ledger.read_bytes())))
                time.sleep(PAUSE)
        _check_report(json.loads(report.read_text(encoding="utf-8")), network)
    run = finished_run(folder, rebuilt(RunFolder.open(folder, "resume")))
    assert run is not None, "the server said that the run is done"
    return run


def job_for(
    model: nn.Module, clients: Clients, plan: Plan, options: dict[str, Any], facts: dict[str, Any]
) -> Job:
    """The job of these options. What can be wrong with the model shows here, before any process starts."""
    check_installed()
    nodes = min(NODES, len(clients)) if options.get("nodes") is None else options["nodes"]
    check_count("nodes", nodes)
    if nodes > len(clients):
        raise InputError("nodes", nodes, f"at most one node a client, nodes <= {len(clients)}")
    if options.get("timeout") is not None:
        check_positive("timeout", options["timeout"])
    if options.get("together") is not None:
        check_count("together", options["together"])
    check_model(model)
    inputs, targets = clients.source.fetch(torch.tensor([0, 0]))
    words = {word: options.get(word) for word in WORDS} | {"nodes": nodes, "population": len(clients)}
    words |= {word: _whole(words[word]) for word in PATHS if words[word] is not None}
    if Path(str(words["data"])).exists():
        words["data"] = _whole(words["data"])  # the processes of a network start somewhere else
    if not rehearse(model, Rows(inputs, targets), default_loss(targets)):
        words["together"] = 1
    spec = getattr(model, "saltflat_spec", None)
    assert spec is not None, "the command line builds models by their names"
    return Job(plan.to_toml(), spec, words, facts)


def write_app(options: dict[str, Any], announce: Callable[[str], None] | None = None) -> Path:
    """The Flower app of these options in a folder, for a deployment that somebody else runs."""
    from saltflat.cli.federated_run import check_engine, described

    if options.get("engine") != "flower":
        raise InputError("app", options["app"], "--engine flower beside it", problem="is a setting of Flower")
    check_engine(options)
    about = described(options)
    if announce is not None:
        announce(about.plan.table())
    nodes = len(about.clients) if options.get("nodes") is None else options["nodes"]
    job = job_for(about.model, about.clients, about.plan, options | {"nodes": nodes}, about.facts)
    out = options["out"] or f"runs/{Path(options['app']).name}"
    words = job.words | {"out": out, "data": options["data"], "data_dir": options.get("data_dir")}
    facts = about.facts | {"options": about.facts["options"] | {"app": str(options["app"])}}
    return write_project(options["app"], Job(job.plan_text, job.spec, words, facts))


def _check_report(found: dict[str, Any], network: Deployment) -> None:
    if "error" not in found:
        return
    if found.get("unexpected"):
        raise SaltflatError(f"The Flower run stopped: {found['error']}\n{network.tail('run')}")
    raise SaltflatError(found["error"])


def _whole(path: Any) -> str | None:
    """A path that means the same from any folder."""
    if path is None:
        return None
    try:
        return str(Path(path).expanduser().resolve())
    except (OSError, ValueError, RuntimeError):  # no path at all: whoever opens it says so
        return str(path)
