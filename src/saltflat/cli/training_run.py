"""From options to a finished run: what `train`, `compare` and `quickstart` all do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from saltflat import plans
from saltflat.data import DataSet, load
from saltflat.errors import InputError, PrivacyWarning
from saltflat.models import build, describe
from saltflat.plan import Plan
from saltflat.training.fit import fit
from saltflat.training.run import Run

PLAN_WORDS = (
    "epsilon", "delta", "noise_multiplier", "population", "batch_size", "epochs", "steps", "clip_norm",
    "learning_rate", "optimizer", "momentum",
)  # fmt: skip


def train_once(
    options: dict[str, Any],
    *,
    out: str | None,
    announce: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Load, build, plan, fit; returns the run and its summary for JSON."""
    data = load(options["data"], data_dir=options.get("data_dir"), label=options.get("label"))
    model, model_name = model_for(data, options.get("model"))
    plan = plan_for(data, options)
    if announce is not None:
        announce(str(plan))
    run = fit(
        model, data.train, plan,
        evaluate=data.test, out=out, seed=options.get("seed"), device=options.get("device"), progress=progress,
    )  # fmt: skip
    if announce is not None:
        announce("layer rules: " + ", ".join(sorted(set(run.rules.values()))))
    return run, summary_of(run, data, model_name)


def plan_for(data: DataSet, options: dict[str, Any]) -> Plan:
    """The plan that the options describe; what is missing is filled in, and said in the plan's notes."""
    given = {word: options[word] for word in PLAN_WORDS if options.get(word) is not None}
    rows = len(data.train)
    if "population" not in given:
        given |= {"population": rows, "relation": "zero-out"}
    if "epsilon" not in given and "noise_multiplier" not in given:
        given["epsilon"] = 3.0
    given.setdefault("batch_size", min(given["population"], max(64, 2 ** round(math.log2(given["population"] / 20)))))
    if "epochs" not in given and "steps" not in given:
        given["epochs"] = None
    if options.get("delta_is_default") and given["delta"] * given["population"] >= 0.1:
        given["delta"] = 0.1 / given["population"]
    with warnings.catch_warnings():
        warnings.simplefilter("default", PrivacyWarning)
        return plans.by_name(options["method"], **given)


def model_for(data: DataSet, name: str | None) -> tuple[nn.Module, str]:
    """The named model, or a small one that fits the data, shaped to its classes and inputs."""
    shape = tuple(data.train.inputs.shape[1:])
    if name is None:
        name = "mlp" if len(shape) == 1 or shape[-1] < 16 else "cnn-tanh" if shape[-1] == 32 else "dpnas-mnist"
    known = describe(name).overrides
    wanted: dict[str, Any] = {"classes": data.num_classes}
    if len(shape) == 3:
        wanted |= {"in_channels": shape[0], "image_size": shape[1]}
    wanted["in_features"] = math.prod(shape)
    expected = describe(name).input_shape
    overrides = {key: value for key, value in wanted.items() if key in known and value is not None}
    if tuple(expected) == shape and "in_features" not in known:
        overrides = {key: value for key, value in overrides.items() if key == "classes"}
    try:
        return build(name, **overrides), name
    except InputError as error:
        raise InputError(
            "model", name, f"a model for inputs of shape {shape}", problem=f"does not fit this data: {error}",
            cure="See: saltflat models",
        ) from error  # fmt: skip


def summary_of(run: Run, data: DataSet, model_name: str) -> dict[str, Any]:
    """What a run came to, for JSON."""
    last = run.history[-1] if run.history else {}
    return {
        "accuracy": last.get("accuracy"),
        "average_accuracy": last.get("average_accuracy"),
        "loss": last.get("loss"),
        "epsilon": "inf" if math.isinf(run.epsilon) else run.epsilon,
        "delta": run.plan.budget.delta,
        "private": run.certificate.is_private,
        "method": run.plan.method,
        "data": data.name,
        "model": model_name,
        "steps": run.plan.steps,
        "relation": run.plan.budget.relation,
        "out": None if run.folder is None else str(run.folder),
        "seconds": round(run.seconds, 2),
    }
