"""The registry of the papers' tables holds together: names, values, commands, plans, models, experiments."""

from __future__ import annotations

import doctest
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import benchmarks_papers_helpers as helpers
import click
import pytest
import torch
from papers import experiments, outcomes, registry
from papers.registry import RegistryError, Work, load

from saltflat.cli.plan_settings import plan_for
from saltflat.cli.train import command as train
from saltflat.cli.training_run import model_for

REGISTRY = load()
SIZES = {"mnist": (60_000, (1, 28, 28)), "fashion-mnist": (60_000, (1, 28, 28)), "cifar10": (50_000, (3, 32, 32)),
         "svhn": (73_257, (3, 32, 32))}  # fmt: skip
TRAINED = [work for work in REGISTRY.works.values() if work.experiment is None]
TRIED = [work for work in REGISTRY.works.values() if work.experiment is not None]


@dataclass
class Rows:
    """Rows of which only the number and the shape are known."""

    count: int
    inputs: torch.Tensor
    groups: Any = None

    def __len__(self) -> int:
        return self.count


def described(data: str) -> Any:
    count, shape = SIZES[data]
    return SimpleNamespace(train=Rows(count, torch.empty(0, *shape)), num_classes=10, name=data)


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan consists of is looked at here, not how much noise it needs, which takes seconds each."""
    monkeypatch.setattr("saltflat.plan.plan.least_scale", lambda *_, **__: 2.0)


def test_there_is_something_of_every_paper() -> None:
    assert set(REGISTRY.papers) == {"dp-fedsam", "dp-sat", "dp-swa", "our-own", "public-data", "sai"}
    for key in REGISTRY.papers:
        assert any(table.paper == key for table in REGISTRY.tables.values())


def test_numbers_that_must_be_met_are_those_of_the_papers() -> None:
    """A slip in copying would show as a difference that is not ours."""
    known = {
        "sai-table1-cifar10-cnn-selu-eps1-sai": (51.79, 0.66),
        "sai-table1-fashion-mnist-dpnas-eps3-dp-sat": (88.60, 0.04),
        "dp-swa-table1-eps8-dp-swa": (0.52, 0.01), "dp-swa-table2-eps1-dp-sgd": (68.4, 0.3),
        "dp-sat-table10-cnn-selu-eps1-dp-sat": (45.45, 0.36), "fedsam-table2-dp-fedsam-topk-eps8": (53.64, 0.12),
        "public-table1-weight-multiplicity-eps2": (85.78, None),
    }  # fmt: skip
    cells = {cell.name: cell for cell in REGISTRY.cells()}
    for name, value in known.items():
        assert (cells[name].value, cells[name].deviation) == value


@pytest.mark.parametrize("work", TRAINED, ids=lambda work: work.name)
def test_every_command_parses_and_makes_a_plan(work: Work) -> None:
    """Fails for an option that does not exist, a setting that the method does not have, a preset without the model."""
    words = [*work.words, *(("--epochs", "10") if work.chosen_by else ())]
    options = train.make_context("train", [*words, "--json"], resilient_parsing=False).params
    data = described(options["data"])
    plan = plan_for(data, options | {"as_json": True})
    assert plan.steps > 0
    assert plan.method == options["method"]
    assert 0 < plan.budget.delta <= 1e-5


def test_a_wrong_command_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        train.make_context("train", ["--epsilonn", "1"])


@pytest.mark.parametrize(
    ("data", "model"),
    sorted({(w.words[w.words.index("--data") + 1], w.words[w.words.index("--model") + 1]) for w in TRAINED}),
)
def test_every_model_fits_its_data(data: str, model: str) -> None:
    built, _ = model_for(described(data), model)
    with torch.no_grad():
        assert built(torch.zeros(2, *SIZES[data][1])).shape == (2, 10)


@pytest.mark.parametrize("work", TRIED, ids=lambda work: work.name)
def test_every_experiment_takes_its_settings(work: Work) -> None:
    function = experiments.EXPERIMENTS[work.experiment or ""]
    settings = {**work.settings, **({"epochs": 10} if work.chosen_by else {})}
    bound = inspect.signature(function).bind(experiments.Place(Path("x")), **settings)
    bound.apply_defaults()
    if work.experiment == "classifier":
        told = bound.arguments
        plan = experiments.classifier_plan(
            60_000, told["method"], told["batch_size"], told["delta"], told["swa"], told["plan_settings"]
        )
        assert plan.steps == round(settings["epochs"] * 60_000 / told["batch_size"])


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    tables = [
        helpers.table("no-cost", minutes=None),
        helpers.table("no-value", rows='[{ name = "r", label = "row" }]'),
        helpers.table("reduced-how", scale='"reduced"'),
        helpers.table("lost", columns='[{ name = "c", label = "c", work = "nowhere-{row}" }]'),
        helpers.table("odd-key", wrods='"--data digits"'),
        helpers.table("odd-row", rows='[{ name = "r", label = "row", paper = ["1", "2"] }]'),
        helpers.table("same"), helpers.table("same"),
    ]  # fmt: skip
    with pytest.raises(RegistryError) as caught:
        helpers.registry_of(tmp_path, "\n".join(tables))
    told = str(caught.value)
    for word in (
        "no-cost",
        "no-value",
        "reduced-how",
        "nowhere-r",
        "wrods",
        "odd-row",
        "two tables are called same",
    ):
        assert word in told


def test_a_table_like_another_changes_only_what_it_says(tmp_path: Path) -> None:
    like = '[[table]]\nname = "less"\nlike = "t"\nscale = "reduced"\nreduced = "one step"\n'
    found = helpers.registry_of(tmp_path, helpers.table() + like)
    assert found.works["less-r-c"].words == found.works["t-r-c"].words
    assert [table.scale for table in found.tables.values()] == ["full", "reduced"]


@pytest.mark.parametrize("module", [registry, outcomes, experiments], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: Any) -> None:
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
