"""Warm-up on public data: against an explicit reference, with its augmentations, and never on private rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from public_helpers import small_public
from torch import Tensor, nn

from core_helpers import small_data, small_net, weights_of
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.methods.multiplicity import AUGMENTATIONS, auto, cutmix
from saltflat.public import WarmUp, declared, joined, warm_up
from saltflat.record.canonical import DamagedError

SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 7,
    "learning_rate": 0.2,
    "weight_decay": 0.01,
    "seed": 5,
}


@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
def test_it_is_sgd_or_sam_with_a_cosine_written_out(optimizer: Any) -> None:
    """Meant to fail when the decay is taken at the displaced weights, or the rate falls once an epoch."""
    public, model, hand = small_public(), small_net(), small_net()
    warm_up(model, public, settings=WarmUp(optimizer, rho=0.3, **SETTINGS))
    weights = list(hand.parameters())
    velocity = [torch.zeros_like(w) for w in weights]
    order, step = torch.Generator().manual_seed(5), 0

    def gradient(rows: Tensor) -> list[Tensor]:
        loss = nn.functional.cross_entropy(hand(public.inputs[rows]), public.targets[rows])
        return list(torch.autograd.grad(loss, weights))

    for _ in range(3):
        for rows in torch.randperm(24, generator=order).split(7):
            found = gradient(rows)
            if optimizer == "sam":
                length = math.sqrt(sum(float(g.square().sum()) for g in found))
                before = weights_of(hand)
                with torch.no_grad():
                    for w, g in zip(weights, found):
                        w.add_(g, alpha=0.3 / length)
                found = gradient(rows)
                with torch.no_grad():
                    for w, b in zip(weights, before):
                        w.copy_(b)
            rate = 0.2 * 0.5 * (1 + math.cos(math.pi * step / 12))
            with torch.no_grad():
                for w, v, g in zip(weights, velocity, found):
                    v.mul_(0.9).add_(g + 0.01 * w)
                    w.sub_(v, alpha=rate)
            step += 1
    for ours, theirs in zip(model.parameters(), weights):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(next(iter(model.parameters())), next(iter(small_net().parameters())), atol=1e-3)


def test_sam_without_radius_is_sgd() -> None:
    """Bit for bit."""
    one, two = small_net(), small_net()
    warm_up(one, small_public(), settings=WarmUp("sam", rho=0.0, **SETTINGS))
    warm_up(two, small_public(), settings=WarmUp("sgd", **SETTINGS))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))


def test_it_learns_and_says_what_it_saw() -> None:
    done = warm_up(small_net(), small_public(), settings=WarmUp(**SETTINGS | {"epochs": 30}))
    assert done.losses[-1] < 0.7 * done.losses[0]
    (entry,) = done.public
    assert (entry["used"], entry["declared_by"], entry["rows"]) == ("warm-up", "the tests", 24)


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    warm_up(small_net_of_dropout(), small_public(), settings=WarmUp(**SETTINGS))
    assert torch.equal(torch.rand(3), expected)


def small_net_of_dropout() -> nn.Module:
    with torch.random.fork_rng():
        return nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3)).double()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (small_data(), "marked private"),
        ((torch.zeros(3, 4), torch.zeros(3)), "says nothing"),
        (joined(small_public(), small_data()), "marked private"),
    ],
)
def test_rows_that_nobody_declared_public_are_refused(data: Any, words: str) -> None:
    before = weights_of(model := small_net())
    with pytest.raises(InputError, match=words):
        warm_up(model, data)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(model), before))


@pytest.mark.parametrize(
    "wrong",
    [{"optimizer": "adam"}, {"epochs": 0}, {"rho": -1.0}, {"augmentations": "blur"}, {"learning_rate": 0.0}],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        WarmUp(**wrong)


def test_augmentations_need_images() -> None:
    with pytest.raises(InputError, match="images of shape"):
        warm_up(small_net(), small_public(), settings=WarmUp(augmentations="flip", **SETTINGS))


# --- augmentations ----------------------------------------------------------------------------------------


def images(rows: int = 64, channels: int = 3) -> Tensor:
    return torch.rand(rows, channels, 12, 12, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentations_keep_images_images(name: str, channels: int) -> None:
    """Same shape and type, values in [0, 1], most rows changed, and each row on its own."""
    before = images(channels=channels)
    kept = before.clone()
    after = AUGMENTATIONS[name](before, torch.Generator().manual_seed(0))
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    assert torch.equal(before, kept), "changed in place"
    assert float(after.min()) >= -1e-6
    assert float(after.max()) <= 1 + 1e-6
    changed = (after != before).flatten(1).any(1).float().mean()
    assert float(changed) > 0.3
    again = AUGMENTATIONS[name](before, torch.Generator().manual_seed(0))
    assert torch.equal(after, again)


def test_the_policy_draws_for_each_row_and_uses_all_its_operations() -> None:
    """The same image in every row becomes many different ones."""
    one = images(1).expand(200, -1, -1, -1)
    after = auto(one, torch.Generator().manual_seed(0))
    assert len({row.numpy().tobytes() for row in after}) > 100


def test_equalised_levels_are_even() -> None:
    from saltflat.methods.multiplicity import _equalised

    dark = images(4, 1) ** 3
    after = _equalised(dark, torch.zeros(4, 1, 1, 1))
    assert abs(float(after.mean()) - 0.5) < 0.02 < abs(float(dark.mean()) - 0.5)


def test_cutmix_shares_add_up() -> None:
    """Constant images: the mean of a mixed one is its share of itself and the rest of its partner."""
    levels = torch.linspace(0, 1, 40)
    mixed, partner, share = cutmix(
        levels.view(-1, 1, 1, 1).expand(-1, 1, 10, 10), torch.Generator().manual_seed(1)
    )
    expected = share * levels + (1 - share) * levels[partner]
    torch.testing.assert_close(mixed.mean((1, 2, 3)), expected)
    assert 0.3 < float(share.mean()) < 0.8
    assert float(share.std()) > 0.15


@pytest.mark.parametrize("names", ["common", "common,cutout", "auto", "cutmix,crop", "none"])
def test_every_set_of_augmentations_trains(names: str) -> None:
    rows = declared((images(30, 1), torch.arange(30) % 3), by="the tests")
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    settings = WarmUp("sam", epochs=2, batch_size=10, augmentations=names)  # type: ignore[arg-type]
    assert all(map(math.isfinite, warm_up(model, rows, settings=settings).losses))


def test_cutmix_mixes_the_losses() -> None:
    """A model without weights but a bias: its gradient is the mean of softmax minus the mixed targets."""
    rows = declared((images(8, 1), torch.tensor([0, 1] * 4)), by="the tests")
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
    model[1].weight.requires_grad_(False).zero_()
    with torch.no_grad():
        model[1].bias.zero_()
    settings = WarmUp(epochs=1, batch_size=8, learning_rate=1.0, weight_decay=0.0, augmentations=("cutmix",))
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(8, generator=generator)
    _, partner, share = cutmix(rows.inputs[order], generator)
    labels = rows.targets[order]
    target = share[:, None] * nn.functional.one_hot(labels, 2) + (1 - share)[:, None] * nn.functional.one_hot(
        labels[partner], 2
    )
    warm_up(model, rows, settings=settings)
    torch.testing.assert_close(model[1].bias.data, target.mean(0) - 0.5)


def test_joined_rows_keep_the_strictest_kind() -> None:
    made = replace(small_public(6), provenance="synthetic", name="made", declared_by="a model")
    both = joined(small_public(5), made)
    assert (len(both), both.provenance, both.name) == (11, "synthetic", "small + made")
    assert both.declared_by == "the tests; a model"
    with pytest.raises(InputError, match="one shape"):
        joined(small_public(), Examples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), "public"))


# --- cut off, and taken up again --------------------------------------------------------------------------


def net_with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)).double()


def stopping_after(last: int) -> Any:
    def watch(epoch: int, *_: Any) -> None:
        if epoch == last:
            raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_that_was_cut_off_ends_in_the_same_weights(
    optimizer: Any, momentum: float, tmp_path: Path
) -> None:
    """Twice, to the bit, with buffers and dropout. Fails when momentum, order or dropout begin anew (tried)."""
    settings = WarmUp(optimizer, **SETTINGS | {"epochs": 5, "momentum": momentum})
    whole, parts, state = net_with_dropout(), net_with_dropout(), tmp_path / "state.safetensors"
    expected = warm_up(whole, small_public(), settings=settings)
    for last in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            warm_up(parts, small_public(), settings=settings, keep=state, watch=stopping_after(last))
        with torch.no_grad():
            for weight in parts.parameters():
                weight.fill_(7.0)  # only the file counts
        torch.rand(11)
    seen: list[int] = []
    done = warm_up(
        parts, small_public(), settings=settings, keep=state, watch=lambda epoch, *_: seen.append(epoch)
    )
    assert seen == [4, 5]
    assert done.losses == expected.losses
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value), name
    again = warm_up(net_with_dropout(), small_public(), settings=settings, keep=state)
    assert again.losses == expected.losses, "a finished one is given back"


def test_the_state_of_another_warm_up_is_refused(tmp_path: Path) -> None:
    """Other settings, other rows, another model, a changed byte. What is there stays as it is."""
    settings, state = WarmUp(**SETTINGS), tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        warm_up(small_net(), small_public(), settings=settings, keep=state, watch=stopping_after(1))
    before = state.read_bytes()
    with pytest.raises(InputError, match="holds another one"):
        warm_up(small_net(), small_public(), settings=replace(settings, learning_rate=0.1), keep=state)
    with pytest.raises(InputError, match="holds another one"):
        warm_up(small_net(), small_public(23), settings=settings, keep=state)
    with pytest.raises(DamagedError, match="Delete it"):
        warm_up(net_with_dropout(), small_public(), settings=settings, keep=state)
    assert state.read_bytes() == before
    for place in (0, len(before) // 2, len(before) - 1):
        state.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        with pytest.raises(DamagedError, match="Delete it"):
            warm_up(small_net(), small_public(), settings=settings, keep=state)
