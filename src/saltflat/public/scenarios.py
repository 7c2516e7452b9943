"""The scenarios of training with public data, by one argument: cold, warm, warm-syn, extended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import nn

from saltflat.data.shared_rows import joined, refuse_private, refuse_shared_rows, separated
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.plan import Plan
from saltflat.public.warm_up import WarmUp, warm_up
from saltflat.training.fit import fit
from saltflat.training.run import Run

Scenario = Literal["cold", "warm", "warm-syn", "extended"]
SCENARIOS: tuple[str, ...] = get_args(Scenario)


def train(
    model: nn.Module,
    private: Any,
    plan: Plan | None = None,
    *,
    scenario: Scenario,
    public: Examples | None = None,
    synthetic: Examples | None = None,
    settings: WarmUp | None = None,
    announce: Callable[[str], None] | None = None,
    facts: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train on ``private`` data with what the scenario takes from public data; the rest of ``options`` is `fit`'s.

    - ``cold``: nothing. Public data is left alone.
    - ``warm``: a warm-up on the public rows, then the plan.
    - ``warm-syn``: a warm-up on samples made from public rows, and on these too where they are given.
    - ``extended``: the same, and the plan's steps look at that data: weight multiplicity, DOPE-SGD, ...

    Guarantees: those of `fit`. Only private rows cost budget, the certificate lists everything public with whoever
    declared it so, and private rows where public ones are needed are an error, also a single one among public or
    synthetic rows. A data set that holds rows twice may have copies on both sides of the split that `load` made:
    these are left out of the private side, with a warning.

    Reference: the scenarios of Nasr et al., Effectively Using Public Data in Privacy Preserving Machine Learning,
    ICML 2023.

    >>> import saltflat as sf
    >>> digits = sf.data.load("digits", public_fraction=0.2)
    >>> plan = sf.plans.dp_sgd(epsilon=8, delta=1e-4, population=1147, batch_size=256, steps=3, relation="zero-out")
    >>> quick = sf.public.WarmUp(epochs=2)
    >>> run = sf.public.train(sf.models.build("mlp"), digits.train, plan, scenario="warm", public=digits.public,
    ...                       settings=quick, progress=False)
    >>> [entry["used"] for entry in run.certificate.data["public"]]
    ['warm-up']
    """
    check_scenario(scenario, plan, public, synthetic)
    for argument, part in (("public", public), ("synthetic", synthetic)):
        if part is not None:
            refuse_private(part, argument, "and is given where public data is needed")
    if public is not None:
        private = separated(private, public)
    if synthetic is not None:  # after the copies left: a sample may equal a public row
        refuse_shared_rows(private, synthetic, "synthetic")
    shown = shown_data(scenario, public, synthetic)
    listed: list[dict[str, Any]] = []
    if shown and options.get("resume") is None:  # a run that goes on has its weights already
        done = warm_up(
            model, *shown, settings=settings, loss_fn=options.get("loss_fn"), device=options.get("device")
        )
        listed = [*done.public]
        if announce is not None:
            announce(
                f"warm-up: {done.settings.optimizer}, {len(done.losses)} epochs on {sum(map(len, shown)):,} public "
                f"rows, loss {done.losses[-1]:.4f} ({done.seconds:.1f} s)"
            )
    if listed or facts is not None:
        options["facts"] = (facts or {}) | ({"public": listed} if listed else {})
    return fit(model, private, plan, public=seen_data(scenario, public, synthetic), **options)


def shown_data(scenario: str, public: Examples | None, synthetic: Examples | None) -> list[Examples]:
    """What a scenario's warm-up is trained on."""
    if scenario == "cold":
        return []
    parts = [public] if scenario == "warm" else [public, synthetic]
    return [part for part in parts if part is not None]


def seen_data(scenario: str, public: Examples | None, synthetic: Examples | None) -> Examples | None:
    """What the private steps of a scenario look at."""
    return joined(*shown_data(scenario, public, synthetic)) if scenario == "extended" else None


def check_scenario(scenario: str, plan: Plan | None, public: Any, synthetic: Any) -> None:
    """Refuse a scenario without the data that it needs, or with a plan that is not its own."""
    if scenario not in SCENARIOS:
        raise InputError("scenario", scenario, f"one of {', '.join(SCENARIOS)}")
    if scenario == "warm" and public is None:
        raise InputError(
            "public", None, "public data for scenario 'warm'", problem="is missing",
            cure="Split some off: load(..., public_fraction=0.04), --public-fraction 0.04; or bring your own.",
        )  # fmt: skip
    if scenario == "warm-syn" and synthetic is None:
        raise InputError(
            "synthetic", None, "samples made from public data, for scenario 'warm-syn'", problem="is missing",
            cure="Make some: saltflat synthesize, or saltflat recipe, which does everything in turn.",
        )  # fmt: skip
    if scenario == "extended" and public is None and synthetic is None:
        raise InputError(
            "public", None, "public data or samples for scenario 'extended'", problem="is missing"
        )
    if plan is not None and plan.needs_public != (scenario == "extended"):
        raise InputError(
            "scenario", scenario,
            "'extended' for a plan that looks at public data in every step, and only for such a plan",
            problem=f"does not go with {plan.method}",
            cure="Plans for 'extended': weight-multiplicity, dope-sgd, mirror-descent, ada-dps.",
        )  # fmt: skip
