"""Poisson batches, empty ones too, and large batches in small parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compat_helpers import assert_same, made_private, rows_for, train, weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from saltflat.compat.opacus import BatchMemoryManager, DPDataLoader
from saltflat.compat.opacus.data_loader import CollateFnWithEmpty
from saltflat.compat.opacus.utils.uniform_sampler import UniformWithReplacementSampler
from saltflat.errors import PrivacyWarning
from saltflat.mechanism.streams import CryptographicStream

pytestmark = pytest.mark.filterwarnings("ignore:poisson_sampling=False")


@pytest.mark.statistical
@pytest.mark.parametrize("secure", [False, True])
def test_batch_sizes_are_binomial(secure: bool) -> None:
    """400 batches of 500 rows at 0.1: mean 50 ± 6 deviations of the mean, variance 45 within a third."""
    source: Any = CryptographicStream.from_seed(1, "sampling") if secure else torch.Generator().manual_seed(1)
    sampler = UniformWithReplacementSampler(num_samples=500, sample_rate=0.1, generator=source, steps=400)
    sizes = torch.tensor([len(batch) for batch in sampler], dtype=torch.float64)
    assert abs(sizes.mean().item() - 50) < 6 * (45 / 400) ** 0.5
    assert 30 < sizes.var().item() < 60
    assert sampler.drawn == 400


def test_the_number_of_batches_stays() -> None:
    """1/(1/n) is a little below n for some n. Should fail with int() in the place of round()."""
    for batches in range(1, 200):
        data = TensorDataset(torch.zeros(batches, 1))
        assert len(DPDataLoader.from_data_loader(DataLoader(data, batch_size=1))) == batches


@pytest.mark.parametrize("name", ["linear", "convolution", "tied"])
def test_empty_batches_release_noise(name: str) -> None:
    made = made_private(name=name, rows=4, batch_size=1, noise_multiplier=1.0)
    torch.manual_seed(3)
    sizes = []
    for _ in range(6):
        for x, y in made.loader:
            sizes.append(len(x))
            before = weights(made.module)
            made.optimizer.zero_grad()
            nn.CrossEntropyLoss()(made.module(x), y).backward()
            made.optimizer.step()
            after = weights(made.module)
            assert all(torch.isfinite(w).all() and not torch.equal(w, before[n]) for n, w in after.items())
    assert 0 in sizes
    assert made.engine.accountant.history == [(1.0, 0.25, 24)]


def test_a_model_that_cannot_take_no_rows_meets_none() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 0:
                raise RuntimeError("no rows")
            return self.layer(x)

    made = made_private(model=Picky, rows=4, batch_size=1, noise_multiplier=1.0)
    torch.manual_seed(3)
    train(made, epochs=6)
    assert made.engine.accountant.history == [(1.0, 0.25, 24)]


def test_an_empty_first_batch_has_the_form_of_the_data() -> None:
    data = [{"x": torch.ones(3), "y": 1.5, "z": (torch.zeros(2, 2), 7)} for _ in range(5)]
    loader = DPDataLoader(data, sample_rate=1e-9)
    batch = next(iter(loader))
    assert batch["x"].shape == (0, 3)
    assert batch["y"].shape == (0,)
    assert batch["y"].dtype == torch.float64
    assert batch["z"][0].shape == (0, 2, 2)


def test_collating_nothing() -> None:
    collate = CollateFnWithEmpty(lambda rows: torch.stack(rows), rand_on_empty=True)
    assert collate([torch.ones(3)] * 2).shape == (2, 3)
    drawn = collate([])
    assert drawn.shape == (1, 3)
    assert ((drawn == 0) | (drawn == 1)).all()
    second = CollateFnWithEmpty(lambda rows: torch.stack(rows, dim=1), batch_first=False)
    second([torch.ones(4)] * 2)
    assert second([]).shape == (4, 0)
    unknown = CollateFnWithEmpty(lambda rows: object())
    unknown([1])
    with pytest.raises(TypeError, match="Unsupported batch type"):
        unknown([])


def test_a_weighted_sampler_is_not_replaced_in_silence() -> None:
    x, y = rows_for("linear", 8)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, sampler=WeightedRandomSampler([1.0] * 8, 8))
    with pytest.warns(PrivacyWarning, match="WeightedRandomSampler is replaced"):
        DPDataLoader.from_data_loader(loader)


# --- virtual steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("workers", [0, 2])
def test_small_parts_equal_one_large_batch(mode: str, workers: int) -> None:
    """Should fail when noise is drawn for each part."""
    options: dict[str, Any] = {"grad_sample_mode": mode, "poisson_sampling": False, "noise_multiplier": 1.0}
    whole, parts = made_private(**options), made_private(**options)
    torch.manual_seed(8)
    train(whole, epochs=2)
    torch.manual_seed(8)
    with BatchMemoryManager(
        data_loader=parts.loader, max_physical_batch_size=3, optimizer=parts.optimizer
    ) as loader:
        assert len(loader) == 8
        for _ in range(2):
            for x, _y in (seen := list(loader)):
                assert len(x) <= 3
            parts.optimizer._step_skip_queue.clear()
            assert len(seen) == 9
    # The loop itself, with batches as they come; draws of workers' seeds must not move the noise.
    parts = made_private(**options)
    generator = torch.Generator().manual_seed(4)
    whole = made_private(**options | {"noise_generator": torch.Generator().manual_seed(4)})
    parts = made_private(**options | {"noise_generator": generator})
    train(whole, epochs=2)
    with BatchMemoryManager(
        data_loader=parts.loader, max_physical_batch_size=3, optimizer=parts.optimizer
    ) as loader:
        train(parts, epochs=2, loader=loader)
    assert_same(weights(parts.module), weights(whole.module), atol=1e-5, rtol=1e-4)
    assert parts.engine.accountant.history == whole.engine.accountant.history


def test_parts_of_poisson_batches() -> None:
    made = made_private(rows=60, batch_size=20, noise_multiplier=1.0)
    with BatchMemoryManager(
        data_loader=made.loader, max_physical_batch_size=4, optimizer=made.optimizer
    ) as loader:
        train(made, epochs=2, loader=loader)
    assert made.engine.accountant.history == [(1.0, 1 / 3, 6)]


def test_half_a_batch_is_never_released() -> None:
    made = made_private(rows=24, batch_size=12, poisson_sampling=False)
    before = weights(made.module)
    with BatchMemoryManager(
        data_loader=made.loader, max_physical_batch_size=4, optimizer=made.optimizer
    ) as loader:
        train(made, loader=loader, steps=2)
    assert_same(weights(made.module), before, atol=0, rtol=0)
    train(made, steps=1)
    reference = made_private(rows=24, batch_size=12, poisson_sampling=False)
    train(reference, steps=1)
    assert_same(weights(made.module), weights(reference.module), atol=1e-6, rtol=1e-5)
