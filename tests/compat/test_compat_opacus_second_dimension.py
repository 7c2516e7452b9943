"""Examples in the second dimension: found where the loader and the model say so, clipped one by one, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from saltflat.compat.opacus import PrivacyEngine
from saltflat.compat.opacus.data_loader import DPDataLoader
from saltflat.compat.opacus.grad_sample import GradSampleModule
from saltflat.compat.opacus.layers import DPMultiheadAttention
from saltflat.compat.opacus.second_dimension import tell
from saltflat.errors import PrivacyWarning, RefusedError

LENGTH, ROWS, CLIP = 5, 12, 0.3


class Text(nn.Module):
    """Tokens as time x batch; the outputs have the batch first, as in a test of Opacus."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.attention = DPMultiheadAttention(8, 1)
        self.head = nn.Linear(8, 1)
        for p in self.parameters():
            nn.init.uniform_(p)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.head(self.attention(x, x, x)[0])
        return x.permute(1, 0, 2).reshape(x.shape[1], -1)


class Mixed(nn.Module):
    """Adds the mean over one dimension: mixes what is in it, and nothing else."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims, self.scale = dims, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        for dim in self.dims:
            x = x + x.mean(dim, keepdim=True)
        return (x * self.scale).transpose(0, 1)


def second(rows: list[Any]) -> Any:
    """Time x batch, and labels."""
    return torch.stack([x for x, _ in rows], dim=1), torch.stack([y for _, y in rows])


def made(model: nn.Module, data: Dataset[Any], collate: Any = second, **options: Any) -> Any:
    """Model, optimizer and a loader whose every batch holds all rows."""
    loader = DataLoader(data, batch_size=len(data), collate_fn=collate)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP} | options
    return PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader, **settings)


def tokens(rows: int = ROWS, length: int = LENGTH) -> TensorDataset:
    return TensorDataset(torch.randint(0, 11, (rows, length)), torch.randint(0, length, (rows,)))


def numbers(rows: int = ROWS, length: int = LENGTH) -> TensorDataset:
    return TensorDataset(torch.randn(rows, length), torch.randint(0, length, (rows,)))


@pytest.mark.parametrize("options", [{}, {"wrap_model": False}, {"grad_sample_mode": "functorch"}])
def test_each_person_is_clipped_where_the_loader_puts_them_second(options: dict[str, Any]) -> None:
    """The clipped sum is that over persons, by plain autograd. Over positions, as in Opacus, it is another."""
    torch.manual_seed(0)
    plain = Text().double()
    model = Text().double()
    model.load_state_dict(plain.state_dict())
    wrapped, optimizer, loader = made(model, tokens(), **options)
    called = model if options.get("wrap_model") is False else wrapped
    (x, y), = list(loader)  # fmt: skip
    assert x.shape == (LENGTH, ROWS)
    with pytest.warns(PrivacyWarning, match="batch_first=False is taken"):
        out = called(x)
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()

    expected, norms = [torch.zeros_like(p) for p in plain.parameters()], []
    for i in range(ROWS):
        loss = nn.functional.cross_entropy(plain(x[:, i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        norms.append(float(norm))
        for total, g in zip(expected, grads):
            total += g * min(1.0, CLIP / norms[-1])
    assert min(norms) < CLIP < max(norms)
    for p, total in zip(model.parameters(), expected):
        torch.testing.assert_close(p.summed_grad, total, rtol=1e-9, atol=1e-12)


def test_once_taken_it_stays_and_empty_batches_follow() -> None:
    torch.manual_seed(0)
    model, optimizer, loader = made(Text(), tokens())
    with pytest.warns(PrivacyWarning, match="second dimension"):
        model(next(iter(loader))[0])
    x, y = loader.collate_fn([])
    assert (x.shape, y.shape) == ((LENGTH, 0), (0,))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert model(next(iter(loader))[0]).shape == (ROWS, LENGTH)  # no second warning: warnings are errors here


@pytest.mark.parametrize(
    ("model", "data", "collate", "part"),
    [
        (Mixed(0), numbers(), None, slice(None)),  # rows first, mixed: features are no persons
        (Mixed(0), numbers(LENGTH), second, slice(None)),  # as many positions as persons
        (Mixed(0), numbers(), second, slice(0, 7)),  # not the batch that was drawn
        (Mixed(0, 1), numbers(), second, slice(None)),  # mixed in either dimension
    ],
)
def test_what_is_not_certain_is_refused(
    model: nn.Module, data: TensorDataset, collate: Any, part: slice
) -> None:
    """With ``t.shape[0] == count`` not asked for, or the model not, one of these trains."""
    private, _, loader = made(model, data, collate)
    x = next(iter(loader))[0][:, part]
    with pytest.raises(RefusedError, match="pass batch_first=False"):
        private(x)
    assert loader.collate_fn.batch_first


def test_features_as_many_as_the_rows_that_were_drawn_are_no_persons() -> None:
    """Rows first, and a part of them: the sizes alone would say that the examples are second."""
    private, _, loader = made(Mixed(0), numbers(ROWS, ROWS), None)
    x = next(iter(loader))[0][:LENGTH]
    assert x.shape == (LENGTH, ROWS)
    with pytest.raises(RefusedError, match="pass batch_first=False"):
        private(x)


def test_workers_cannot_tell() -> None:
    inside = DPDataLoader(numbers(), sample_rate=0.5, collate_fn=second)
    workers = DPDataLoader(numbers(), sample_rate=0.5, collate_fn=second, num_workers=1)
    for loader, asked in ((inside, True), (workers, False)):
        recorder = GradSampleModule(Mixed(0)).recorder
        assert recorder is not None
        before = recorder.rows_second
        tell(recorder, loader)
        assert (recorder.rows_second is not before) == asked


@pytest.mark.parametrize("seed", range(4))
def test_a_private_gradient_without_noise_is_the_ordinary_one(seed: int) -> None:
    """To 1e-7, as Opacus asks. With the outputs of units that ran alone, entries differ by three times as much."""
    torch.manual_seed(seed)
    plain = Text()
    model = Text()
    model.load_state_dict(plain.state_dict())
    x, y = torch.randint(0, 11, (12, 64)), torch.randint(0, 12, (64,))
    wrapped = GradSampleModule(model, batch_first=False)
    nn.functional.cross_entropy(plain(x), y).backward()
    out = wrapped(x)
    assert torch.equal(out, plain(x))
    nn.functional.cross_entropy(out, y).backward()
    for p, q in zip(plain.parameters(), model.parameters()):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-7)


def test_units_that_a_model_would_mix_are_shown_their_own_outputs() -> None:
    """Outputs of one run of all units would carry the numbers of the others into each unit's loss."""
    model = GradSampleModule(Mixed(1), batch_first=False)
    x = torch.randn(LENGTH, 4)
    out = model(x)
    torch.testing.assert_close(out, 2 * x.transpose(0, 1))  # the mean of one unit is itself
    assert not torch.allclose(out, model._module(x))


def test_draws_of_the_outputs_are_those_of_the_gradients() -> None:
    """With another run's mask in the outputs, gradient and output part company."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x * self.scale, 0.5).transpose(0, 1)

    torch.manual_seed(0)
    model = GradSampleModule(Dropped(), batch_first=False, loss_reduction="sum")
    out = model(torch.randn(LENGTH, 6))
    out.sum().backward()
    torch.testing.assert_close(model._module.scale.grad_sample, out.sum(1).detach())
