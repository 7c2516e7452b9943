"""From options to a finished run over clients: what `federate` does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch

from saltflat import plans
from saltflat.cli.training_run import account_for, facts_of, model_for, summary_of
from saltflat.data import DataSet, load
from saltflat.errors import InputError, PrivacyWarning
from saltflat.federated import Clients, Diagnostics, federate, partition, read_diagnostics
from saltflat.plan import AutomaticClipping, Clipping, FlatClipping, Plan, QuantileClipping
from saltflat.record.folder import RunFolder
from saltflat.training.keep import EVERY
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
    "randomness", "account", "public_fraction", "diagnostics", "engine",
)  # fmt: skip
MAY_CHANGE = ("data_dir", "device", "budgets", "together")

CLIPPINGS: dict[str, Callable[[float], Clipping]] = {
    "flat": lambda cohort: FlatClipping(),
    "automatic": lambda cohort: AutomaticClipping(),
    "quantile": lambda cohort: QuantileClipping(count_noise=max(cohort / 20, 0.5)),
}


def load_rows(options: dict[str, Any]) -> DataSet:
    """The data set, with public rows set aside if the options ask for them."""
    return load(
        options["data"],
        data_dir=options.get("data_dir"),
        label=options.get("label"),
        group=options.get("group"),
        public_fraction=options.get("public_fraction"),
    )


def clients_for(data: DataSet, options: dict[str, Any]) -> Clients:
    """The rows dealt out as the options say."""
    by = options.get("partition") or ("column" if options.get("group") else "iid")
    seed = options.get("partition_seed")
    if by == "column":
        return partition(data.train, None, by=by)
    clients = options.get("clients")
    return partition(
        data.train, plans.DEFAULT_CLIENTS if clients is None else clients,
        by=by, alpha=0.6 if options.get("alpha") is None else options["alpha"], seed=0 if seed is None else seed,
    )  # fmt: skip


def plan_for_clients(options: dict[str, Any], clients: Clients) -> Plan:
    """The plan that the options describe."""
    given = {word: options[word] for word in PLAN_WORDS if options.get(word) is not None}
    accepted = inspect.signature(
        plans.FEDERATED.get(options["method"].split("+")[0], plans.dp_fedavg)
    ).parameters
    own = {word: options[word] for word in METHOD_WORDS if options.get(word) is not None}
    for word, value in own.items():
        if word not in accepted and not (word == "ratio" and "+lus" in options["method"]):
            raise InputError(
                word, value, f"a setting of {options['method']}", problem="is not one",
                cure=f"Leave --{word.replace('_', '-')} out, or choose a method that has it.",
            )  # fmt: skip
    given |= own
    given["clients"] = len(clients) if options.get("clients") is None else options["clients"]
    if options.get("clients") is None and (options.get("group") or options.get("partition") == "column"):
        given["relation"] = "zero-out"  # their number was read from the data
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
        given["clipping"] = CLIPPINGS[options["clipping"]](given.get("rate", 0.1) * given["clients"])
    with warnings.catch_warnings():
        warnings.simplefilter("default", PrivacyWarning)
        return plans.federated_by_name(options["method"], **given)


def federate_once(
    options: dict[str, Any],
    *,
    out: str | None,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Load, deal out, build, plan, federate; returns the run and its summary for JSON."""
    data = load_rows(options)
    clients = clients_for(data, options)
    if options.get("picture"):
        from saltflat.federated.picture import draw_partition

        draw_partition(
            clients, data.classes, options["picture"], title=f"Class mix of the clients: {data.name}"
        )
        if announce is not None:
            announce(f"wrote {options['picture']}")
    if options.get("seed") is not None and 0 <= options["seed"] < 2**62:
        torch.manual_seed(options["seed"])  # the initial weights are part of what a seed repeats
    model, name = model_for(data, _model_name(data, options.get("model")))
    plan = plan_for_clients(options, clients)
    if announce is not None:
        announce(plan.table())
    started = {
        word: value for word, value in options.items()
        if value is not None and word in (*STARTED_WITH, *MAY_CHANGE)
    }  # fmt: skip
    facts = {"data": data.name, "model": name, "options": started | {"model": name}}
    diagnostics = Diagnostics() if options.get("diagnostics") else None
    run = federate(
        model, clients, plan,
        evaluate=data.test, public=data.public, out=out, seed=options.get("seed"), device=options.get("device"),
        randomness=options.get("randomness"), progress=progress, checkpoint_every=_every(options),
        account=account_for(options), together=options.get("together"), diagnostics=diagnostics, facts=facts,
    )  # fmt: skip
    return run, federated_summary(run, data.name, name, options)


def resume_rounds(
    folder: str,
    given: dict[str, Any],
    *,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Go on with a run that the command line started. ``given`` may say only what it was started with."""
    opened = RunFolder.open(folder, "resume")
    if opened.read_plan().federation is None:
        raise InputError(
            "resume", folder, "a run over clients", problem="holds a run over rows",
            cure="Go on with it by: saltflat train --resume.",
        )  # fmt: skip
    facts = facts_of(opened)
    options = facts["options"]
    for word, value in given.items():
        if word in STARTED_WITH and options.get(word) != value:
            raise InputError(
                word, value, f"{options.get(word, 'nothing')}, as the run was started",
                problem=f"differs from the run in {folder}",
                cure=f"Leave --{word.replace('_', '-')} out, or start a new run.",
            )  # fmt: skip
    options |= {word: given[word] for word in MAY_CHANGE if given.get(word) is not None}
    model = rebuilt(opened)
    run = finished_run(folder, model)
    if run is not None:
        if announce is not None:
            announce(f"The run in {folder} is finished; there is nothing left to do.")
        return run, federated_summary(run, facts["data"], facts["model"], options)
    data = load_rows(options)
    if announce is not None:
        announce(f"{opened.read_plan().table()}\ngoing on with the run in {folder}")
    diagnostics = Diagnostics() if options.get("diagnostics") else None
    run = federate(
        model, clients_for(data, options),
        evaluate=data.test, public=data.public, resume=folder, device=options.get("device"), progress=progress,
        checkpoint_every=_every(given), account=account_for(options), together=options.get("together"),
        diagnostics=diagnostics,
    )  # fmt: skip
    return run, federated_summary(run, facts["data"], facts["model"], options)


def federated_summary(run: Run, data: str, model: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a run over clients came to, for JSON."""
    plan = run.plan
    assert plan.federation is not None
    summary = summary_of(run, data, model)
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


def _every(options: dict[str, Any]) -> float:
    every = options.get("checkpoint_every")
    return EVERY if every is None else float(every)
