"""The `ServerApp`: `sf.federate` with a Flower grid in the place of the clients. Everything else is as ever:
run folder, ledger, certificate, resuming, account."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

from saltflat.errors import SaltflatError
from saltflat.federated.diagnostics import Diagnostics
from saltflat.federated.flower.engine import TIMEOUT, FlowerEngine
from saltflat.federated.flower.job import Job, check_installed, is_installed
from saltflat.federated.run import federate
from saltflat.record.account import Account
from saltflat.record.folder import RunFolder
from saltflat.training.keep import EVERY
from saltflat.training.losses import default_loss
from saltflat.training.run import Run, rebuilt


def rounds(job: Job, grid: Any) -> Run:
    """The whole run of a job over a grid."""
    words, data = job.words, job.data()
    population = words.get("population") or words.get("clients") or job.plan.sampling.population
    engine = FlowerEngine(
        grid, population,
        nodes=words.get("nodes"), timeout=words.get("timeout", TIMEOUT),
        loss_fn=default_loss(data.train.fetch(torch.tensor([0]))[1]),
    )  # fmt: skip
    engine.wait(max(engine.timeout, 60.0))
    resume, seed = words.get("resume"), words.get("seed")
    if resume is None and seed is not None:
        torch.manual_seed(seed)  # the initial weights are part of what a seed repeats
    model = job.model() if resume is None else rebuilt(RunFolder.open(resume, "resume"))
    account = words.get("account")
    fresh: dict[str, Any] = {"resume": resume}
    if resume is None:
        fresh = {
            "plan": job.plan, "out": words.get("out"), "seed": seed, "randomness": words.get("randomness"),
            "facts": job.facts or None,
        }  # fmt: skip
    return federate(
        model, engine,
        evaluate=data.test, public=data.public, device=words.get("device"), progress=False,
        checkpoint_every=float(words.get("checkpoint_every", EVERY)),
        account=None if account is None else Account.open(account, budgets=words.get("budgets")),
        diagnostics=Diagnostics() if words.get("diagnostics") else None,
        **fresh,
    )  # fmt: skip


def serve(grid: Any, context: Any) -> None:
    """Run the job of a context, and report how it ended where somebody waits for that."""
    job = Job.read(context.run_config)
    if job.report:
        _end_with_parent()
    try:
        run = rounds(job, grid)
    except SaltflatError as error:
        _report(job, {"error": str(error)})
        raise
    except Exception as error:
        _report(job, {"error": f"{type(error).__name__}: {error}", "unexpected": True})
        raise
    _report(job, {"done": str(run.folder), "epsilon": str(run.epsilon)})
    print(f"saltflat: done, ε = {run.epsilon:.4g} for each client; run folder {run.folder}")


def _end_with_parent() -> None:
    """End when the process that started this one does, at once: Flower's own way out waits for a network that is gone.

    A run can go on after any end, so nothing is lost.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _report(job: Job, found: dict[str, Any]) -> None:
    if job.report:
        whole = Path(job.report)
        part = whole.with_suffix(".part")
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(whole)


def server_app() -> Any:
    """The `ServerApp`; `app` in this module is one."""
    check_installed()
    from flwr.serverapp import ServerApp

    made = ServerApp()
    made.main()(serve)
    return made


app = server_app() if is_installed() else None
