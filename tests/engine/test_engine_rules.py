"""Which rule each layer goes through, and that common layers never take a slow road."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import assert_matches, smooth_loss, targets_for
from engine_zoo import ZOO

from saltflat.engine import clipped_sum

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # of torch's own layer
SLOW = {"Bilinear", "custom function"}


@pytest.mark.parametrize("name", ZOO)
def test_a_layer_goes_through_its_rule(name: str) -> None:
    """Fails when the rule of a layer is not registered (tried with F.layer_norm and with torch.gru)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    rules = assert_matches(kind.build(), kind.inputs(7), dtypes=[torch.float64], micro_batches=[None])
    assert set(rules.values()) == kind.rules


@pytest.mark.parametrize("name", sorted(set(ZOO) - SLOW))
@pytest.mark.parametrize("micro_batch", [1, 2, None])
def test_a_common_layer_is_never_slow(name: str, micro_batch: int | None) -> None:
    """Whatever the micro-batch. Fails when OffTapeError is raised in a rule (tried in the recurrent one)."""
    torch.manual_seed(0)
    kind = ZOO[name]
    rows = 5
    found = clipped_sum(
        kind.build(),
        smooth_loss,
        kind.inputs(rows),
        targets_for(rows, torch.float32),
        1.0,
        micro_batch=micro_batch,
    )
    slow = {rule for rule in found.rules.values() if "torch.func" in rule or "example by example" in rule}
    assert not slow
