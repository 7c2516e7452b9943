"""`tune`: settings chosen within the budget, or on public data.

A tuning by repeat-and-select is one mechanism. It repeats a trial a secret, random number of times: draw a
point of the grid, train, score. It shows the best trial: its weights, its settings, its score.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saltflat import plans
from saltflat.accounting.selection import Law, Repetitions
from saltflat.data.people import People
from saltflat.data.shared_rows import refuse_private, refuse_shared_rows
from saltflat.data.source import Examples, as_source
from saltflat.errors import InputError, PrivacyWarning, check_count
from saltflat.mechanism.streams import CryptographicStream
from saltflat.plan import Budget, Plan, Poisson
from saltflat.plan.tuning import Point, default_score_noise, solved_tuning
from saltflat.plans.defaults import choose_epochs
from saltflat.record.folder import RunFolder
from saltflat.training.checks import check_alone, check_population, check_seed, units_in
from saltflat.training.fit import fit
from saltflat.training.score import held_out, right_answers
from saltflat.training.trials import ModelOrMaker, Trials, TrialSettings, Tuned, made

RESERVED = (
    "epsilon", "delta", "noise_multiplier", "population", "relation", "unit", "preset", "split", "portion",
)  # fmt: skip
MOST_POINTS = 1000


def tune(
    model: ModelOrMaker,
    data: Any,
    method: str = "dp-sgd",
    *,
    grid: Mapping[str, Sequence[Any]],
    epsilon: float,
    delta: float = 1e-5,
    repeats: float | None = None,
    law: Law = "logarithmic",
    validation: Examples | None = None,
    validation_fraction: float = 0.1,
    score_noise: float | None = None,
    proxy: Examples | None = None,
    evaluate: Any = None,
    groups: Any = None,
    out: str | Path | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    facts: dict[str, Any] | None = None,
    trial: TrialSettings | None = None,
    **plan_settings: Any,
) -> Tuned:
    """Choose settings of a ``method`` from a ``grid``, and train with them, all within (``epsilon``, ``delta``).

    Each of a secret, random number of trials (``repeats`` on average, by ``law``) takes a random point of the
    grid, trains on the private rows, and is scored. Only the best is shown. ``validation`` are public rows to
    score on, which is free. Without them, each unit of ``data`` is held out with probability
    ``validation_fraction``, and the score is a count of right answers there with noise of standard deviation
    ``score_noise``. Noise is calibrated so that all of it costs at most ``epsilon``. ``population`` counts all
    of ``data``, held out or not.

    With ``proxy``, rows that are marked public, the grid is searched there, at no cost; then one private run
    with the best settings gets the whole budget. ``evaluate`` is looked at once, for the chosen run only.

    ``model`` is a module, copied for each trial, or a function that makes one. Further arguments are those of
    the method's plan. ``trial`` holds what `fit` takes. ``seed`` makes a test run, which is **not private**.

    Guarantees: ε and δ for every unit of ``data``, provided that only what this function returns leaves (how long
    it took hints at the number of trials, and is not covered). A tuning that was cut off shows nothing, counts
    as spent, and cannot be resumed.

    References: Papernot and Steinke 2022; Liu and Talwar 2019.

    >>> import saltflat as sf
    >>> rows = sf.data.load("digits")
    >>> tuned = sf.tune(sf.models.build("mlp"), rows.train, grid={"learning_rate": [0.5, 2.0]}, epsilon=3,
    ...                 delta=1e-4, population=1437, batch_size=256, steps=2, seed=0, progress=False)
    >>> sorted(tuned.settings), tuned.tuning.epsilon <= 3
    (['learning_rate'], True)
    """
    check_alone("tune")
    points = grid_points(grid)
    check_seed(seed)
    Budget(epsilon, delta)  # refuses what is none
    settings = {key: value for key, value in plan_settings.items() if value is not None}
    shared = trial if trial is not None else TrialSettings()
    if not {"epochs", "steps"} & {*settings, *grid}:
        count = sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else None
        population = settings.get("population")
        check_count("population", population if population is not None else 0)
        settings["epochs"] = choose_epochs(epsilon, settings["population"], count)[0]
    for argument, rows in (("validation", validation), ("proxy", proxy)):
        if rows is not None:
            refuse_private(rows, argument, "and scores on it are exact (private rows: validation_fraction)")
            refuse_shared_rows(data, rows, argument)
    if proxy is not None:
        solved = [_plan(method, point, settings | {"epsilon": epsilon, "delta": delta}) for point in points]
        scores = _searched(model, proxy, validation, solved, points, shared, seed)
        best = max(range(len(points)), key=lambda number: scores[number]["score"])
        name = proxy.name or "without a name"
        run = fit(
            made(model), data, solved[best], evaluate=evaluate, groups=groups, out=out, seed=seed, progress=progress,
            facts=(facts or {}) | {"tuned_on": name, "settings": dict(points[best])}, **shared,
        )  # fmt: skip
        return Tuned(run, points[best], scores[best]["score"], scores=tuple(scores))
    stream = CryptographicStream.fresh() if seed is None else CryptographicStream.from_seed(seed, "tuning")

    def drafted() -> tuple[Plan, ...]:
        draft = settings | {"noise_multiplier": 1.0, "delta": delta}
        return tuple(_plan(method, point, draft) for point in points)

    drafts = drafted()
    repetitions = Repetitions(len(points) if repeats is None else repeats, law)
    budget = Budget(epsilon, delta, drafts[0].budget.relation, drafts[0].budget.unit)
    train, scored, held = data, validation, 0.0
    if validation is None:
        population = drafts[0].sampling.population
        ids = _ids_for(data, groups, budget.unit, population)
        train, scored = held_out(data, validation_fraction, ids, stream)
        groups, held = (None if ids is None else train.groups), population * validation_fraction
        settings["population"] = max(1, round(population - held))
        drafts = drafted()
        if score_noise is None:
            score_noise = default_score_noise(repetitions, budget)
    elif score_noise is not None:
        raise InputError("score_noise", score_noise, "none, because public rows are scored exactly")
    assert scored is not None
    tuning = solved_tuning(drafts, points, repetitions, budget, score_noise)
    trials = Trials(model, train, scored, held, tuning, stream, shared, seed, groups)
    with warnings.catch_warnings():
        # how many rows a coin for each leaves is never what was declared; the rest was said of all rows
        if validation is None:
            warnings.filterwarnings("ignore", "The data (has|says whose)", PrivacyWarning)
        trials.rehearse(evaluate)
    if out is None:
        return trials.run(None, evaluate, progress, facts or {})
    folder = RunFolder.create(out)
    try:
        return trials.run(folder, evaluate, progress, facts or {})
    finally:
        folder.let_go()


def grid_points(grid: Mapping[str, Sequence[Any]]) -> tuple[Point, ...]:
    """Every combination of the values of a grid.

    >>> grid_points({"learning_rate": [1, 2], "clip_norm": [0.1]})
    ({'learning_rate': 1, 'clip_norm': 0.1}, {'learning_rate': 2, 'clip_norm': 0.1})
    """
    if not isinstance(grid, Mapping) or not grid:
        raise InputError("grid", grid, "argument -> values, such as {'learning_rate': [0.5, 1, 2]}")
    size = 1
    for key, values in grid.items():
        if key in RESERVED:
            raise InputError(
                "grid", str(key), "settings that leave the privacy alone", problem="cannot be tuned",
                cure="The budget, the population and the unit are declared once, for all candidates.",
            )  # fmt: skip
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError("grid", str(key), "a list of values for it", problem="has no list of values")
        size *= len(values)
    if size > MOST_POINTS:
        raise InputError("grid", size, f"at most {MOST_POINTS} points", problem="points are too many")
    return tuple(dict(zip(grid, values)) for values in itertools.product(*grid.values()))


def _plan(method: str, point: Point, settings: dict[str, Any]) -> Plan:
    given = settings | dict(point)
    return plans.by_name(given.pop("method", method), **given)


def _ids_for(data: Any, groups: Any, unit: str, population: int) -> Any:
    """The ids of people, where they are the unit; says so, once and only here, if there are more or fewer."""
    source = as_source(data)
    units = units_in(source, groups, unit)
    people = isinstance(units, People)
    check_population(len(units), "people" if people else "rows", population)
    if not people:
        return None
    return groups if groups is not None else getattr(source, "groups", None)


def _searched(
    model: ModelOrMaker,
    proxy: Examples,
    validation: Examples | None,
    solved: list[Plan],
    points: tuple[Point, ...],
    shared: TrialSettings,
    seed: int | None,
) -> list[dict[str, Any]]:
    """The score of every point on public rows: a plain search, all of whose scores may be shown.

    Noise on the releases, steps and clip norm are those of the private run to come; batches are smaller where
    the proxy is.
    """
    rows = proxy
    if validation is None:
        if len(proxy) < 2:
            raise InputError("proxy", len(proxy), "at least two rows, one of them to score on")
        order = torch.randperm(len(proxy), generator=torch.Generator().manual_seed(0))
        fifth = max(1, len(proxy) // 5)
        plain = replace(proxy, groups=None)
        rows, validation = plain.subset(order[fifth:]), plain.subset(order[:fifth])
    scores = []
    for plan, point in zip(solved, points):
        size = min(plan.sampling.batch_size, len(rows))
        share = size / plan.sampling.batch_size
        phases = tuple(replace(phase, noise_multiplier=phase.sigma * share) for phase in plan.phases)
        trial = plan.changed(
            sampling=Poisson(len(rows), size), phases=phases, budget=replace(plan.budget, unit="example")
        )
        # public rows need no budget, and none is claimed
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            run = fit(made(model), rows, trial, seed=seed, progress=False, **shared)
        device = next(run.model.parameters()).device
        scores.append(dict(point) | {"score": float(right_answers(run.model, validation, device).mean())})
    return scores
