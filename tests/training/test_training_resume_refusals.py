"""Going on with a run with anything but what it was started with: refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_helpers import cut_off, fit
from torch import nn

import saltflat as sf
from core_helpers import COMMON, contents, small_data, small_net
from saltflat import plans
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.plan import Ema, Phase
from saltflat.record.checkpoint import Checkpoints
from saltflat.training import keep

# --- what differs is refused by name ------------------------------------------------------------------------


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


def faster_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.2)


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def single() -> nn.Module:
    return small_net().float()


def frozen() -> nn.Module:
    model = small_net()
    model[0].bias.requires_grad_(False)
    return model


PLAN = plans.dp_sgd(relation="zero-out", **COMMON)
DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "noise": ({"plan": PLAN.changed(phases=(Phase(10, 1.0, 2.0),))}, r"phases\[0\]\.noise_multiplier is 2.0, was 3.0"),
    "steps": ({"plan": PLAN.changed(phases=(Phase(11, 1.0, 3.0),))}, r"phases\[0\]\.steps is 11, was 10"),
    "a part": ({"plan": PLAN.changed(averaging=Ema())}, r"averaging\.kind is 'ema', was 'none'"),
    "layer": ({"model": wider}, r"model='0.bias: float64 \(6,\)'.*with 0.bias: float64 \(5,\)"),
    "precision": ({"model": single, "data": lambda: (small_data().inputs.float(), small_data().targets)},
                  r"float32 \(5,\)"),
    "frozen": ({"model": frozen}, "trainable="),
    "rows": ({"data": lambda: small_data(39)}, "data='39 rows'.*Expected 40 rows"),
    "optimizer": ({"optimizer": faster_adam}, r"optimizer=.*Adam at \[0.2\]"),
    "no optimizer": ({"optimizer": None}, 'optimizer="SGD'),
    "schedule": ({"schedule": "cosine"}, "schedule='cosine'.*Expected constant"),
    "loss": ({"loss_fn": lambda outputs, targets: outputs.square().mean(1)}, "loss_fn=.*Expected cross_entropy"),
    "seed": ({"seed": 3}, "seed=3.*the run is private"),
    "public": ({"public": Examples(small_data(9, 8).inputs, small_data(9, 8).targets, "public")},
               "public='[0-9a-f]{64}'"),
    "out too": ({"out": "elsewhere"}, "is given beside out='elsewhere'"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The data has")
@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_refused_by_name(case: str, tmp_path: Path) -> None:
    """And nothing in the folder changes. Fails when the setup is not compared (tried)."""
    cut_off(small_net(), PLAN, 4, out=tmp_path / "run", optimizer=adam)
    before = contents(tmp_path / "run")
    changes, words = DIFFERENT[case]
    options = {"optimizer": adam, "progress": False} | changes
    model, plan = options.pop("model", small_net)(), options.pop("plan", None)
    data = options.pop("data", small_data)()
    with pytest.raises(InputError, match=f"(?s){words}"):
        sf.fit(model, data, plan, resume=tmp_path / "run", **options)
    assert contents(tmp_path / "run") == before


def test_a_version_that_trains_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(small_net(), PLAN, 4, out=tmp_path / "run")
    monkeypatch.setattr(keep, "MEANING", keep.MEANING + 1)
    with pytest.raises(InputError, match=r"(?s)saltflat=.* trains differently.*pip install saltflat=="):
        fit(small_net(), None, resume=tmp_path / "run")


def test_a_secret_number_of_rows_is_stored_nowhere(tmp_path: Path) -> None:
    """Under add-remove the rows are not counted, so a resume cannot compare them."""
    plan = plans.dp_sgd(**COMMON)
    walk = sf.steps(small_net(), small_data(37), plan, out=tmp_path / "run")
    with pytest.warns(sf.PrivacyWarning, match="The data has 37 rows"):
        next(walk)
    walk.close()
    _, facts = Checkpoints(tmp_path / "run").read()
    assert facts["setup"]["data"] is None
    assert "37" not in json.dumps({k: v for k, v in facts.items() if k not in ("ledger_head", "seconds")})
    with pytest.warns(sf.PrivacyWarning, match="The data has 38 rows"):
        sf.fit(small_net(), small_data(38), resume=tmp_path / "run", progress=False)


@pytest.mark.parametrize("every", [-1, float("nan"), "often"])
def test_a_period_that_is_none_is_refused(every: Any) -> None:
    with pytest.raises(InputError, match="checkpoint_every="):
        fit(small_net(), PLAN, checkpoint_every=every)
