"""What a client does, beside plain torch; and many at once beside one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from federated_helpers import small_net, small_rows
from torch import Tensor, nn

from saltflat.data.people import Rows
from saltflat.federated.local import ASAM_LEAST, answer_to, updates
from saltflat.federated.protocol import Task
from saltflat.plan import LocalTraining, NoAscent, OwnGradient
from saltflat.training.losses import cross_entropy

LOCAL = LocalTraining(epochs=3, batch_size=100, learning_rate=0.2, momentum=0.5, weight_decay=0.01)


def task_of(model: nn.Module, local: LocalTraining = LOCAL, ascent: Any = None, **changes: Any) -> Task:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return Task(1, weights, local, ascent or NoAscent(), local.rate_in(1), 1.0, **changes)


def client(rows: int = 20, seed: int = 1) -> Rows:
    some = small_rows(rows, seed, torch.float64)
    return Rows(some.inputs, some.targets)


def reference(model: nn.Module, rows: Rows, local: LocalTraining, ascent: Any = None) -> dict[str, Tensor]:
    """The same in plain torch with its own SGD: all rows in one batch."""
    own = copy.deepcopy(model)
    start = [p.detach().clone() for p in own.parameters()]
    optimizer = torch.optim.SGD(
        own.parameters(), lr=local.learning_rate, momentum=local.momentum, weight_decay=local.weight_decay
    )
    for _ in range(local.epochs):
        moved = []
        if ascent is not None:
            grads = torch.autograd.grad(
                nn.functional.cross_entropy(own(rows.inputs), rows.targets), own.parameters()
            )
            sizes = [
                p.abs() + ASAM_LEAST if ascent.adaptive else torch.ones_like(p) for p in own.parameters()
            ]
            length = torch.sqrt(sum((g * t).square().sum() for g, t in zip(grads, sizes)))
            moved = [ascent.rho * t * t * g / length for g, t in zip(grads, sizes)]
        with torch.no_grad():
            for p, e in zip(own.parameters(), moved):
                p.add_(e)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(own(rows.inputs), rows.targets)
        if local.penalty:
            far = sum((p - s).square().sum() for p, s in zip(own.parameters(), start))
            loss = loss + local.penalty / 2 * torch.clamp(far - local.radius**2, min=0)
        loss.backward()
        with torch.no_grad():
            for p, e in zip(own.parameters(), moved):
                p.sub_(e)
        optimizer.step()
    return {n: p.detach() - s for (n, p), s in zip(own.named_parameters(), start)}


@pytest.mark.parametrize("ascent", [None, OwnGradient(0.3), OwnGradient(0.3, adaptive=True)], ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_local_training_is_that_of_torch(ascent: Any, count: int) -> None:
    """SGD, SAM and ASAM; alone, and stacked with others."""
    model = small_net(dtype=torch.float64)
    found = updates(model, task_of(model, ascent=ascent), [client()] * count, cross_entropy)
    wanted = reference(model, client(), LOCAL, ascent)
    for one in found:
        for name, part in wanted.items():
            assert torch.allclose(one[name], part, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("radius", [0.0, 0.05, 100.0])
def test_blur_is_the_gradient_of_its_term(radius: float) -> None:
    local = LocalTraining(epochs=4, batch_size=100, penalty=2.0, radius=radius)
    model = small_net(dtype=torch.float64)
    found = updates(model, task_of(model, local), [client()], cross_entropy)[0]
    wanted = reference(model, client(), local)
    assert all(torch.allclose(found[name], part, rtol=1e-9, atol=1e-12) for name, part in wanted.items())


def test_blur_keeps_updates_short() -> None:
    model = small_net(dtype=torch.float64)
    lengths = []
    for penalty in (0.0, 5.0):
        local = LocalTraining(epochs=30, penalty=penalty, radius=0.1)
        update = updates(model, task_of(model, local), [client()], cross_entropy)[0]
        lengths.append(float(torch.cat([p.flatten() for p in update.values()]).norm()))
    assert lengths[1] < 0.6 * lengths[0]


def test_clients_of_all_sizes_train_together_as_alone() -> None:
    """Padding, batches that end early and clients without rows change nothing. Order: one batch holds all."""
    model = small_net(dtype=torch.float64)
    sizes = [5, 0, 17, 1, 9]
    clients = [client(max(size, 1), seed) for seed, size in enumerate(sizes)]
    clients[1] = Rows(clients[1].inputs[:0], clients[1].targets[:0])
    together = updates(model, task_of(model, ascent=OwnGradient(0.1)), clients, cross_entropy)
    for rows, found in zip(clients, together):
        alone = updates(model, task_of(model, ascent=OwnGradient(0.1)), [rows], cross_entropy)[0]
        assert all(torch.allclose(found[name], part, rtol=1e-8, atol=1e-12) for name, part in alone.items())
    assert all(bool((part == 0).all()) for part in together[1].values())


def test_a_client_that_is_done_waits_and_keeps_its_momentum() -> None:
    """One has a batch an epoch, the other three: in every epoch the first must pause, and go on as it was."""
    model = small_net(dtype=torch.float64)
    local = LocalTraining(epochs=3, batch_size=6, momentum=0.9, weight_decay=0.1, penalty=1.0)
    short, long = client(6, 1), client(18, 2)
    together = updates(model, task_of(model, local), [short, long], cross_entropy)[0]
    alone = updates(model, task_of(model, local), [short], cross_entropy)[0]
    assert all(torch.allclose(together[name], part, rtol=1e-8, atol=1e-12) for name, part in alone.items())


def test_the_model_itself_is_not_changed() -> None:
    model = small_net(dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    updates(model, task_of(model), [client(), client()], cross_entropy)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_frozen_weights_stay_out_of_the_update() -> None:
    model = small_net(dtype=torch.float64)
    model[0].requires_grad_(False)
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    task = Task(1, weights, LOCAL, NoAscent(), 0.1, 1.0)
    assert sorted(updates(model, task, [client()], cross_entropy)[0]) == ["2.bias", "2.weight"]


def test_one_bad_client_leaves_its_neighbours_alone() -> None:
    model = small_net(dtype=torch.float64)
    bad = Rows(torch.full((20, 4), torch.nan, dtype=torch.float64), client().targets)
    found = updates(model, task_of(model), [client(), bad], cross_entropy)
    alone = updates(model, task_of(model), [client()], cross_entropy)[0]
    assert all(torch.allclose(found[0][name], part) for name, part in alone.items())
    assert all(bool(part.isnan().any()) for part in found[1].values())


def test_an_answer_keeps_the_mask_and_its_own_largest_entries() -> None:
    model = small_net()
    rows = small_rows(20)
    mask = {name: torch.rand(p.shape) < 0.5 for name, p in model.named_parameters()}
    update = answer_to(task_of(model, mask=mask), model, Rows(rows.inputs, rows.targets), cross_entropy)
    assert all(bool((update[name][~mask[name]] == 0).all()) for name in mask)
    own = answer_to(task_of(model, own=0.25), model, Rows(rows.inputs, rows.targets), cross_entropy)
    flat = torch.cat([part.flatten() for part in own.values()])
    assert int((flat != 0).sum()) == round(0.25 * flat.numel())


def test_the_rate_decays_over_rounds() -> None:
    local = LocalTraining(learning_rate=0.1, decay=0.0005)
    assert local.rate_in(1) == 0.1
    assert local.rate_in(201) == pytest.approx(0.1 * 0.9995**200)
