"""Products in shares of rows: the same numbers, whatever the rows, the threads and the precision."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from saltflat.engine import shares
from saltflat.engine.clipped_sum import clipped_sum


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("few_columns", [False, True])
@settings(deadline=None, max_examples=20)
@given(
    threads=st.integers(1, 3), extra=st.integers(0, 5), narrow=st.integers(1, 20), double=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_same_products(
    few_columns: bool, threads: int, extra: int, narrow: int, double: bool, seed: int
) -> None:
    """Whichever way round this machine multiplies faster."""
    torch.set_num_threads(threads)
    with mock.patch.object(shares, "_prefers_few_columns", return_value=few_columns):
        check_products(extra, narrow, double, seed)


def check_products(extra: int, narrow: int, double: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype, rows, wide = torch.float64 if double else torch.float32, 64 + extra, shares.LARGE // 64
    x = torch.randn(rows, wide, generator=generator, dtype=dtype)
    weight = torch.randn(narrow, wide, generator=generator, dtype=dtype)
    bias = torch.randn(narrow, generator=generator, dtype=dtype)
    side = torch.randn(rows, narrow, generator=generator, dtype=dtype)
    exact, exact_sum = x.double() @ weight.double().T, side.double().T @ x.double()
    close = {"rtol": 1e-12, "atol": 1e-10} if double else {"rtol": 1e-4, "atol": 1e-3}
    for out, wanted in (
        (shares.few_outputs(x, weight, bias), exact + bias),
        (shares.few_outputs(x, weight, None), exact),
        (shares.summed_products(side, x), exact_sum),
        (shares.summed_products(x, side), exact_sum.T),
    ):
        torch.testing.assert_close(out.double(), wanted.double(), **close)
    assert shares.few_outputs(x, weight, None)._base is None


def test_shares_are_for_large_narrow_products_and_several_threads() -> None:
    cpu = torch.empty(0)
    torch.set_num_threads(2)
    assert shares.shares_of(256, 10, 4096, cpu) == 2
    assert shares.shares_of(256, 10, 64, cpu) == 1  # small
    assert shares.shares_of(256, 17, 4096, cpu) == 1  # not narrow
    assert shares.shares_of(15, 10, 1 << 20, cpu) == 1  # few rows
    torch.set_num_threads(1)
    assert shares.shares_of(256, 10, 4096, cpu) == 1


@pytest.mark.parametrize("rows", [64, 67])
def test_clipped_sum_in_shares(rows: int) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = nn.Linear(shares.LARGE // 64, 10).double()
    x, y = torch.randn(rows, model.in_features, dtype=torch.float64), torch.randint(0, 10, (rows,))
    loss = nn.CrossEntropyLoss(reduction="none")
    found = clipped_sum(model, loss, x, y, clip_norm=1.0)
    total = torch.zeros_like(model.weight)
    for i in range(rows):
        grads = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]).sum(), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        total += grads[0] * min(1.0, 1.0 / float(norm))
    torch.testing.assert_close(found.grads["weight"], total, rtol=1e-10, atol=1e-12)
