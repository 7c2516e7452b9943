"""Plans over clients: budget, accounting, names and files."""

from __future__ import annotations

import math
from typing import Any

import pytest
from federated_helpers import plan_of, small_net, small_rows

import saltflat as sf
from saltflat import plans
from saltflat.errors import InputError, PrivacyWarning
from saltflat.plan import (
    Budget,
    CentralNoise,
    Federation,
    Multiplicity,
    NoAscent,
    OwnGradient,
    OwnMask,
    PerLayerClipping,
    Phase,
    Plan,
    Poisson,
    PreviousRelease,
    PublicMask,
    RandomMask,
    ReleaseMask,
    SharedNoise,
)

CLIENT = Budget(8.0, 1e-3, unit="client")


@pytest.mark.parametrize(("rounds", "pld", "rdp"), [(200, 7.30, 8.58), (300, 9.37, 10.83)])
def test_the_setting_of_the_paper(rounds: int, pld: float, rdp: float) -> None:
    """500 clients, q .1, σ .95, δ = 1/500: what the paper runs, and what it costs."""
    with pytest.warns(PrivacyWarning, match="not below 1/population"):
        plan = plans.dp_fedsam(noise_multiplier=0.95, delta=1 / 500, clients=500, rate=0.1, rounds=rounds)
    assert plan.epsilon == pytest.approx(pld, abs=0.005)
    assert plan.epsilon_rdp == pytest.approx(rdp, abs=0.005)
    assert plan.budget.epsilon == plan.epsilon


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsam-topk", "fed-sai"])
def test_a_budget_is_never_exceeded_and_hardly_undercut(method: str) -> None:
    plan = plan_of(method, epsilon=3.0, rounds=20)
    assert 2.97 < plan.epsilon <= 3.0
    assert plan.budget.unit == "client"
    assert plan.steps == 20
    assert plan.sampling.population == 30
    assert plan.sampling.batch_size == 15


@pytest.mark.parametrize("method", [m for m in plans.FEDERATED if m != "fed-sai"])
def test_what_happens_before_the_clip_and_after_the_release_is_free(method: str) -> None:
    assert plan_of(f"{method}+ema+adam").epsilon == plan_of("dp-fedavg").epsilon


def test_methods_are_made_of_these_parts() -> None:
    made = {name: plan_of(name) for name in plans.FEDERATED}
    ascents = {name: plan.phases[0].ascent for name, plan in made.items()}
    assert {n for n, a in ascents.items() if isinstance(a, OwnGradient)} == {
        "dp-fedsam", "dp-fedsam-topk", "fed-sai"
    }  # fmt: skip
    masks = {name: type(plan.federation.mask) for name, plan in made.items() if plan.federation}
    assert masks["dp-fedsam-topk"] is masks["fed-smp-topk"] is ReleaseMask
    assert masks["fed-smp-randk"] is RandomMask
    assert masks["lus"] is OwnMask
    assert made["blur"].federation.local.penalty > 0
    assert made["blur"].federation.local.radius == made["blur"].phases[0].clip_norm
    assert made["dp-fedavg"].federation == Federation(made["dp-fedavg"].federation.local)
    first, second = made["fed-sai"].phases
    assert isinstance(second.ascent, NoAscent)
    assert second.sigma == pytest.approx(1.5 * first.sigma)


def test_sai_over_rounds_is_one_joint_budget() -> None:
    plan = plan_of("fed-sai", epsilon=4.0, rounds=20, switch=0.5, noise_ratio=2.0)
    assert [phase.steps for phase in plan.phases] == [10, 10]
    assert plan.epsilon <= 4.0 < sum(plan.phase_epsilon(phase) for phase in plan.phases)


@pytest.mark.parametrize(
    "name", [*plans.FEDERATED, "blur+lus", "dp-fedsam+asam+swa", "dp-fedavg+momentum", "dp-fedavg+adam+ema"]
)
def test_plans_survive_json_and_toml(name: str) -> None:
    plan = plan_of(name)
    assert plan.method == name
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_toml(plan.to_toml()) == plan
    assert Plan.from_json(plan.to_json()).hash == plan.hash


def test_central_plans_are_written_as_before() -> None:
    """A key that only clients need would have changed the hash of every plan that is out there.

    ε is taken from the plan: its last digits are the processor's.
    """
    plan = plans.dp_sgd(noise_multiplier=2.0, population=100, batch_size=10, steps=5)
    phase = {
        "steps": 5, "clip_norm": 1.0, "noise_multiplier": 2.0, "learning_rate": None, "ascent": {"kind": "none"},
        "noise_ratio": 1.0, "reset_momentum": False, "name": "descend",
    }  # fmt: skip
    assert plan.to_dict() == {
        "saltflat_plan": 1,
        "sampling": {"kind": "poisson", "population": 100, "batch_size": 10},
        "phases": [phase],
        "budget": {"epsilon": plan.epsilon, "delta": 1e-5, "relation": "add-remove", "unit": "example"},
        "optimizer": None,
        "averaging": {"kind": "none"},
        "clipping": {"kind": "flat"},
        "multiplicity": {"kind": "views", "views": 1, "augmentations": [], "deviation": 0.0},
        "method": "dp-sgd",
        "notes": [],
    }


def test_faults_of_a_federation_in_a_file_are_listed_together() -> None:
    data = plan_of("fed-smp-topk").to_dict()
    data["federation"]["mask"]["ratoi"] = 0.3
    data["federation"]["local"]["epochs"] = 0
    data["federation"]["placement"] = {"kind": "centarl"}
    with pytest.raises(sf.SaltflatError) as caught:
        Plan.from_dict(data)
    for word in ("ratoi", "epochs=0", "centarl"):
        assert word in str(caught.value)


# --- shared noise -----------------------------------------------------------------------------------


def test_shared_noise_counts_no_sampling() -> None:
    """The server knows who took part: every round costs as if all were in it."""
    shared = plan_of(survivors=10, noise_multiplier=5.0)
    assert shared.events()[0].rate == 1.0
    assert shared.epsilon > plan_of(noise_multiplier=5.0).epsilon
    assert shared.budget.relation == "zero-out"
    same = plan_of(survivors=10, noise_multiplier=5.0, rate=0.01)
    assert same.epsilon == shared.epsilon


WRONG: dict[str, dict[str, Any]] = {
    "unit": {"budget": Budget(8.0, 1e-3)},
    "ascent": {"phases": (Phase(2, 0.2, 1.0, 1.0, PreviousRelease(0.1)),)},
    "clipping": {"clipping": PerLayerClipping()},
    "multiplicity": {"multiplicity": Multiplicity(4)},
    "relation": {"federation": Federation(placement=SharedNoise(3))},
    "survivors": {
        "federation": Federation(placement=SharedNoise(101)), "budget": Budget(8.0, 1e-3, "zero-out", "client"),
    },
}  # fmt: skip


@pytest.mark.parametrize("argument", WRONG)
def test_what_does_not_go_together_is_refused_by_name(argument: str) -> None:
    right: dict[str, Any] = {
        "sampling": Poisson(100, 10), "phases": (Phase(2, 0.2, 1.0, 1.0, OwnGradient(0.5)),), "budget": CLIENT,
        "federation": Federation(),
    }  # fmt: skip
    Plan(**right)
    with pytest.raises(InputError) as caught:
        Plan(**(right | WRONG[argument]))
    assert caught.value.argument == argument


def test_sam_inside_a_client_needs_clients() -> None:
    with pytest.raises(InputError, match="inside a client"):
        Plan(Poisson(100, 10), (Phase(2, 0.2, 1.0, 1.0, OwnGradient(0.5)),), Budget(8.0, 1e-3))


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("dp-fedavgg", {}, "Did you mean 'dp-fedavg'"),
        ("dp-fedavg+swaa", {}, "unknown suffix"),
        ("dp-fedavg+swa+ema", {}, "two of a kind"),
        ("dp-fedavg+asam", {}, "no SAM in it"),
        ("dp-fedavg", {"population": 10}, "clients"),
        ("dp-fedavg", {"clients": 0}, "clients=0"),
        ("dp-fedavg", {"rounds": 1.5}, "rounds=1.5"),
        ("dp-fedavg", {"rate": 1.5}, "rate=1.5"),
        ("dp-fedavg", {"survivors": 0}, "survivors=0"),
        ("dp-fedavg", {"local_epochs": 0}, "epochs=0"),
        ("dp-fedavg", {"local_decay": 1.0}, "decay=1.0"),
        ("dp-fedsam", {"rho": -1.0}, "rho=-1.0"),
        ("fed-smp-topk", {"ratio": 0.0}, "ratio=0.0"),
        ("fed-smp-topk+lus", {}, "second one"),
        ("fed-sai", {"switch": 1.0}, "switch=1.0"),
        ("blur", {"penalty": -1.0}, "penalty=-1.0"),
    ],
)
def test_bad_arguments_are_named(name: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem.replace("+", r"\+")):
        plan_of(name, **settings)


def test_masks_from_public_rows_are_asked_for_by_name() -> None:
    plan = plan_of("fed-smp-topk", public=True, ratio=0.2)
    assert plan.federation.mask == PublicMask(0.2)
    assert plan.federation.placement == CentralNoise()


def test_no_budget_is_no_privacy() -> None:
    plan = plan_of(epsilon=math.inf)
    assert not plan.is_private
    assert plan.phases[0].sigma == 0


def test_fit_and_federate_do_not_take_one_anothers_plans() -> None:
    with pytest.raises(InputError, match=r"sf\.federate"):
        sf.fit(small_net(), small_rows(), plan_of())
    central = plans.dp_sgd(noise_multiplier=2.0, population=100, batch_size=10, steps=5)
    with pytest.raises(InputError, match="a plan over clients"):
        sf.federate(small_net(), sf.federated.partition(small_rows(), 10), central)


def test_the_table_speaks_of_rounds() -> None:
    text = str(plan_of("dp-fedsam-topk"))
    for words in (
        "4 rounds",
        "15 expected of 30",
        "own gradient, ρ 0.5",
        "top 40% of earlier",
        "trusted",
        "one client",
    ):
        assert words in text
