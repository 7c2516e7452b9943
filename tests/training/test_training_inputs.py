"""Bad input: refused by name, before anything is spent or written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import core_helpers
import saltflat as sf
from core_helpers import small_data, small_net
from saltflat import plans
from saltflat.data.source import Examples
from saltflat.errors import InputError, PrivacyWarning, RefusedError
from saltflat.plan import Budget, Multiplicity, Optimizer, Phase, Plan, Poisson

COMMON = core_helpers.COMMON | {"steps": 3}


def plan_of(**more: Any) -> Plan:
    return plans.dp_sgd(**COMMON | more)


def with_targets(targets: Any, **more: Any) -> Examples:
    return Examples(small_data().inputs, targets, **more)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(4), 0)])


class NotPairs(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(4, dtype=torch.float64)


class Mixing(nn.Module):
    """Every output depends on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs - inputs.mean(0))


Call = Callable[[Path], Any]
PAIR = (small_data().inputs, small_data().targets)


def fit(
    data: Any = None, plan: Plan | Callable[[], Plan] | None = None, model: Any = None, **more: Any
) -> Call:
    """A call to make later. A plan that takes long to make is given as a function."""

    def call(out: Path) -> Any:
        return sf.fit(
            small_net() if model is None else model, small_data() if data is None else data,
            (plan() if callable(plan) else plan) or plan_of(), out=out, progress=False, **more,
        )  # fmt: skip

    return call


labels = small_data().targets
BAD: dict[str, tuple[Call, str]] = {
    "no rows": (fit((torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))), "data"),
    "one tensor": (fit(torch.zeros(40, 4)), "data"),
    "nothing": (fit(3), "data"),
    "rows that are no pairs": (fit(NotPairs()), "data"),
    "inputs and targets of two lengths": (fit((torch.zeros(5, 4), labels)), "inputs"),
    "labels above the classes": (fit(with_targets(labels + 1, num_classes=3)), "targets"),
    "labels above the outputs": (fit((PAIR[0], labels + 1)), "targets"),
    "labels below zero": (fit(with_targets(labels - 1, num_classes=3)), "targets"),
    "real labels for declared classes": (fit(with_targets(labels.double(), num_classes=3)), "targets"),
    "real labels for three outputs": (fit((PAIR[0], labels.double())), "targets"),
    "true and false as labels": (fit(with_targets(labels > 0)), "targets"),
    "no plan": (fit(plan="dp-sgd"), "plan"),  # type: ignore[arg-type]
    "an unsolved plan": (fit(plan=Plan(Poisson(40, 8), (Phase(3, 1.0),), Budget(1.0, 1e-3))), "plan"),
    "no model": (fit(model="mlp"), "model"),
    "a model without weights": (fit(model=nn.Flatten()), "model"),
    "a frozen model": (fit(model=small_net().requires_grad_(False)), "model"),
    "a model for other inputs": (fit(model=nn.Linear(7, 3).double()), "model"),
    "a loss over the batch": (fit(loss_fn=nn.CrossEntropyLoss()), "loss_fn"),
    "a loss a coordinate": (fit(loss_fn=lambda outputs, targets: outputs), "loss_fn"),
    "two optimizers": (
        fit(plan=plan_of(optimizer="sgd"), optimizer=lambda p: torch.optim.SGD(p, lr=1.0)), "optimizer",
    ),
    "a learning rate and an optimizer": (
        fit(plan=plan_of(learning_rate=0.1), optimizer=lambda p: torch.optim.SGD(p, lr=1.0)), "optimizer",
    ),
    "an optimizer that was made already": (
        fit(optimizer=torch.optim.SGD(small_net().parameters(), lr=1.0)), "optimizer",
    ),
    "a factory of something else": (fit(optimizer=lambda p: None), "optimizer"),
    "an unknown optimizer": (fit(plan=plan_of(optimizer="sdg")), "optimizer"),
    "an unknown setting": (fit(plan=plan_of(optimizer=Optimizer("sgd", {"momentun": 0.9}))), "optimizer"),
    "a bad setting": (fit(plan=plan_of(optimizer=Optimizer("sgd", {"momentum": -1}))), "optimizer"),
    "an unknown schedule": (fit(schedule="cosin"), "schedule"),
    "more rows than a truncated sampler may see": (
        fit(plan=lambda: plan_of(population=30, sampling="truncated-poisson")), "population",
    ),
    "people without ids": (fit(plan=plan_of(unit="person")), "groups"),
    "ids of another number": (fit(plan=plan_of(unit="person"), groups=torch.zeros(3)), "groups"),
    "ids for a plan about rows": (fit(groups=torch.zeros(40)), "unit"),
    "private data as public": (fit(public=small_data()), "public"),
    "public data that is none": (fit(public=3), "data"),
    "no rows to evaluate on": (fit(evaluate=(torch.zeros(0, 4), torch.zeros(0))), "data"),
    "test data of another shape": (fit(evaluate=(torch.zeros(5, 9).double(), labels[:5])), "evaluate"),
    "a micro-batch of none": (fit(micro_batch=0), "micro_batch"),
    "a seed that is none": (fit(seed="7"), "seed"),
    "a negative seed": (fit(seed=-1), "seed"),
    "a device that is none": (fit(device="abacus"), "device"),
    "augmented vectors": (fit(plan=plan_of(multiplicity=Multiplicity(2, ("flip",)))), "augmentations"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_before_anything_is_written(case: str, tmp_path: Path) -> None:
    """Fails when the folder is made before the last check (it once was)."""
    call, argument = BAD[case]
    with pytest.raises(InputError) as error:
        call(tmp_path / "run")
    assert error.value.argument == argument
    assert f"{argument}=" in str(error.value)
    assert "Expected" in str(error.value)
    assert not (tmp_path / "run").exists()


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*PAIR), **options)


REFUSED: dict[str, tuple[Any, str]] = {
    "a stream": (Stream(), "An IterableDataset"),
    "a loader of a stream": (DataLoader(Stream()), "An IterableDataset"),
    "weights": (loader(sampler=WeightedRandomSampler(torch.ones(40), 40)), "WeightedRandomSampler"),
    "repetition": (loader(sampler=RandomSampler(range(40), replacement=True)), "RandomSampler"),
    "a part": (loader(sampler=RandomSampler(range(40), num_samples=7)), "RandomSampler"),
    "a subset": (loader(sampler=SubsetRandomSampler(range(10))), "SubsetRandomSampler"),
    "batches of one's own": (
        loader(batch_sampler=type("Mine", (BatchSampler,), {})(range(40), 4, False)), "Mine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_samplers_that_would_be_replaced_are_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    """Fails when any sampler is quietly exchanged for the plan's own (tried)."""
    data, name = REFUSED[case]
    with pytest.raises(RefusedError, match="cannot be trained privately") as error:
        sf.fit(small_net(), data, plan_of(), out=tmp_path / "run", progress=False)
    assert name in str(error.value)
    assert "Poisson" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_mixes_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError):
        sf.fit(Mixing(), small_data(), plan_of(), out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_data_of_another_size_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(sf.PrivacyWarning, match="The data has 33 rows and the plan declares population=40"):
        sf.fit(small_net(), small_data(33), plan_of(), out=tmp_path / "run", progress=False)


def test_public_data_in_place_of_private_is_warned_of() -> None:
    data = small_data()
    public = Examples(data.inputs, data.targets, provenance="public")
    with pytest.warns(sf.PrivacyWarning, match="marked public"):
        sf.fit(small_net(), public, plan_of(), progress=False)


FORMS: dict[str, Any] = {
    "tensors": PAIR,
    "a list": list(PAIR),
    "arrays": (PAIR[0].numpy(), PAIR[1].numpy()),
    "a data set": TensorDataset(*PAIR),
    "rows": [(PAIR[0][i], int(PAIR[1][i])) for i in range(40)],
    "a loader": loader(batch_size=7),
    "a shuffling loader": loader(shuffle=True, drop_last=True, batch_size=7),
    "a loader without batches": loader(batch_size=None),
    "a loader that collates": loader(collate_fn=lambda rows: [torch.stack(x) for x in zip(*rows)]),
    "small whole numbers": (PAIR[0], PAIR[1].to(torch.int32)),
    "bytes": (PAIR[0], PAIR[1].to(torch.uint8)),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_in_any_form_give_the_same_run(form: str) -> None:
    plan, model = plan_of(), small_net()
    torch.set_default_dtype(torch.float64)  # arrays become tensors of the default type
    try:
        run = sf.fit(model, FORMS[form], plan, seed=1, progress=False)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = sf.fit(small_net(), small_data(), plan, seed=1, progress=False)
    for a, b in zip(run.model.parameters(), expected.model.parameters()):
        assert torch.equal(a, b)


def test_several_inputs_by_name_and_by_place() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.inner(torch.cat([left, right], 1))

    left, right = PAIR[0][:, :1], PAIR[0][:, 1:]
    ends = []
    for inputs in ({"left": left, "right": right}, (left, right)):
        torch.manual_seed(0)
        run = sf.fit(Two(), (inputs, PAIR[1]), plan_of(), seed=1, progress=False)
        ends.append(run.predict(inputs))
    assert torch.equal(*ends)


def test_regression_and_float64_arrays() -> None:
    rows = (np.random.default_rng(0).normal(size=(40, 3)), np.arange(40, dtype="float32"))
    run = sf.fit(nn.Linear(3, 1), rows, plan_of(), evaluate=rows, progress=False)
    assert run.accuracy is None
    assert math.isfinite(run.history[-1]["loss"])
    assert run.predict(rows[0].astype("float32")).shape == (40,)


def test_targets_of_several_columns_with_views() -> None:
    """Fails when targets are flattened where rows are repeated (it once was so)."""
    images, targets = torch.rand(40, 1, 4, 4), torch.rand(40, 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    plan = plan_of(multiplicity=Multiplicity(2, ("flip",)))
    run = sf.fit(model, (images, targets), plan, progress=False)
    assert run.epsilon == plan.epsilon


def test_frames_are_rows_of_numbers() -> None:
    """With any index and any names of columns. Fails when a frame is indexed as an array would be (tried)."""
    pandas = pytest.importorskip("pandas")
    data, plan = (
        small_data(),
        plans.dp_sgd(noise_multiplier=3.0, population=40, batch_size=8, steps=2, delta=1e-3),
    )
    frame = pandas.DataFrame(data.inputs.numpy(), index=range(100, 140))
    labels = pandas.Series(data.targets.numpy(), index=range(7, 47))
    run = sf.fit(small_net().float(), (frame, labels), plan, seed=1, progress=False)
    same = sf.fit(
        small_net().float(), (data.inputs.numpy(), data.targets.numpy()), plan, seed=1, progress=False
    )
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, same.model.state_dict()[name])
    with pytest.raises(InputError, match="columns of numbers"):
        sf.fit(small_net(), (frame.assign(name="text"), labels), plan, progress=False)


def test_secret_classes_that_were_read_from_the_rows_are_told_of() -> None:
    """Fails when Python trusts a data set's classes where the command line does not (tried)."""
    plan = plans.dp_sgd(noise_multiplier=3.0, population=40, batch_size=8, steps=1, delta=1e-3)
    read = replace(small_data(), classes_declared=False)
    with pytest.warns(PrivacyWarning, match="were read from its rows"):
        sf.fit(small_net(), read, plan, progress=False)
    zero_out = plan.changed(budget=replace(plan.budget, relation="zero-out"))
    sf.fit(small_net(), read, zero_out, progress=False)
