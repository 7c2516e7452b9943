"""Rows out of the order of the units: found while training, not only by the probe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_helpers import Fn, distance, explicit, smooth_loss, targets_for
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from core_helpers import bounded
from saltflat.engine import clipped_sum

STEPS = 7


def by_mask(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Only the real tokens go through the layer."""
    real = torch.arange(STEPS) < lengths[:, None]
    out = x.new_zeros(len(x), STEPS, 3)
    out[real] = self.layer(x[real])
    return out


def by_masked_select(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    real = (torch.arange(STEPS) < lengths[:, None])[:, :, None]
    picked = self.layer(x.masked_select(real).view(-1, x.shape[-1]))
    return x.new_zeros(len(x), STEPS, 3).masked_scatter(real.expand(-1, -1, 3), picked)


def by_nonzero(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    row, step = (torch.arange(STEPS) < lengths[:, None]).nonzero(as_tuple=True)
    out = x.new_zeros(len(x), STEPS, 3)
    out[row, step] = self.layer(x[row, step])
    return out


def by_list(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Lengths leave torch: what is ragged is seen by the number of rows alone."""
    pieces = [row[:n] for row, n in zip(x, lengths.tolist())]
    done = self.layer(torch.cat(pieces)).split(lengths.tolist())
    return torch.stack([nn.functional.pad(piece, (0, 0, 0, STEPS - len(piece))) for piece in done])


def by_packing(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    done = packed._replace(data=self.layer(packed.data))
    return nn.utils.rnn.pad_packed_sequence(done, batch_first=True, total_length=STEPS)[0]


def sorted_by_length(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort(descending=True, stable=True)
    done = self.layer(x[order] * lengths[order, None, None])
    return done[order.argsort()]


def sorted_by_index_select(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort(stable=True)
    return self.layer(x.index_select(0, order)).index_select(0, order.argsort())


def sorted_by_gather(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort(stable=True)
    done = self.layer(x.gather(0, order[:, None, None].expand_as(x)))
    return torch.empty_like(done).index_copy(0, order, done)


def sent_to_experts(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    long = lengths > 2
    out = x.new_zeros(len(x), STEPS, 3)
    out[long], out[~long] = self.layer(x[long]), self.other(x[~long])
    return out


MODELS = [
    by_mask, by_masked_select, by_nonzero, by_list, by_packing, sorted_by_length, sorted_by_index_select,
    sorted_by_gather, sent_to_experts,
]  # fmt: skip


@pytest.mark.parametrize("function", MODELS, ids=lambda f: f.__name__)
def test_rows_are_never_given_to_the_wrong_unit(function: Any) -> None:
    """The first batch is in order and fools the probe; the second is ragged, with as many tokens in all, and
    out of order.

    Fails when rows are told apart by their number alone (tried: all but the list and the experts). What is
    ragged by lengths that left torch is told by that number; it fails when the number of rows a unit has is
    not compared with the probe's (tried: list).
    """
    torch.manual_seed(0)
    model = Fn(function, layer=nn.Linear(5, 3), other=nn.Linear(5, 3)).double()
    x, targets = torch.randn(8, STEPS, 5, dtype=torch.float64), targets_for(8)
    first = STEPS if function is by_list else 2
    for lengths in (torch.full((8,), first), torch.tensor([1, 4, 1, 2, 3, 1, 3, 1])):
        expected, norms = explicit(model, smooth_loss, (x, lengths), targets, 0.3)
        for micro_batch in (8, 4, 3, 1):
            found = clipped_sum(model, smooth_loss, (x, lengths), targets, 0.3, micro_batch=micro_batch)
            assert distance(found.grads, expected) < 1e-10, (lengths, micro_batch, found.rules)
            torch.testing.assert_close(found.norms, norms)


@bounded(25)
@given(st.lists(st.integers(1, STEPS), min_size=8, max_size=8), st.sampled_from(MODELS[:5]))
def test_any_lengths(lengths: list[int], function: Any) -> None:
    """The same for lengths in general (fails as the test above does)."""
    torch.manual_seed(0)
    model = Fn(function, layer=nn.Linear(5, 3)).double()
    x, targets = torch.randn(8, STEPS, 5, dtype=torch.float64), targets_for(8)
    clipped_sum(model, smooth_loss, (x, torch.full((8,), STEPS)), targets, 0.3)
    inputs = (x, torch.tensor(lengths))
    expected, _ = explicit(model, smooth_loss, inputs, targets, 0.3)
    found = clipped_sum(model, smooth_loss, inputs, targets, 0.3, micro_batch=8)
    assert distance(found.grads, expected) < 1e-10


def _table_by_row(self: Any, x: Tensor, n: Tensor) -> Tensor:
    table = torch.linspace(0, 1, 25, dtype=x.dtype).view(5, 5)
    return self.layer(x + table[n][:, None])


def _padding_set_to_zero(self: Any, x: Tensor, n: Tensor) -> Tensor:
    padding = torch.arange(STEPS) >= n[:, None]
    return self.layer(x.masked_fill(padding[:, :, None], 0))


def _values_set_by_a_mask(self: Any, x: Tensor, n: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] = 1.0
    return self.layer(y)


IN_ORDER = {
    "the last token": lambda self, x, n: self.layer(x[torch.arange(len(x)), n - 1]),
    "a token by gather": lambda self, x, n: self.layer(x.gather(1, (n - 1)[:, None, None].expand(-1, 1, 5))),
    "some features": lambda self, x, n: self.layer(x[:, :, torch.tensor([0, 1, 2, 3, 4])]),
    "a full mask": lambda self, x, n: self.layer(x[n[:, None].expand(-1, STEPS) > 0]).view(len(x), STEPS, 3),
    "the same rows in their order": lambda self, x, n: self.layer(x[torch.arange(len(x))]),
    "padding set to zero": _padding_set_to_zero,
    "a table by row": _table_by_row,
    "values set by a mask": _values_set_by_a_mask,
}


@pytest.mark.parametrize("how", IN_ORDER)
def test_what_keeps_the_order_stays_fast(how: str) -> None:
    """Fails when every index is distrusted (tried)."""
    torch.manual_seed(0)
    model = Fn(IN_ORDER[how], layer=nn.Linear(5, 3)).double()
    inputs = torch.randn(8, STEPS, 5, dtype=torch.float64), torch.tensor([1, 4, 1, 2, 3, 1, 3, 1])
    found = clipped_sum(model, smooth_loss, inputs, targets_for(8), 0.3)
    expected, _ = explicit(model, smooth_loss, inputs, targets_for(8), 0.3)
    assert distance(found.grads, expected) < 1e-10
    assert set(found.rules.values()) == {"linear"}
