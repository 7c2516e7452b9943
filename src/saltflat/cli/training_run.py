"""From options to a finished run: what `train`, `compare` and `quickstart` all do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from saltflat.cli.faults import all_faults, names_of
from saltflat.cli.plan_settings import METHOD_WORDS, PLAN_WORDS, plan_for
from saltflat.cli.public_options import PUBLIC_WORDS, public_parts, with_usual_split
from saltflat.cli.ranks import device_here, from_rank_0, leave_to_rank_0, rank_here, same_on_all_ranks
from saltflat.cli.run_data import MAY_CHANGE, facts_of, load_data, told_of
from saltflat.cli.run_options import said
from saltflat.data import DataSet
from saltflat.data.catalogue import known
from saltflat.errors import InputError
from saltflat.models import describe
from saltflat.models.registry import build_for
from saltflat.plan import Plan
from saltflat.recipes import Recipe, best
from saltflat.recipes.stored import to_dict
from saltflat.record.account import Account
from saltflat.record.folder import RunFolder
from saltflat.record.selected import TUNING
from saltflat.training.fit import fit
from saltflat.training.keep import EVERY
from saltflat.training.prepare import layer_rules
from saltflat.training.resume import finished_run
from saltflat.training.run import Run, rebuilt, rebuilt_as

if TYPE_CHECKING:
    from saltflat.public import Scenario

STARTED_WITH = (
    *PLAN_WORDS, *METHOD_WORDS, "clipping", "views", "augmentations", "method", "data", "label", "group", "classes",
    "image_size", "test_fraction", "model", "schedule", "seed", "randomness", "account", "recipe", *PUBLIC_WORDS,
)  # fmt: skip


def train_once(
    options: dict[str, Any],
    *,
    out: str | None,
    data: DataSet | None = None,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Load, build, plan, fit; returns the run and its summary for JSON."""
    if data is None:
        options = with_usual_split(options, announce)
    with same_on_all_ranks(), all_faults(options):
        data = load_data(options) if data is None else data
        seed_weights(options)
        recipe = recipe_of(options)
        model, name = model_for(data, options.get("model")) if recipe is None else recipe.named_model()
        plan = plan_for(data, options | {"model": name}, model)
    if announce is not None:
        announce(told_of(data, options) + plan.table(layer_rules(model, data.train)))
    run, scenario = _fitted(
        model, data, plan, options, announce,
        out=out, seed=options.get("seed"), randomness=options.get("randomness"), progress=progress,
        checkpoint_every=checkpoint_seconds(options), facts=facts_for(options, data, name),
    )  # fmt: skip
    return run, summary_of(run, data.name, name) | ({} if scenario is None else {"scenario": scenario})


def seed_weights(options: dict[str, Any]) -> None:
    """Let the initial weights follow from the seed, if there is one: they are part of what it repeats."""
    if options.get("seed") is not None and 0 <= options["seed"] < 2**62:
        torch.manual_seed(options["seed"])


def _fitted(
    model: nn.Module,
    data: DataSet,
    plan: Plan,
    options: dict[str, Any],
    announce: Callable[[str], None] | None,
    **settings: Any,
) -> tuple[Run, str | None]:
    """The run, and the scenario if the options name public data; with what a new run and a resumed one share."""
    recipe = recipe_of(options)
    settings |= {
        "evaluate": data.test, "device": device_here(options.get("device")), "schedule": options.get("schedule"),
        "account": account_for(options), "loss_fn": None if recipe is None else recipe.loss_fn,
    }  # fmt: skip
    parts = public_parts(options, data, plan.needs_public)
    if parts is None:
        return fit(model, data.train, plan, **settings), None
    from saltflat.public import train

    run = train(
        model, data.train, plan,
        scenario=cast("Scenario", parts.scenario), public=parts.public, synthetic=parts.synthetic,
        settings=parts.settings, announce=announce, **settings,
    )  # fmt: skip
    return run, parts.scenario


def resume_once(
    folder: str,
    given: dict[str, Any],
    *,
    data: DataSet | None = None,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Go on with a run that the command line started. ``given`` may say only what it was started with."""

    def read() -> dict[str, Any]:
        _refuse_tuning(RunFolder(folder))
        opened = RunFolder.open(folder, "resume")
        facts = facts_of(opened)
        options = going_on_with(facts, folder, given, STARTED_WITH, MAY_CHANGE)
        rebuilt(opened)  # or say why it cannot be
        return {
            "facts": facts,
            "options": options,
            "model": opened.read_json("model.json"),
            "plan": opened.read_plan().to_dict(),
            "finished": finished_run(folder, None) is not None,
        }

    told = from_rank_0(read)  # other machines need not see the folder
    facts, options = told["facts"], told["options"]
    if told["finished"]:
        leave_to_rank_0()
        run = finished_run(folder, None)
        assert run is not None
        if announce is not None:
            announce(f"The run in {folder} is finished; there is nothing left to do.")
        return run, summary_of(run, facts["data"], facts["model"])
    model, plan = rebuilt_as(told["model"]), Plan.from_dict(told["plan"])
    with same_on_all_ranks():
        data = load_data(options | {"features": facts.get("features")}) if data is None else data
    if announce is not None:
        announce(f"{plan.table()}\ngoing on with the run in {folder}")
    run, _ = _fitted(
        model, data, plan, options, None,
        resume=folder, progress=progress, checkpoint_every=checkpoint_seconds(given),
    )  # fmt: skip
    return run, summary_of(run, facts["data"], facts["model"])


def going_on_with(
    facts: dict[str, Any],
    folder: str,
    given: dict[str, Any],
    started_with: Iterable[str],
    may_change: Iterable[str],
) -> dict[str, Any]:
    """The options a run was started with, with those that may change as they are ``given`` now."""
    options: dict[str, Any] = facts["options"]
    for word, value in given.items():
        if word in started_with and options.get(word) != value:
            raise InputError(
                word, value, f"{options.get(word, 'nothing')}, as the run was started",
                problem=f"differs from the run in {folder}",
                cure=f"Leave --{word.replace('_', '-')} out, or start a new run.",
            )  # fmt: skip
    return options | said(given, may_change)


def _refuse_tuning(folder: RunFolder) -> None:
    """A tuning that was cut off goes on nowhere: what its trials found must not be seen, and is not kept."""
    if not folder.file(TUNING).exists():
        return
    certificate = folder.read_certificate()
    if certificate is None or not certificate.is_finished:
        raise InputError(
            "resume", str(folder.path), "a run of train", problem="is a tuning, which cannot go on",
            cure="Its trials are kept secret, also from this disk, and its budget counts as spent. "
            "Start another one with: saltflat tune --out NAME",
        )  # fmt: skip


def facts_for(
    options: dict[str, Any], data: DataSet, model: str, words: Iterable[str] = (*STARTED_WITH, *MAY_CHANGE)
) -> dict[str, Any]:
    """What the command line stores in ``run.json``, and reads again when it goes on."""
    facts = {"data": data.name, "model": model, "options": said(options, words) | {"model": model}}
    if known(str(options["data"])) is None:  # so that other rows are read as these were
        facts |= {"classes": list(data.classes)} | ({"columns": list(data.columns)} if data.columns else {})
    recipe = recipe_of(options)
    return facts if recipe is None else facts | {"features": to_dict(recipe.features)}


def account_for(options: dict[str, Any]) -> Account | None:
    """The account that the options name, if they name one."""
    if rank_here():
        return None  # rank 0 reserves, for all of them
    name, fingerprint = options.get("account"), options.get("fingerprint")
    if name is None:
        if fingerprint is not None:
            raise InputError(
                "fingerprint", fingerprint, "an account to compare it with", cure="Name one with --account."
            )
        return None
    return Account.open(name, budgets=options.get("budgets"), fingerprint=fingerprint)


def recipe_of(options: dict[str, Any]) -> Recipe | None:
    """The recipe that a run is made by, if one was asked for."""
    if not options.get("recipe"):
        return None
    with names_of("data"):
        return best(options["data"], epsilon=options["epsilon"], delta=options["delta"])


def checkpoint_seconds(options: dict[str, Any]) -> float:
    every = options.get("checkpoint_every")
    return EVERY if every is None else float(every)


def model_for(data: DataSet, name: str | None) -> tuple[nn.Module, str]:
    """The named model, or a small one that fits the data, shaped to its classes and inputs."""
    shape = tuple(data.train.inputs.shape[1:])
    if name is None:
        images = "cnn-tanh" if shape[-1] == 32 else "dpnas-mnist"
        name = "mlp" if len(shape) == 1 or shape[-1] < 16 else images
    with names_of("model"):
        describe(name)
    try:
        return build_for(name, shape, data.num_classes), name
    except InputError as error:
        raise InputError(
            "model", name, f"a model for inputs of shape {shape}", problem=f"does not fit this data: {error}",
            cure="See: saltflat models",
        ) from error  # fmt: skip


def summary_of(run: Run, data_name: str, model_name: str) -> dict[str, Any]:
    """What a run came to, for JSON."""
    last = run.history[-1] if run.history else {}
    return {
        "accuracy": last.get("accuracy"),
        "average_accuracy": last.get("average_accuracy"),
        "loss": last.get("loss"),
        "evaluation": last.get("evaluation"),
        "epsilon": "inf" if math.isinf(run.epsilon) else run.epsilon,
        "delta": run.plan.budget.delta,
        "private": run.certificate.is_private,
        "method": run.plan.method,
        "data": data_name,
        "model": model_name,
        "steps": run.plan.steps,
        "relation": run.plan.budget.relation,
        "unit": run.plan.budget.unit,
        "randomness": run.certificate.data["randomness"],
        "out": None if run.folder is None else str(run.folder),
        "seconds": round(run.seconds, 2),
    }
