"""The rows that options name, or that a run folder was trained on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from saltflat.cli.faults import names_of
from saltflat.data import DataSet, load
from saltflat.data.catalogue import known
from saltflat.data.files import cache_dir
from saltflat.data.shared_rows import joined, separated
from saltflat.data.tables import classes_of
from saltflat.errors import InputError
from saltflat.models import scattering_features
from saltflat.recipes import features_for
from saltflat.recipes.stored import from_dict
from saltflat.record.canonical import DamagedError
from saltflat.record.folder import RunFolder
from saltflat.training.progress import NotedBar

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
