"""Plans as files: what is written is read again, and what cannot be read is said in full."""

from __future__ import annotations

import json
import tomllib
import warnings
from pathlib import Path
from typing import Any

import plan_strategies
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_helpers import bounded
from saltflat.errors import PrivacyWarning
from saltflat.plan import Budget, FreshQuery, Phase, Plan, Poisson
from saltflat.plan.files import PlanFileError


def sample() -> dict[str, Any]:
    """A plan as plain data."""
    plan = Plan(Poisson(1000, 50), (Phase(5, 1.0, 2.0, ascent=FreshQuery(0.1)),), Budget(1.0, 1e-5))
    return plan.to_dict()


@given(plan_strategies.plans() | plan_strategies.federated_plans())
@bounded(150)
def test_json_and_toml_give_back_the_same_plan(plan: Plan) -> None:
    """All parts, infinite numbers and missing ones. Fails when a field is left out (tried)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        from_json, from_toml = Plan.from_json(plan.to_json()), Plan.from_toml(plan.to_toml())
    assert from_json == plan
    assert from_toml == plan
    assert from_json.hash == from_toml.hash == plan.hash
    parts = plan.federation is not None or plan.survey is not None
    newer = plan.needs_public or plan.multiplicity.public_batch != 64 or parts
    assert json.loads(plan.to_json())["saltflat_plan"] == (2 if newer else 1)
    constants: list[str] = []
    json.loads(plan.to_json(), parse_constant=constants.append)
    assert constants == []  # strict JSON has no NaN and no Infinity; a name may be one of these words


@pytest.mark.parametrize("name", ["plan.json", "plan.toml"])
def test_saved_and_loaded(tmp_path: Path, name: str) -> None:
    plan = Plan.from_dict(sample())
    plan.save(tmp_path / name)
    assert Plan.load(tmp_path / name) == plan
    text = (tmp_path / name).read_text()
    (tomllib.loads if name.endswith("toml") else json.loads)(text)


@pytest.mark.parametrize(
    ("path", "word", "guess"),
    [
        ((), "optimiser", "optimizer"),
        (("budget",), "epsilom", "epsilon"),
        (("phases", 0), "clipnorm", "clip_norm"),
        (("phases", 0, "ascent"), "rhoo", "rho"),
        (("sampling",), "batchsize", "batch_size"),
    ],
)
def test_unknown_keys_suggest_the_nearest(path: tuple[Any, ...], word: str, guess: str) -> None:
    data = sample()
    place: Any = data
    for key in path:
        place = place[key]
    place[word] = 1
    with pytest.raises(PlanFileError, match=f"unknown key '{word}'. Did you mean '{guess}'"):
        Plan.from_dict(data)


def test_unknown_kinds_suggest_the_nearest() -> None:
    data = sample()
    data["sampling"]["kind"] = "poison"
    with pytest.raises(PlanFileError, match="Did you mean 'poisson'"):
        Plan.from_dict(data)


def test_all_faults_are_said_at_once() -> None:
    """Fails when reading stops at the first one (tried)."""
    data = sample()
    data["methud"] = "x"
    data["budget"]["epsilon"] = -1
    data["phases"][0]["steps"] = 0
    data["averaging"] = {"kind": "sva"}
    data["clipping"] = "flat"
    del data["sampling"]["population"]
    with pytest.raises(PlanFileError) as error:
        Plan.from_dict(data)
    text = str(error.value)
    for part in (
        "methud",
        "epsilon=-1",
        "steps=0",
        "'swa'",
        "clipping has kind",
        "lacks the key 'population'",
    ):
        assert part in text
    assert text.count("\n  - ") == 6


def test_missing_parts_have_their_defaults_or_are_named() -> None:
    data = sample()
    for key in ("optimizer", "averaging", "clipping", "multiplicity", "method", "notes"):
        del data[key]
    assert Plan.from_dict(data) == Plan.from_dict(sample())
    for key in ("sampling", "phases", "budget"):
        with pytest.raises(PlanFileError, match=f"lacks the key '{key}'"):
            Plan.from_dict({k: v for k, v in data.items() if k != key})


def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(PlanFileError, match="has format 3; this saltflat reads formats up to 2"):
        Plan.from_dict(sample() | {"saltflat_plan": 3})


@pytest.mark.parametrize("data", [[], "plan", None, {}, {"saltflat_plan": "1"}, {"saltflat_plan": True}])
def test_what_is_not_a_plan(data: Any) -> None:
    with pytest.raises(PlanFileError):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "saltflat_plan = 1\nphases = 3"])
def test_what_is_not_even_a_file(text: str) -> None:
    with pytest.raises(PlanFileError):
        Plan.from_json(text)
    with pytest.raises(PlanFileError):
        Plan.from_toml(text)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), plan_strategies.plans() | plan_strategies.federated_plans())
@bounded(150)
def test_damaged_files_raise_nothing_else(data: st.DataObject, plan: Plan) -> None:
    """Any value anywhere may be replaced by anything: a plan, or one error with all faults."""
    content: Any = plan.to_dict()
    place: Any = content
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(junk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        try:
            again = Plan.from_dict(content)
        except PlanFileError:
            return
        assert isinstance(again.hash, str)
