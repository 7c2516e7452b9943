"""From options to a finished run: what `train`, `compare` and `quickstart` all do."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from saltflat.cli.faults import all_faults, names_of
from saltflat.cli.plan_settings import METHOD_WORDS, PLAN_WORDS, plan_for
from saltflat.cli.public_options import PUBLIC_WORDS, public_parts, with_usual_split
from saltflat.cli.ranks import device_here, from_rank_0, leave_to_rank_0, rank_here, same_on_all_ranks
from saltflat.cli.run_options import said
from saltflat.data import DataSet, load
from saltflat.data.catalogue import known
from saltflat.data.files import cache_dir
from saltflat.data.shared_rows import joined, separated
from saltflat.data.tables import classes_of
from saltflat.errors import InputError
from saltflat.models import describe, scattering_features
from saltflat.models.registry import build_for
from saltflat.plan import Plan
from saltflat.recipes import Recipe, best, features_for
from saltflat.recipes.stored import from_dict, to_dict
from saltflat.record.account import Account
from saltflat.record.canonical import DamagedError
from saltflat.record.folder import RunFolder
from saltflat.record.selected import TUNING
from saltflat.training.fit import fit
from saltflat.training.keep import EVERY
from saltflat.training.prepare import layer_rules
from saltflat.training.progress import NotedBar
from saltflat.training.resume import finished_run
from saltflat.training.run import Run, rebuilt, rebuilt_as

if TYPE_CHECKING:
    from saltflat.public import Scenario

STARTED_WITH = (
    *PLAN_WORDS, *METHOD_WORDS, "clipping", "views", "augmentations", "method", "data", "label", "group", "classes",
    "image_size", "test_fraction", "model", "schedule", "seed", "randomness", "account", "recipe", *PUBLIC_WORDS,
)  # fmt: skip
MAY_CHANGE = ("data_dir", "device", "budgets")
_TEXTS = (
    "data", "label", "group", "classes", "model", "schedule", "account", "recipe", "public", "synthetic",
    *MAY_CHANGE,
)  # fmt: skip


def load_data(options: dict[str, Any]) -> DataSet:
    """The data set, with features in place of images where the recipe or the model takes those."""
    check_test_fraction(options)
    with names_of("data"):
        data = load(
            options["data"], data_dir=options.get("data_dir"), label=options.get("label"),
            group=options.get("group"), image_size=options.get("image_size"),
            classes=classes_of(options.get("classes")), columns=options.get("columns"),
            test_fraction=options.get("test_fraction"),
            public_fraction=options.get("public_fraction"), seed=options.get("public_seed") or 0,
        )  # fmt: skip
    if data.public is not None:  # before the plan, whose population is what is left
        data = replace(data, train=separated(data.train, data.public))
    if options.get("features") is not None:
        features: Callable[..., Any] = from_dict(options["features"])
    elif options.get("recipe"):
        features = features_for(options.get("recipe_for") or options["data"])
    elif str(options.get("model") or "").startswith("scatter-") and data.train.inputs.shape[-1] >= 16:
        features = scattering_features
    else:
        return data
    # features tell of the images they are made of: those of a user's own images are written nowhere
    cache = cache_dir() / "scattering" if known(str(options["data"])) else None

    with NotedBar("features", None, shown=sys.stderr.isatty() and not options.get("quiet")) as bar:

        def told(done: int, total: int) -> None:
            bar.update(completed=done, total=total)

        def featured(rows: Any) -> Any:
            return None if rows is None else replace(rows, inputs=features(rows.inputs, cache, progress=told))

        parts = {name: featured(getattr(data, name)) for name in ("train", "test", "public")}
    return replace(data, **parts)


def told_of(data: DataSet, options: dict[str, Any]) -> str:
    """What was made of a table, or of classes that nobody declared: nothing, where all that is public knowledge."""
    if data.classes_declared and not data.columns:
        return ""
    names = ", ".join(data.classes[:8]) + (", ..." if len(data.classes) > 8 else "")
    line = f"classes: {data.num_classes} ({names})"
    if not data.classes_declared:
        line += ", read from the data"
        if options.get("population") is not None:
            line += ": zero-out is certified; --classes would declare them"
    if len(data.classes) > 50 and data.columns:
        line += "\nso many classes: is the label a number to predict? sf.PrivateRegressor does that"
    if data.columns:
        line += "\nfeatures: " + ", ".join(data.columns[:12]) + (", ..." if len(data.columns) > 12 else "")
    return line + "\n"


def check_test_fraction(options: dict[str, Any]) -> None:
    """Refuse a test part beside a secret number of rows: one row more would change who else is held out."""
    fraction = options.get("test_fraction")
    if fraction is not None and options.get("population") is not None:
        raise InputError(
            "test_fraction", fraction, "no --population beside it",
            problem="makes a split that depends on the number of rows, which --population keeps secret",
            cure="Leave --population out, or split off the test rows yourself and leave --test-fraction out.",
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


def data_of_run(folder: RunFolder, options: dict[str, Any], words: Iterable[str]) -> DataSet:
    """The data that the options name by ``words``, or else the data that the run was started with."""
    try:
        facts = facts_of(folder)
    except InputError:  # it was started from Python
        facts = {"options": {}}
    stored: dict[str, Any] = facts["options"]
    chosen = {word: options[word] for word in words}
    if options["data"] is None:
        if "data" not in stored:
            raise InputError(
                "data", None, "--data, because the run was started from Python", problem="is missing",
                cure="Name the rows as for saltflat train. If the model is one of your own, only Python can load it: "
                "sf.Run.load(folder, model=my_model).",
            )  # fmt: skip
        chosen = {word: stored.get(word) if value is None else value for word, value in chosen.items()}
        chosen["test_fraction"] = stored.get("test_fraction")
    if (
        options["data"] is None or Path(options["data"]).is_dir()
    ):  # other images, of the size that was trained on
        chosen["image_size"] = stored.get("image_size")
    if known(str(chosen["data"])) is None:  # the same names mean the same as when the run was trained
        chosen |= {word: facts[word] for word in ("classes", "columns") if facts.get(word)}
    # which features the run was trained on, to be made of these or other rows; older folders name the recipe alone
    trained_on = {
        "model": stored.get("model"),
        "recipe": stored.get("recipe"),
        "recipe_for": stored.get("data"),
    }
    return load_data(chosen | trained_on | {"features": facts.get("features")})


def part_of(data: DataSet, part: str | None) -> Any:
    """The test rows, the training rows, or all; left out, the test rows if there are any."""
    part = part or ("test" if data.test is not None else "all")
    if part == "test" and data.test is None:
        raise InputError(
            "part", part, "'all' or 'train'", problem="is asked for, and the data has no test rows"
        )
    if part == "test":
        return data.test
    if part == "all" and data.test is not None:
        groups = [rows.groups for rows in (data.train, data.test) if rows.groups is not None]
        return replace(joined(data.train, data.test), groups=torch.cat(groups) if len(groups) == 2 else None)
    return data.train


def started_here(folder: RunFolder) -> bool:
    """Whether the command line started the run, and not Python."""
    about = folder.read_json("run.json")
    return isinstance(about, dict) and isinstance(about.get("facts"), dict) and "options" in about["facts"]


def facts_of(folder: RunFolder) -> dict[str, Any]:
    """What the command line stored when it started the run."""
    about = folder.read_json("run.json")
    facts = about.get("facts") if isinstance(about, dict) else None
    if not isinstance(facts, dict) or not isinstance(facts.get("options"), dict):
        raise InputError(
            "resume", str(folder.path), "a run that the command line started",
            problem="was started from Python",
            cure="Go on with it there: sf.fit(model, data, resume=folder).",
        )  # fmt: skip
    words = {word: facts["options"].get(word) for word in _TEXTS}
    words |= {f"name of {word}": facts.get(word) for word in ("data", "model")}
    for word, value in words.items():
        if value is not None and not isinstance(value, str):
            raise DamagedError(f"run.json: {word} is not a text.")
    if not isinstance(facts["options"].get("test_fraction"), float | None):
        raise DamagedError("run.json: test_fraction is not a number.")
    for word in ("classes", "columns"):
        names = facts.get(word, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DamagedError(f"run.json: {word} are no names.")
    if not isinstance(facts["options"].get("image_size"), int | None):
        raise DamagedError("run.json: image_size is not a whole number.")
    return facts


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
