"""Checkpoints hold tensors and plain values, and a run goes on from them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_helpers import assert_same, made_private, train, weights

from saltflat.compat.opacus.schedulers import LambdaNoise, StepGradClip
from saltflat.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:poisson_sampling=False")


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sat", "dp-sat+ema"])
def test_going_on_is_not_noticed(tmp_path: Path, method: str) -> None:
    """Should fail when the direction of the ascent is not saved."""
    options: dict[str, Any] = {"poisson_sampling": False, "optimizer": momentum, "method": method, "rho": 0.5}
    whole = made_private(**options)
    train(whole, epochs=2)
    first, second = made_private(**options), made_private(**options)
    train(first)
    first.engine.save_checkpoint(
        path=tmp_path / "c.pt", module=first.module, optimizer=first.optimizer, checkpoint_dict={"epoch": 1}
    )
    found = second.engine.load_checkpoint(
        path=tmp_path / "c.pt", module=second.module, optimizer=second.optimizer
    )
    assert found["epoch"] == 1
    train(second)
    assert_same(weights(second.module), weights(whole.module), atol=0, rtol=0)
    assert second.engine.accountant.history == whole.engine.accountant.history
    if method.endswith("ema"):
        assert_same(second.engine.average, whole.engine.average, atol=0, rtol=0)
        other = made_private(**options | {"method": "dp-sat+swa", "steps": 6})
        with pytest.raises(InputError, match="averages in another way"):
            other.engine.load_checkpoint(
                path=tmp_path / "c.pt", module=other.module, optimizer=other.optimizer
            )


@pytest.mark.parametrize("taken", [0, 2, 4, 5, 8])  # the second phase begins after four
def test_the_phases_of_sai_go_on(taken: int) -> None:
    """Failed after five steps when the noise was not saved: the rest had that of the first phase, ε was larger."""
    options: dict[str, Any] = {"noise_multiplier": 1.0, "method": "sai", "steps": 9, "switch": 4}
    whole, first, second = (made_private(**options) for _ in range(3))
    train(whole, epochs=3)
    if taken:
        train(first, epochs=3, steps=taken)
    file = io.BytesIO()
    first.engine.save_checkpoint(path=file, module=first.module, optimizer=first.optimizer)
    file.seek(0)
    second.engine.load_checkpoint(path=file, module=second.module, optimizer=second.optimizer)
    train(second, epochs=3, steps=9 - taken)
    assert whole.engine.accountant.history == [(1.0, 1 / 3, 4), (1.5, 1 / 3, 5)]
    assert second.engine.accountant.history == whole.engine.accountant.history
    assert second.engine.get_epsilon(1e-3) == whole.engine.get_epsilon(1e-3)


def test_a_checkpoint_brings_its_phase_along() -> None:
    """Back from the second phase into the first, in the same engine, and on with the plan of the file."""
    options: dict[str, Any] = {"noise_multiplier": 1.0, "method": "sai", "switch": 4}
    made, other = made_private(steps=9, **options), made_private(steps=20, **options | {"switch": 10})
    early, late = io.BytesIO(), io.BytesIO()
    train(made, steps=2)
    made.engine.save_checkpoint(path=early, module=made.module)
    train(made, epochs=2, steps=4)
    made.engine.save_checkpoint(path=late, module=made.module)
    for file in (early, late):
        file.seek(0)
    made.engine.load_checkpoint(path=early, module=made.module)
    other.engine.load_checkpoint(path=late, module=other.module)
    train(made, epochs=2, steps=4)
    train(other, steps=1)
    assert made.engine.accountant.history == [(1.0, 1 / 3, 4), (1.5, 1 / 3, 2)]
    assert other.engine.accountant.history == [(1.0, 1 / 3, 4), (1.5, 1 / 3, 3)]


def test_schedulers_are_saved() -> None:
    made = made_private(noise_multiplier=1.0)
    noise = LambdaNoise(made.optimizer, noise_lambda=lambda epoch: 1.0 + epoch)
    clip = StepGradClip(made.optimizer, step_size=1, gamma=0.5)
    noise.step()
    clip.step()
    file = io.BytesIO()
    made.engine.save_checkpoint(
        path=file, module=made.module, noise_scheduler=noise, grad_clip_scheduler=clip
    )
    file.seek(0)
    other = made_private(noise_multiplier=1.0)
    new = LambdaNoise(other.optimizer, noise_lambda=lambda epoch: 1.0 + epoch)
    bound = StepGradClip(other.optimizer, step_size=1, gamma=0.5)
    other.engine.load_checkpoint(
        path=file, module=other.module, noise_scheduler=new, grad_clip_scheduler=bound
    )
    assert new.state_dict() == noise.state_dict()
    assert bound.last_epoch == 1


def test_code_is_neither_saved_nor_loaded(tmp_path: Path) -> None:
    made = made_private()
    with pytest.raises(InputError, match=r"checkpoint\['extra'\]\[0\] is a SimpleRecipe"):
        made.engine.save_checkpoint(
            path=tmp_path / "c.pt", module=made.module, checkpoint_dict={"extra": [SimpleRecipe()]}
        )
    torch.save({"module_state_dict": made.module.state_dict(), "trap": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        made.engine.load_checkpoint(
            path=tmp_path / "trap.pt", module=made.module, torch_load_kwargs={"weights_only": False}
        )
    assert not Trap.sprung


class SimpleRecipe:
    """Something with code."""


class Trap:
    """Says so when it is unpickled."""

    sprung = False

    def __reduce__(self) -> Any:
        return Trap.spring, ()

    @staticmethod
    def spring() -> int:
        Trap.sprung = True
        return 0


def test_one_sided_optimizers_are_noticed(tmp_path: Path) -> None:
    made = made_private()
    made.engine.save_checkpoint(path=tmp_path / "c.pt", module=made.module)
    with pytest.warns(UserWarning, match="optimizer_state_dict has 0 items"):
        made.engine.load_checkpoint(path=tmp_path / "c.pt", module=made.module, optimizer=made.optimizer)


def test_whole_models_can_be_saved(tmp_path: Path) -> None:
    """A watched parameter is saved as the plain one that it was."""
    made = made_private(poisson_sampling=False)
    train(made)
    torch.save(made.plain, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert_same(weights(loaded), weights(made.plain), atol=0, rtol=0)
    assert all(type(p) is torch.nn.Parameter for p in loaded.parameters())
