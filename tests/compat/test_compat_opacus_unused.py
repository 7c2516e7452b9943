"""Trainable weights that no gradient reaches are named before anything of them is released."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compat_helpers import made_private, rows_for, train
from torch import Tensor, nn

from saltflat.compat.opacus import BatchMemoryManager

pytestmark = pytest.mark.filterwarnings("ignore:poisson_sampling=False")


class CutOff(nn.Module):
    """A body, cut off from its head or not."""

    def __init__(self, cut: bool = True) -> None:
        super().__init__()
        self.body, self.head, self.cut = nn.Linear(5, 4), nn.Linear(4, 3), cut

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden.detach() if self.cut else hidden)


class TwoHeads(nn.Module):
    """The loop below asks one head only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden), self.other(hidden)


def made(model: Callable[[], nn.Module], **changes: Any) -> SimpleNamespace:
    return made_private(model=model, data=rows_for("linear"), **{"poisson_sampling": False} | changes)


def doubts(made: SimpleNamespace) -> list[str]:
    return made.engine.certificate(1e-3)["doubts"]


@pytest.mark.parametrize("changes", [
    {}, {"grad_sample_mode": "ghost"}, {"wrap_model": False}, {"clipping": "per_layer", "max_grad_norm": [1.0] * 4},
    {"method": "dp-sat"},
])  # fmt: skip
def test_a_body_that_is_cut_off_is_named(changes: dict[str, Any]) -> None:
    """Failed before there was a check: training went on without a word."""
    cut = made(CutOff, **changes)
    model = cut.plain if "wrap_model" in changes else cut.module
    with pytest.warns(
        UserWarning, match=r"No gradient reaches body\.weight, body\.bias: .*requires_grad_\(False\)"
    ):
        train(cut, steps=1, call=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(cut, steps=2, call=model)  # it is said once
    assert doubts(cut) == [
        "no gradient reached body.weight, body.bias in the first batch: noise alone moves them"
    ]


def test_examples_in_the_second_dimension() -> None:
    """Here each example is run on its own, and its uses are found in another way."""

    class Steps(CutOff):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(0, keepdim=True)

    x, y = torch.randn(6, 24, 5), torch.randint(0, 3, (24,))
    cut = made(Steps, batch_first=False)
    nn.CrossEntropyLoss()(cut.module(x)[0], y).backward()
    with pytest.warns(UserWarning, match="body.weight, body.bias"):
        cut.optimizer.step()


def test_a_head_that_no_loss_asks() -> None:
    made_two = made(TwoHeads)
    with pytest.warns(UserWarning, match=r"No gradient reaches other\.weight, other\.bias:"):
        train(made_two, call=lambda x: made_two.module(x)[0])
    assert "other.weight, other.bias" in doubts(made_two)[0]


def test_gradients_of_zero_are_gradients() -> None:
    """The batch decides nothing: rows of zeros leave a gradient of zero, which is a use all the same."""
    whole = made_private(
        model=lambda: CutOff(cut=False),
        data=(torch.zeros(24, 5), torch.zeros(24).long()),
        poisson_sampling=False,
    )
    nn.init.zeros_(whole.plain.head.weight)
    train(whole)
    assert doubts(whole) == []


def test_an_empty_first_batch_says_nothing() -> None:
    cut = made(CutOff)
    x, y = rows_for("linear")
    criterion = nn.CrossEntropyLoss(reduction="sum")
    criterion(cut.module(x[:0]), y[:0]).backward()
    cut.optimizer.step()
    assert doubts(cut) == []
    cut.optimizer.zero_grad()
    criterion(cut.module(x), y).backward()
    with pytest.warns(UserWarning, match="body.weight"):
        cut.optimizer.step()


def test_all_parts_of_a_batch_are_waited_for() -> None:
    """A logical batch is one release: what its second part uses is used."""
    two = made(TwoHeads, batch_size=24)
    calls = iter([0, 1])
    with BatchMemoryManager(
        data_loader=two.loader, max_physical_batch_size=12, optimizer=two.optimizer
    ) as loader:
        train(two, loader=loader, call=lambda x: two.module(x)[next(calls)])
    assert doubts(two) == []


def test_frozen_weights_are_not_named() -> None:
    def frozen() -> nn.Module:
        model = CutOff()
        model.body.requires_grad_(False)
        return model

    part = made(frozen)
    train(part)
    assert doubts(part) == []
