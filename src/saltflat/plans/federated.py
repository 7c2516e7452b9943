"""Methods over clients, each a plan of a few lines. The unit is the client, its whole update the vector.

All take the arguments of `FederatedCommon` beside their own: ``epsilon=`` calibrates the noise over all rounds,
``noise_multiplier=`` instead computes ε.
"""

from __future__ import annotations

import inspect
from typing import Any, TypedDict, Unpack, cast

from saltflat.accounting import Relation
from saltflat.errors import InputError, check_arguments, check_count, check_positive, is_number
from saltflat.plan import (
    Averaging,
    CentralNoise,
    Clipping,
    Federation,
    LocalTraining,
    Mask,
    NoMask,
    Optimizer,
    OwnGradient,
    OwnMask,
    Plan,
    PublicMask,
    RandomMask,
    ReleaseMask,
    SharedNoise,
)
from saltflat.plans.frame import AVERAGING_SUFFIXES, UNKNOWN, Common, Frame, Method, Suffix, read_name

DEFAULT_RHO = 0.5
DEFAULT_RATIO = 0.4
DEFAULT_CLIENTS = 500


class FederatedCommon(TypedDict, total=False):
    """The arguments that every method over clients takes.

    Declared, public numbers: ``clients`` (500), ``rate`` (0.1) at which each joins a round, ``rounds`` (100). What
    to spend: ``epsilon`` and ``delta`` (clients^−1.1), or ``noise_multiplier``. Inside a client: ``local_epochs``,
    ``local_batch_size``, ``local_learning_rate``, ``local_momentum``, ``local_weight_decay``, ``local_decay``. At
    the server, on the release: ``optimizer``, ``learning_rate``, ``momentum``, ``averaging``. ``survivors`` shares
    the noise among clients under secure aggregation, for at least so many answers.
    """

    clients: int
    rate: float
    rounds: int
    epsilon: float
    delta: float
    noise_multiplier: float
    clip_norm: float
    clipping: Clipping
    averaging: Averaging
    optimizer: str | Optimizer
    learning_rate: float
    momentum: float
    local_epochs: int
    local_batch_size: int
    local_learning_rate: float
    local_momentum: float
    local_weight_decay: float
    local_decay: float
    penalty: float
    radius: float
    mask: Mask
    survivors: int
    relation: Relation


_LOCAL = ("epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "decay")


def dp_fedavg(**common: Unpack[FederatedCommon]) -> Plan:
    """DP-FedAvg: clients train, their whole updates are clipped, the sum is noised (McMahan et al. 2018).

    Guarantees: the budget for the whole plan and for everything that one client holds.

    >>> plan = dp_fedavg(epsilon=2.0, clients=500, rate=0.1, rounds=100)
    >>> plan.budget.unit, plan.steps, plan.epsilon <= 2.0
    ('client', 100, True)
    """
    return _planned("dp-fedavg", common)


def dp_fedsam(*, rho: float = DEFAULT_RHO, adaptive: bool = False, **common: Unpack[FederatedCommon]) -> Plan:
    """DP-FedSAM: the clients' optimizer is SAM, or ASAM if ``adaptive`` (Shi et al. 2023, Algorithm 1).

    Guarantees: those of DP-FedAvg, at the same noise; what a client does before the clip costs nothing.

    >>> plan = dp_fedsam(noise_multiplier=0.95, delta=1e-3, clients=500, rate=0.1, rounds=200)
    >>> print(plan.phases[0].ascent)
    own gradient, ρ 0.5
    """
    return _planned("dp-fedsam", common, OwnGradient(rho, adaptive))


def dp_fedsam_topk(
    *,
    rho: float = DEFAULT_RHO,
    adaptive: bool = False,
    ratio: float = DEFAULT_RATIO,
    explore: float = 0.1,
    public: bool = False,
    **common: Unpack[FederatedCommon],
) -> Plan:
    """DP-FedSAM-top_k: SAM clients, and a share ``ratio`` of the coordinates, chosen by earlier releases.

    With ``public`` the mask comes from an update that is trained on public data. The paper lets each client choose
    from its own update, which is not post-processing of the private sum: that is not offered.
    """
    return _planned("dp-fedsam-topk", common, OwnGradient(rho, adaptive), _top_k(ratio, explore, public))


def fed_smp_topk(
    *,
    ratio: float = DEFAULT_RATIO,
    explore: float = 0.1,
    public: bool = False,
    **common: Unpack[FederatedCommon],
) -> Plan:
    """Fed-SMP-top_k: plain clients, and a share ``ratio`` of the coordinates (Hu et al. 2022), by a sound mask.

    Guarantees: the budget; noise is added to the mask's coordinates only, which is ``ratio`` of its energy.

    >>> plan = fed_smp_topk(noise_multiplier=1.0, clients=500, rounds=10)
    >>> print(plan.federation.mask)
    the top 40% of earlier releases
    """
    return _planned("fed-smp-topk", common, mask=_top_k(ratio, explore, public))


def fed_smp_randk(
    *, ratio: float = DEFAULT_RATIO, scaled: bool = True, **common: Unpack[FederatedCommon]
) -> Plan:
    """Fed-SMP-rand_k: a random share of the coordinates each round, scaled by 1/ratio before the clip."""
    return _planned("fed-smp-randk", common, mask=RandomMask(ratio, scaled))


def blur(**common: Unpack[FederatedCommon]) -> Plan:
    """BLUR: the local loss has (penalty/2) · max(0, ‖w − w_t‖² − radius²) (Cheng et al. 2022).

    ``radius`` is the clip norm unless given, ``penalty`` 5. ``blur+lus`` is the pair of that paper.
    """
    return _planned("blur", _blurred(common))


def lus(*, ratio: float = DEFAULT_RATIO, **common: Unpack[FederatedCommon]) -> Plan:
    """LUS: each client drops the small entries of its update before the clip; noise on all coordinates."""
    return _planned("lus", common, mask=OwnMask(ratio))


def fed_sai(
    *,
    rho: float = DEFAULT_RHO,
    adaptive: bool = False,
    switch: float | int = 0.4,
    noise_ratio: float = 1.5,
    **common: Unpack[FederatedCommon],
) -> Plan:
    """SAI carried to rounds: sharpness-aware clients first, then plain ones with more noise, in one joint budget.

    ``switch`` is where the first phase ends: a fraction of the rounds, or a round. σ₂/σ₁ is ``noise_ratio``.

    >>> plan = fed_sai(epsilon=2.0, clients=500, rounds=100)
    >>> [phase.steps for phase in plan.phases], plan.epsilon <= 2.0
    ([40, 60], True)
    """
    frame, federation = _framed(common)
    whole = isinstance(switch, int) and not isinstance(switch, bool) and 1 < switch < frame.steps
    if not whole and (not is_number(switch) or not 0 < switch < 1):
        raise InputError("switch", switch, f"a fraction between 0 and 1, or a round below {frame.steps}")
    first = int(switch) if whole else min(max(round(switch * frame.steps), 1), frame.steps - 1)
    check_positive("noise_ratio", noise_ratio)
    if frame.steps < 2:
        raise InputError("rounds", frame.steps, "at least two rounds for two phases")
    sigma = frame.noise_multiplier
    seek = frame.phase(first, "seek flatness", ascent=OwnGradient(rho, adaptive))
    descend = frame.phase(
        frame.steps - first, "descend", noise_ratio=noise_ratio,
        noise_multiplier=None if sigma is None else sigma * noise_ratio,
    )  # fmt: skip
    return frame.plan("fed-sai", seek, descend, federation=federation)


FEDERATED: dict[str, Method] = {
    "dp-fedavg": dp_fedavg,
    "dp-fedsam": dp_fedsam,
    "dp-fedsam-topk": dp_fedsam_topk,
    "fed-smp-topk": fed_smp_topk,
    "fed-smp-randk": fed_smp_randk,
    "blur": blur,
    "lus": lus,
    "fed-sai": fed_sai,
}

FEDERATED_SUFFIXES: dict[str, Suffix] = {
    **AVERAGING_SUFFIXES,
    "momentum": lambda given: {"momentum": 0.9},
    "adam": lambda given: {"optimizer": "adam"},
    "asam": lambda given: {"adaptive": True},
    "lus": lambda given: {"mask": OwnMask(given.get("ratio", DEFAULT_RATIO))},
}


def federated_by_name(name: str, **arguments: Any) -> Plan:
    """The plan of a method over clients by its name, with suffixes: ``dp-fedsam+ema``, ``blur+lus``.

    >>> federated_by_name("dp-fedsam+asam", noise_multiplier=1.0, rounds=10).phases[0].ascent.adaptive
    True
    """
    method, added = read_name(name, FEDERATED, FEDERATED_SUFFIXES, arguments)
    if "adaptive" in added and "adaptive" not in inspect.signature(method).parameters:
        raise InputError(
            "method", name, "+asam with a method that has SAM clients", problem="has no SAM in it"
        )
    if "mask" in added:
        arguments = {key: value for key, value in arguments.items() if key != "ratio"}
    return method(**(added | arguments)).changed(method=name)


def default_delta(clients: int) -> float:
    """δ = clients^−1.1, to two digits (McMahan et al. 2018): below one over the clients.

    >>> default_delta(500)
    0.0011
    """
    return float(f"{clients**-1.1:.2g}")


def _top_k(ratio: float, explore: float, public: bool) -> Mask:
    return PublicMask(ratio) if public else ReleaseMask(ratio, explore)


def _blurred(common: FederatedCommon) -> FederatedCommon:
    settings: dict[str, Any] = {"penalty": 5.0, "radius": common.get("clip_norm", 0.2)} | dict(common)
    return cast("FederatedCommon", settings)


def _planned(method: str, common: FederatedCommon, ascent: Any = None, mask: Mask | None = None) -> Plan:
    if mask is not None:
        if "mask" in common:
            raise InputError(
                "mask", str(common["mask"]), f"no other mask in {method}", problem="is a second one"
            )
        common = cast("FederatedCommon", dict(common) | {"mask": mask})
    frame, federation = _framed(common)
    changes = {} if ascent is None else {"ascent": ascent}
    return frame.plan(method, frame.phase(frame.steps, "rounds", **changes), federation=federation)


def _framed(common: FederatedCommon) -> tuple[Frame, Federation]:
    """The arguments in the words of central plans: clients are the population, a round is a step."""
    given: dict[str, Any] = {key: value for key, value in common.items() if value is not None}
    check_arguments(given, FederatedCommon, UNKNOWN)
    local = {word: given.pop(f"local_{word}") for word in _LOCAL if f"local_{word}" in given}
    local |= {word: given.pop(word) for word in ("penalty", "radius") if word in given}
    survivors, mask = given.pop("survivors", None), given.pop("mask", NoMask())
    placement = CentralNoise() if survivors is None else SharedNoise(survivors)
    federation = Federation(LocalTraining(**local), mask, placement)
    clients, rounds = given.pop("clients", DEFAULT_CLIENTS), given.pop("rounds", 100)
    check_count("clients", clients)
    check_count("rounds", rounds)
    settings = {"rate": 0.1, "delta": default_delta(clients), "clip_norm": 0.2} | given
    settings |= {"population": clients, "steps": rounds, "unit": "client"}
    settings.setdefault("relation", "add-remove" if survivors is None else "zero-out")
    _server(settings)
    return Frame(cast("Common", settings)), federation


def _server(settings: dict[str, Any]) -> None:
    """What steps with the release: plainly w + mean of the updates, unless told otherwise."""
    named = settings.get("optimizer", "sgd")
    name = named.name if isinstance(named, Optimizer) else named
    if name == "sgd" and not isinstance(named, Optimizer):
        settings["optimizer"] = Optimizer("sgd", {"momentum": settings.pop("momentum", 0.0)})
    settings.setdefault("learning_rate", 1.0 if name == "sgd" else 0.01)
