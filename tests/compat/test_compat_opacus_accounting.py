"""What is released is what is accounted, and ε is an upper bound."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from compat_helpers import made_private, rows_for, train
from torch import nn

from saltflat.accounting import SampledGaussian, epsilon
from saltflat.compat.opacus import PrivacyEngine, get_noise_multiplier
from saltflat.compat.opacus.accountants import (
    GaussianAccountant,
    PRVAccountant,
    RDPAccountant,
    create_accountant,
    register_accountant,
    registry,
)
from saltflat.errors import InputError, PrivacyWarning, RefusedError

FIXED = pytest.mark.filterwarnings("ignore:poisson_sampling=False")


def test_epsilon_grows_and_reading_changes_nothing() -> None:
    made = made_private(noise_multiplier=1.0)
    found = [made.engine.get_epsilon(1e-5)]
    for _ in range(3):
        train(made)
        found.append(made.engine.get_epsilon(1e-5))
        assert made.engine.get_epsilon(1e-5) == found[-1]
    assert found[0] == 0.0
    assert found == sorted(set(found))
    assert found[-1] == epsilon([SampledGaussian(1.0, 1 / 3, 9)], 1e-5)


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_the_target_is_met_and_not_passed(accountant: str) -> None:
    made = made_private(target_epsilon=2.0, target_delta=1e-3, epochs=3, accountant=accountant)
    train(made, epochs=3)
    spent = made.engine.get_epsilon(1e-3)
    assert 1.98 <= spent <= 2.0
    with pytest.warns(PrivacyWarning, match="already spent"):
        made.engine.make_private_with_epsilon(
            **_another(made), target_epsilon=2.0, target_delta=1e-3, epochs=1, max_grad_norm=1.0
        )


def _another(made: Any) -> dict[str, Any]:
    model = nn.Linear(5, 3)
    return {
        "module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0), "data_loader": made.loader
    }  # fmt: skip


def test_rdp_is_opacus_and_prv_is_tighter() -> None:
    for accountant, least, most in (
        (RDPAccountant(), 7.3291111, 7.3291112),
        (PRVAccountant(), 6.75, 6.7774),
    ):
        for _ in range(2250):
            accountant.step(noise_multiplier=1.5, sample_rate=0.04)
        assert accountant.history == [(1.5, 0.04, 2250)]
        assert least <= accountant.get_epsilon(delta=1e-5) <= most


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "entry", [(1.5, 0.04, 2250), (1.0, 0.01, 1000), (0.7, 0.1, 30), (2.0, 1.0, 5), (4.0, 0.2, 500)]
)
def test_rdp_is_that_of_opacus(entry: tuple[float, float, int]) -> None:
    """To nine decimals: what the page says."""
    opacus = pytest.importorskip("opacus.accountants", reason="Opacus is a peer, not a dependency")
    theirs, ours = opacus.RDPAccountant(), RDPAccountant()
    theirs.history = ours.history = [entry]
    there = theirs.get_epsilon(delta=1e-5)
    assert ours.get_epsilon(delta=1e-5) == pytest.approx(there, abs=1e-9)


def test_gdp_is_computed_by_something_sound() -> None:
    with pytest.warns(PrivacyWarning, match="understate"):
        gaussian = GaussianAccountant()
    gaussian.history = [(1.5, 0.04, 2250)]
    assert gaussian.get_epsilon(delta=1e-5) > 6.6  # what the central limit gives


def test_noise_for_a_budget() -> None:
    options: dict[str, Any] = {"target_epsilon": 8.0, "target_delta": 1e-5, "sample_rate": 0.04}
    assert get_noise_multiplier(**options, epochs=90, accountant="rdp") == pytest.approx(1.416, abs=1e-3)
    assert get_noise_multiplier(**options, steps=2000) == pytest.approx(1.3562, abs=5e-5)
    tight = get_noise_multiplier(**options, epochs=90, accountant="prv")
    assert 1.33 < tight <= 1.3477
    assert epsilon([SampledGaussian(tight, 0.04, 2250)], 1e-5) <= 8.0
    with pytest.raises(ValueError, match="EITHER"):
        get_noise_multiplier(**options, epochs=1, steps=1)
    with pytest.raises(ValueError, match="too low"):
        get_noise_multiplier(target_epsilon=1e-9, target_delta=1e-9, sample_rate=0.5, steps=10**6)


def test_states_and_names() -> None:
    accountant = RDPAccountant()
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    saved = accountant.state_dict({"mine": 1})
    assert saved["mine"] == 1
    other = RDPAccountant()
    other.load_state_dict(saved)
    assert other.history == accountant.history
    assert other.history is not saved["history"]
    for wrong in ({}, {"history": []}, {"history": [], "mechanism": "prv"}):
        with pytest.raises(ValueError):
            RDPAccountant().load_state_dict(wrong)
    with pytest.raises(ValueError, match="Unexpected accounting mechanism"):
        create_accountant("magic")
    with pytest.raises(ValueError, match="already registered"):
        register_accountant("rdp", PRVAccountant)
    try:
        register_accountant("mine", PRVAccountant)
        assert isinstance(PrivacyEngine(accountant="mine").accountant, PRVAccountant)
    finally:
        registry._ACCOUNTANTS.pop("mine", None)


# --- mechanism and accounting cannot disagree -------------------------------------------------------


def test_the_record_comes_before_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should fail when the accountant is called after the noise was drawn."""
    made = made_private(noise_multiplier=1.0)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made.optimizer, "add_noise", fails)
    with pytest.raises(KeyboardInterrupt):
        train(made)
    assert made.engine.accountant.history == [(1.0, 1 / 3, 1)]


def test_another_rate_is_refused() -> None:
    made = made_private(noise_multiplier=1.0)
    made.loader.batch_sampler.sample_rate = 0.9
    with pytest.raises(RefusedError, match=r"samples at 0\.9"):
        train(made)
    assert made.engine.accountant.history == []


def test_hooks_cannot_replace_the_account() -> None:
    made = made_private(noise_multiplier=1.0)
    made.optimizer.attach_step_hook(made.engine.accountant.get_optimizer_hook_fn(sample_rate=1 / 3))
    made.optimizer.attach_step_hook(lambda optimizer: None)
    train(made)
    assert made.engine.accountant.history == [(1.0, 1 / 3, 3)]
    with pytest.raises(InputError, match="sample_rate"):
        made.optimizer.attach_step_hook(made.engine.accountant.get_optimizer_hook_fn(sample_rate=0.01))


def test_batches_from_elsewhere_are_noticed() -> None:
    made = made_private(noise_multiplier=1.0)
    train(made)
    assert made.engine.certificate(1e-5)["doubts"] == []
    with pytest.warns(PrivacyWarning, match="more often than the private loader drew"):
        train(made, loader=[rows_for("linear", 4)])
    assert "did not draw" in made.engine.certificate(1e-5)["doubts"][0]


@FIXED
def test_fixed_batches_are_one_release_a_pass() -> None:
    """Should fail when they are accounted as Poisson."""
    made = made_private(noise_multiplier=2.0, poisson_sampling=False, shuffle=True)
    train(made, epochs=2)
    assert made.engine.accountant.history == [(2.0, 1.0, 2)]
    train(made, epochs=3, steps=2)  # passes that are broken off count whole
    assert made.engine.accountant.history == [(2.0, 1.0, 3)]
    for _ in range(2):
        train(made, steps=1)
    assert made.engine.accountant.history == [(2.0, 1.0, 5)]


@FIXED
def test_fixed_batches_with_replacement_count_alone() -> None:
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset

    data = TensorDataset(*rows_for("linear", 8))
    loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data, replacement=True))
    model = nn.Linear(5, 3)
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(module(x), y).backward()
        optimizer.step()
    assert engine.accountant.history == [(1.0, 1.0, 2)]


@FIXED
def test_fixed_batches_within_a_budget() -> None:
    made = made_private(target_epsilon=2.0, target_delta=1e-3, epochs=2, poisson_sampling=False, shuffle=True)
    train(made, epochs=2)
    assert 1.98 <= made.engine.get_epsilon(1e-3) <= 2.0


def test_another_data_set_is_noticed() -> None:
    made = made_private()
    other = _another(made_private())
    with pytest.warns(PrivacyWarning, match="new dataset"):
        made.engine.make_private(**other, noise_multiplier=1.0, max_grad_norm=1.0)


def test_a_certificate_is_plain() -> None:
    made = made_private(noise_multiplier=1.0, secure_mode=True)
    train(made)
    found = json.loads(json.dumps(made.engine.certificate(1e-5)))
    assert found["relation"] == "zero-out"
    assert found["epsilon"] == made.engine.get_epsilon(1e-5)
    assert found["epsilon_replace_one"] > found["epsilon"]
    assert found["randomness"] == "secure"
    assert found["releases"] == 3
    quiet = made_private(noise_multiplier=0.0)
    train(quiet)
    assert quiet.engine.certificate(1e-5)["epsilon"] == "inf"
