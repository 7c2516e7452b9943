"""From options to a finished run over clients: what `federate` does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from saltflat import plans
from saltflat.cli.plan_settings import CLIPPINGS, refuse_other_settings
from saltflat.cli.run_data import facts_of
from saltflat.cli.run_options import said
from saltflat.cli.training_run import (
    account_for,
    checkpoint_seconds,
    facts_for,
    going_on_with,
    model_for,
    seed_weights,
    summary_of,
)
from saltflat.data import DataSet
from saltflat.errors import InputError, PrivacyWarning
from saltflat.federated import Clients, Diagnostics, federate, read_diagnostics
from saltflat.federated.clients import clients_for, load_rows
from saltflat.plan import Plan
from saltflat.record.folder import RunFolder
from saltflat.training.resume import finished_run
from saltflat.training.run import Run, rebuilt

PLAN_WORDS = (
    "epsilon", "delta", "noise_multiplier", "rate", "rounds", "clip_norm", "optimizer", "learning_rate",
    "momentum", "local_epochs", "local_batch_size", "local_learning_rate", "local_momentum",
    "local_weight_decay", "local_decay", "penalty", "radius", "survivors",
)  # fmt: skip
METHOD_WORDS = ("rho", "ratio", "explore", "switch", "noise_ratio")
SPLIT_WORDS = ("clients", "partition", "alpha", "partition_seed")
STARTED_WITH = (
    *PLAN_WORDS, *METHOD_WORDS, *SPLIT_WORDS, "clipping", "method", "data", "label", "group", "model", "seed",
    "classes", "image_size", "randomness", "account", "public_fraction", "diagnostics", "engine",
)  # fmt: skip
MAY_CHANGE = ("data_dir", "device", "budgets", "together", "nodes", "timeout")


def plan_for_clients(options: dict[str, Any], clients: Clients, classes_declared: bool = True) -> Plan:
    """The plan that the options describe."""
    given, own = said(options, PLAN_WORDS), said(options, METHOD_WORDS)
    accepted = inspect.signature(
        plans.FEDERATED.get(options["method"].split("+")[0], plans.dp_fedavg)
    ).parameters
    more = {"ratio"} if "+lus" in options["method"] else set()
    refuse_other_settings(options["method"], own, {*accepted, *more})
    given |= own
    given["clients"] = len(clients) if options.get("clients") is None else options["clients"]
    if options.get("clients") is None and (options.get("group") or options.get("partition") == "column"):
        given["relation"] = "zero-out"  # their number was read from the data
    if not classes_declared:
        given["relation"] = "zero-out"
    if "epsilon" not in given and "noise_multiplier" not in given:
        given["epsilon"] = 8.0
    if options.get("public_fraction") is not None:
        if "public" not in accepted:
            raise InputError(
                "public_fraction", options["public_fraction"], "a method whose mask can be made from public rows",
                problem=f"is not used by {options['method']}", cure="Such are dp-fedsam-topk and fed-smp-topk.",
            )  # fmt: skip
        given["public"] = True
    if options.get("clipping"):
        cohort = given.get("rate", 0.1) * given["clients"]
        given["clipping"] = CLIPPINGS[options["clipping"]](max(cohort, 10))
    with warnings.catch_warnings(action="default", category=PrivacyWarning):
        return plans.federated_by_name(options["method"], **given)


def check_engine(options: dict[str, Any]) -> None:
    """Refuse what the engine has not; before anything is loaded."""
    if options.get("engine") == "flower":
        from saltflat.federated.flower.job import check_installed

        check_installed()
        if options.get("survivors") is not None:
            raise InputError(
                "survivors", options["survivors"], "noise at the server with --engine flower",
                problem="needs secure aggregation, and there is none on this network",
                cure="Leave --survivors out, or use --engine simulation.",
            )  # fmt: skip
        return
    for word in ("nodes", "timeout", "app"):
        if options.get(word) is not None:
            raise InputError(
                word, options[word], "a setting of --engine flower", problem="is not one of the simulation"
            )


@dataclass(frozen=True, eq=False)
class Described:
    """What options come to, before anything is asked of a client."""

    data: DataSet
    clients: Clients
    model: nn.Module
    plan: Plan
    facts: dict[str, Any]


def described(options: dict[str, Any], announce: Callable[[str], None] | None = None) -> Described:
    """Load, deal out, build and plan."""
    data = load_rows(options)
    clients = clients_for(data, options)
    if options.get("picture"):
        from saltflat.federated.picture import draw_partition

        draw_partition(
            clients, data.classes, options["picture"], title=f"Class mix of the clients: {data.name}"
        )
        if announce is not None:
            announce(f"wrote {options['picture']}")
    seed_weights(options)
    model, name = model_for(data, _model_name(data, options.get("model")))
    plan = plan_for_clients(options, clients, data.classes_declared)
    facts = facts_for(options, data, name, (*STARTED_WITH, *MAY_CHANGE))
    return Described(data, clients, model, plan, facts)


def federate_once(
    options: dict[str, Any],
    *,
    out: str | None,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Load, deal out, build, plan, federate; returns the run and its summary for JSON."""
    check_engine(options)
    about = described(options, announce)
    if announce is not None:
        announce(about.plan.table())
    if options.get("engine") == "flower":
        from saltflat.cli.flower_run import run_on_flower

        run = run_on_flower(
            about.model, about.clients, about.plan, options, facts=about.facts, out=out, progress=progress
        )
    else:
        run = _simulated(
            about.model, about.clients, about.plan, about.data, options,
            out=out, seed=options.get("seed"), randomness=options.get("randomness"), progress=progress,
            checkpoint_every=checkpoint_seconds(options), facts=about.facts,
        )  # fmt: skip
    return run, federated_summary(run, about.facts, options)


def _simulated(
    model: nn.Module, clients: Clients, plan: Plan, data: DataSet, options: dict[str, Any], **settings: Any
) -> Run:
    """The rounds in this process, with what a new run and one that goes on are both told."""
    return federate(
        model, clients, plan,
        evaluate=data.test, public=data.public, device=options.get("device"), account=account_for(options),
        together=options.get("together"), diagnostics=Diagnostics() if options.get("diagnostics") else None,
        **settings,
    )  # fmt: skip


def resume_rounds(
    folder: str,
    given: dict[str, Any],
    *,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Go on with a run that the command line started. ``given`` may say only what it was started with."""
    opened = RunFolder.open(folder, "resume")
    plan = opened.read_plan()
    if plan.federation is None:
        raise InputError(
            "resume", folder, "a run over clients", problem="holds a run over rows",
            cure="Go on with it by: saltflat train --resume.",
        )  # fmt: skip
    facts = facts_of(opened)
    options = going_on_with(facts, folder, given, STARTED_WITH, MAY_CHANGE)
    check_engine({word: value for word, value in options.items() if word != "app"})
    model = rebuilt(opened)
    run = finished_run(folder, model)
    if run is not None:
        if announce is not None:
            announce(f"The run in {folder} is finished; there is nothing left to do.")
        return run, federated_summary(run, facts, options)
    if options.get("app"):  # its clients are elsewhere, and the rows here are none of theirs
        raise InputError(
            "resume", folder, "a run that was started on this machine", problem="is one of a Flower deployment",
            cure=f"Go on with it there: flwr run {options['app']} NAME --run-config \"resume='{folder}'\".",
        )  # fmt: skip
    data = load_rows(options)
    if announce is not None:
        announce(f"{plan.table()}\ngoing on with the run in {folder}")
    clients = clients_for(data, options)
    if options.get("engine") == "flower":
        from saltflat.cli.flower_run import run_on_flower

        asked = options | {"checkpoint_every": given.get("checkpoint_every")}
        run = run_on_flower(model, clients, plan, asked, resume=folder, progress=progress)
    else:
        run = _simulated(
            model, clients, plan, data, options,
            resume=folder, progress=progress, checkpoint_every=checkpoint_seconds(given),
        )  # fmt: skip
    return run, federated_summary(run, facts, options)


def federated_summary(run: Run, facts: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a run over clients came to, for JSON."""
    plan = run.plan
    assert plan.federation is not None
    summary = summary_of(run, facts["data"], facts["model"])
    summary["rounds"] = summary.pop("steps")
    summary |= {
        "clients": plan.sampling.population,
        "rate": plan.sampling.rate,
        "partition": options.get("partition") or ("column" if options.get("group") else "iid"),
        "engine": options.get("engine") or "simulation",
        "noise_multipliers": [phase.sigma for phase in plan.phases],
        "noise": plan.federation.placement.kind,
        "released": str(plan.federation.mask),
    }
    if options.get("diagnostics") and run.folder is not None:
        rows = read_diagnostics(run.folder)
        norms = [row["mean_norm"] for row in rows if row.get("mean_norm") is not None]
        end = next((row for row in rows if "train_test_gap" in row), {})
        summary["diagnostics"] = {
            "label": "not covered by ε",
            "mean_update_norm": sum(norms) / len(norms) if norms else None,
            "alpha": next((row["alpha"] for row in reversed(rows) if row.get("alpha") is not None), None),
            "train_accuracy": end.get("train_accuracy"),
            "train_test_gap": end.get("train_test_gap"),
        }
    return summary


def _model_name(data: DataSet, name: str | None) -> str | None:
    """The paper's small network for images, unless told otherwise."""
    shape = tuple(data.train.inputs.shape[1:])
    return "fed-cnn" if name is None and len(shape) == 3 and shape[-1] >= 16 else name
