"""Several micro-batches at once: the same sums, whatever a model does with itself in the meantime."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine_helpers import Fn, distance, explicit, length, smooth_loss, targets_for
from torch import Tensor, nn

import saltflat.engine.clipped_sum  # noqa: F401  (the module, which the function of its name hides)
from saltflat.engine import batch, clipped_sum, lanes

ENGINE = __import__("sys").modules["saltflat.engine.clipped_sum"]
ROWS = 23


@pytest.fixture(autouse=True)
def three_lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three threads, and lanes also for small batches."""
    monkeypatch.setattr(batch, "WORTH_LANES", 0)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lanes were opened, each time."""
    found: list[int] = []
    run = lanes.run

    def counted(tasks: Any) -> Any:
        found.append(len(tasks))
        return run(tasks)

    monkeypatch.setattr(lanes, "run", counted)
    return found


def small_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.SELU(), nn.Flatten(), nn.Linear(96, 4)]
    return nn.Sequential(*layers)


def images(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 2, 4, 4, generator=torch.Generator().manual_seed(1)), targets_for(
        rows, torch.float32
    )


def assert_right(model: nn.Module, **options: Any) -> None:
    x, targets = images()
    sums, norms = explicit(model, smooth_loss, x, targets, 0.3)
    for _ in range(2):
        found = clipped_sum(model, smooth_loss, x, targets, 0.3, **options)
        assert distance(found.grads, sums) <= 1e-5 * max(length(sums), 0.3)
        assert torch.allclose(found.norms.double(), norms, rtol=1e-5)


@pytest.mark.parametrize("micro_batch", [None, 1, 2, 3, 7, 100])
def test_lanes_give_the_same_sum_and_the_norms_in_order(micro_batch: int | None, opened: list[int]) -> None:
    """For any micro-batch. Fails when a lane's part is left out, or the norms come lane by lane."""
    assert_right(small_net(), micro_batch=micro_batch)
    assert opened[-1:] == ([] if micro_batch == 1 else [min(3, micro_batch or 3)])


@pytest.mark.parametrize(("worth", "expected"), [(700, [3]), (850, [])])
def test_lanes_are_worth_their_while_by_activations_too(
    worth: int, expected: list[int], opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit holds 64 bytes of records here, biases alone, and half its activations are 798.

    Fails when records alone count (tried), or rows with the memory of their whole batch (tried).
    """
    model, (x, targets) = small_net(), images()
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    monkeypatch.setattr(batch, "WORTH_LANES", worth * ROWS)
    clipped_sum(model, smooth_loss, x, targets, 0.3)
    assert opened == expected


def test_lanes_add_up_in_a_fixed_order() -> None:
    """Whichever thread is faster, the bits are the same."""
    model, (x, targets) = small_net(), images()
    clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=6)
    first, *others = [clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=6) for _ in range(8)]
    for other in others:
        assert all(torch.equal(first.grads[name], other.grads[name]) for name in first.grads)


def slow_after(seconds: float = 0.002) -> None:
    time.sleep(seconds)  # lets another lane come in between


def test_a_model_that_keeps_something_on_itself_is_not_mixed_up(opened: list[int]) -> None:
    """Every lane has a model of its own. Fails when the lanes share the model: the tape sees it."""

    def net(self: Any, x: Tensor) -> Tensor:
        self.kept = self.first(x.flatten(1))
        slow_after()
        return self.second(torch.tanh(self.kept))

    torch.manual_seed(0)
    assert_right(Fn(net, first=nn.Linear(32, 5), second=nn.Linear(5, 3)), micro_batch=6)
    assert opened == [3, 3]


def test_rows_that_reach_another_lane_are_noticed(opened: list[int]) -> None:
    """Through a variable that no copy can part: one lane then. Fails when the tape does not look."""
    shared: dict[str, Tensor] = {}
    entered = threading.Lock()

    def net(self: Any, x: Tensor) -> Tensor:
        with entered:
            shared["kept"] = self.first(x.flatten(1))
        slow_after(0.01)
        return self.second(torch.tanh(shared["kept"]))

    torch.manual_seed(0)
    assert_right(Fn(net, first=nn.Linear(32, 5), second=nn.Linear(5, 3)), micro_batch=6)
    assert opened == [3]  # once, and never again for this model


def test_a_model_that_draws_keeps_to_one_lane(opened: list[int]) -> None:
    """Its draws would fall to the lanes by chance, and a seed would repeat nothing."""
    model, (x, targets) = nn.Sequential(small_net(), nn.Dropout(0.5)), images()
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        results.append(clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=6, check=False).norms)
    assert torch.equal(*results)
    assert not opened


def test_a_model_that_cannot_be_copied_keeps_to_one_lane(opened: list[int]) -> None:
    model = small_net()
    model.lock = threading.Lock()  # type: ignore[assignment]
    assert_right(model, micro_batch=6)
    assert not opened


def test_displaced_weights_are_each_lanes_own(opened: list[int]) -> None:
    """Two lanes that moved the same weights would disturb one another."""
    model, (x, targets) = small_net(), images()
    assert_right(model, micro_batch=6)
    opened.clear()
    views = [{name: 0.1 * torch.ones_like(p) for name, p in model.named_parameters()}] * 2
    twice = x.repeat_interleave(2, 0), targets.repeat_interleave(2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(2):  # the first call learns about the model, in one lane
        found = clipped_sum(
            model, smooth_loss, *twice, 0.3, rows_per_unit=2, displacements=views, micro_batch=6
        )
    assert opened
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    sums, _ = explicit(model, smooth_loss, *twice, 0.3, rows_per_unit=2)
    assert distance(found.grads, sums) <= 1e-5 * max(length(sums), 0.3)


def test_settings_of_the_calling_thread_keep_to_one_lane(opened: list[int]) -> None:
    """They would not reach the lanes."""
    model, (x, targets) = small_net(), images()
    clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=6)
    opened.clear()
    with torch.autocast("cpu", torch.bfloat16):
        clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=6)
    assert not opened


def test_an_error_in_a_lane_reaches_the_caller() -> None:
    model, (x, targets) = small_net(), images()
    clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=6)

    def failing(outputs: Tensor, goals: Tensor) -> Tensor:
        if bool((goals == targets[-1]).any()):
            raise ValueError("of the last row")
        return smooth_loss(outputs, goals)

    with pytest.raises(ValueError, match="of the last row"):
        clipped_sum(model, failing, x, targets, 0.3, micro_batch=6, check=False)


def test_the_threads_of_torch_are_as_before() -> None:
    """In this thread and in new ones; in a lane there is one."""
    inside: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        inside.append(torch.get_num_threads())
        return smooth_loss(outputs, targets)

    model, (x, targets) = small_net(), images()
    for _ in range(2):
        clipped_sum(model, loss, x, targets, 0.3, micro_batch=6, check=False)
    assert set(inside[-3:]) == {1}
    elsewhere: list[int] = []
    thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), elsewhere) == (3, [3])
