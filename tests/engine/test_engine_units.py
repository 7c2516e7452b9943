"""Units of several rows, weights of rows, displaced views: against explicit grouping."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from engine_helpers import Fn, distance, explicit, smooth_loss, targets_for
from engine_zoo import ZOO
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from core_helpers import bounded
from saltflat.engine import clipped_sum

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # of torch's own layer


def doubled(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("each", [2, 3])
def test_a_unit_of_several_rows_is_clipped_once(name: str, each: int) -> None:
    """Fails when rows are grouped across units (tried)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    model, inputs, targets = kind.build().double(), doubled(kind.inputs(12)), targets_for(12)
    weights = torch.linspace(0.1, 2.0, 12, dtype=torch.float64)
    _, norms = explicit(model, smooth_loss, inputs, targets, math.inf, each, weights)
    clip_norm = float(norms.median())
    expected, _ = explicit(model, smooth_loss, inputs, targets, clip_norm, each, weights)
    for micro_batch in (None, 3):
        found = clipped_sum(
            model,
            smooth_loss,
            inputs,
            targets,
            clip_norm,
            rows_per_unit=each,
            row_weights=weights,
            micro_batch=micro_batch,
        )
        assert distance(found.grads, expected) <= 1e-10
        torch.testing.assert_close(found.norms, norms)


@pytest.mark.parametrize("name", ZOO)
def test_units_of_several_rows_use_the_same_rules(name: str) -> None:
    """Fails when rows are counted as if each unit had one, which sends all units off the tape (tried)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    model, inputs, targets = kind.build(), kind.inputs(12), targets_for(12).float()
    single = clipped_sum(model, smooth_loss, inputs, targets, 1.0).rules
    assert clipped_sum(model, smooth_loss, inputs, targets, 1.0, rows_per_unit=3).rules == single


@bounded(20)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.floats(-2, 2), min_size=20, max_size=20),
    st.integers(1, 6),
)
def test_any_grouping_and_any_weights(each: int, units: int, numbers: list[float], micro_batch: int) -> None:
    """Zero weights, of rows that only fill up, too. Fails when weights are left out (tried)."""
    torch.manual_seed(0)
    rows = each * units
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, targets = torch.randn(rows, 4, dtype=torch.float64), targets_for(rows)
    weights = torch.tensor(numbers[:rows], dtype=torch.float64)
    expected, norms = explicit(model, smooth_loss, x, targets, 0.2, each, weights)
    found = clipped_sum(
        model, smooth_loss, x, targets, 0.2, rows_per_unit=each, row_weights=weights, micro_batch=micro_batch
    )
    assert distance(found.grads, expected) <= 1e-10
    torch.testing.assert_close(found.norms, norms)


def test_one_bad_row_silences_its_unit_and_no_other() -> None:
    """Fails when the unit's gradients are not silenced (tried)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(9, 2))
    x, targets = torch.randn(6, 2, 5), targets_for(6, torch.float32)
    rest = clipped_sum(model, smooth_loss, x[3:], targets[3:], 0.2, rows_per_unit=3)
    x[1] = math.nan
    found = clipped_sum(model, smooth_loss, x, targets, 0.2, rows_per_unit=3)
    assert distance(found.grads, rest.grads) < 1e-6


# --- views at displaced weights -----------------------------------------------------------------------


def moved(model: nn.Module, displacement: dict[str, Tensor]) -> nn.Module:
    import copy

    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.add_(displacement[name])
    return other


@pytest.mark.parametrize("name", ["Linear", "Conv2d", "re-used", "LSTM", "weight norm", "custom function"])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_each_view_sees_its_own_weights(name: str, micro_batch: int | None) -> None:
    """A unit's gradient is the sum over its views. Fails when the weights are not moved back (tried)."""
    torch.manual_seed(0)
    kind, views, each = ZOO[name], 2, 4
    model, inputs, targets = kind.build().double(), doubled(kind.inputs(12)), targets_for(12)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    displacements = [{n: 0.1 * torch.randn_like(p) for n, p in before.items()} for _ in range(views)]
    expected = {n: torch.zeros_like(p) for n, p in before.items()}
    clip_norm = 0.5
    for unit in range(3):
        total = {n: torch.zeros_like(p) for n, p in before.items()}
        for view, displacement in enumerate(displacements):
            rows = torch.arange(unit * each, (unit + 1) * each)[view::views]
            part, _ = explicit(
                moved(model, displacement), smooth_loss, inputs[rows], targets[rows], math.inf, len(rows)
            )
            total = {n: total[n] + part[n] for n in total}
        norm = math.sqrt(sum(float(v.square().sum()) for v in total.values()))
        expected = {n: expected[n] + min(1.0, clip_norm / norm) * total[n] for n in total}
    found = clipped_sum(
        model,
        smooth_loss,
        inputs,
        targets,
        clip_norm,
        rows_per_unit=each,
        displacements=displacements,
        micro_batch=micro_batch,
    )
    assert distance(found.grads, expected) < 1e-10
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_weights_are_put_back_after_an_error() -> None:
    """Fails when they are moved outside of a try (tried)."""
    torch.manual_seed(0)
    calls: list[int] = []

    def fragile(self: Any, x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return self.layer(x)

    model = Fn(fragile, layer=nn.Linear(4, 2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    displacements = [{name: torch.ones_like(p) for name, p in before.items()}] * 2
    with pytest.raises(RuntimeError, match="out of luck"):
        clipped_sum(
            model,
            smooth_loss,
            torch.randn(4, 4),
            torch.ones(4),
            1.0,
            rows_per_unit=2,
            displacements=displacements,
            check=False,
        )
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
