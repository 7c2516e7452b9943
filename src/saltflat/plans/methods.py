"""The methods, each a plan of a few lines that can be checked against its paper.

All take the arguments of `Common` beside their own: ``epsilon=`` calibrates the noise, ``noise_multiplier=``
instead computes ε. What they compose (optimizer, averaging, clipping, multiplicity) is free to combine.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, Literal, Unpack, cast

from saltflat.errors import (
    InputError,
    PrivacyWarning,
    check_count,
    check_not_negative,
    check_positive,
    check_share,
)
from saltflat.plan import AdaDps, Dope, FreshQuery, MirrorDescent, Optimizer, Phase, Plan, PreviousRelease
from saltflat.plans.frame import AVERAGING_SUFFIXES, Common, Frame, Method, Suffix, read_name
from saltflat.plans.presets import framed
from saltflat.plans.public import ada_dps, dope_sgd, mirror_descent, weight_multiplicity

DEFAULT_RHO = 0.03


def dp_sgd(**common: Unpack[Common]) -> Plan:
    """DP-SGD: clip each gradient, add noise to the sum, step (Abadi et al. 2016).

    Guarantees: the budget for the whole plan, whatever the model and the data.

    >>> plan = dp_sgd(epsilon=1.0, delta=1e-5, population=60_000, batch_size=2048, steps=1172, clip_norm=0.1)
    >>> plan.phases[0].noise_multiplier, round(plan.epsilon, 3)
    (4.4627, 1.0)
    """
    frame, _ = framed("dp-sgd", {}, common)
    return frame.plan("dp-sgd", frame.phase(frame.steps, "descend"))


def dp_sgd_tapered(*, stairs: int = 6, taper: float = 0.5, **common: Unpack[Common]) -> Plan:
    """DP-SGD with a learning rate that falls in ``stairs``, and noise that grows as it falls.

    The last iterate holds the noise of a step times its rate η, and a step costs about σ⁻² of the budget. So the
    noise that is left at the end, Σ η²σ², is least for σ in proportion to η^(−½) (by Cauchy and Schwarz): up to a
    quarter less variance than even noise leaves under a rate that falls to zero in a line. ``taper`` is that
    exponent, 0 for even noise. ``learning_rate`` is where the line starts, ``noise_multiplier``, where given, the
    noise of the first stair.

    Guarantees: the budget for the whole plan, all stairs composed jointly; rates and noise are fixed before the data
    is touched.

    >>> plan = dp_sgd_tapered(epsilon=1.0, population=60_000, batch_size=2048, epochs=30, learning_rate=4.0, stairs=4)
    >>> [phase.learning_rate for phase in plan.phases], plan.phases[0].sigma < plan.phases[3].sigma
    ([3.5, 2.5, 1.5, 0.5], True)
    """
    if common.get("preset") is not None:
        raise InputError(
            "preset", common["preset"], "no preset", problem="has no settings for dp-sgd-tapered"
        )
    frame = Frame(common)
    check_count("stairs", stairs, cure="4 to 8 are usual.")
    check_not_negative("taper", taper, cure="0 is even noise, 0.5 the least at the end.")
    # its rates stand in the phases, so the optimizer is the plan's as well, and none can be given to fit
    frame.optimizer = frame.optimizer or Optimizer("sgd", {"momentum": 0.9})
    # a rate that falls to zero moves as far as one of half its size that does not
    usual = 2 * frame.optimizer.default_learning_rate(frame.clip_norm)
    start = usual if frame.learning_rate is None else frame.learning_rate
    phases = []
    for number in range(stairs):
        steps = frame.steps * (number + 1) // stairs - frame.steps * number // stairs
        height = 1 - (number + 0.5) / stairs
        ratio = ((1 - 0.5 / stairs) / height) ** taper
        own = {"learning_rate": start * height, "noise_ratio": ratio}
        if frame.noise_multiplier is not None:
            own["noise_multiplier"] = frame.noise_multiplier * ratio
        phases.append(frame.phase(steps, f"stair {number + 1}", **own))
    return frame.plan("dp-sgd-tapered", *phases)


def dp_sam(*, rho: float | None = None, noise_ratio: float | None = None, **common: Unpack[Common]) -> Plan:
    """DP-SAM: a noised ascent query on each batch, then the gradient there (as in Park et al. 2023, Alg. 2).

    ``noise_ratio`` is σ_a/σ_d: 1 in the paper; by default 3, where the ascent costs the descent only 5 %
    more noise. Guarantees: the two queries of a batch are accounted as one release, never as two steps.

    >>> plan = dp_sam(epsilon=1.0, population=60_000, batch_size=2048, steps=1172)
    >>> [round(sigma, 2) for sigma in plan.query_noises(plan.phases[0])]
    [14.11, 4.7]
    """
    frame, own = framed("dp-sam", {"rho": rho, "noise_ratio": noise_ratio}, common)
    default = 1.0 if common.get("preset") == "paper" else 3.0
    ascent = FreshQuery(_rho(own), default if own["noise_ratio"] is None else own["noise_ratio"])
    return frame.plan("dp-sam", frame.phase(frame.steps, "descend", ascent=ascent))


def dp_sat(*, rho: float | None = None, ascent_momentum: float = 0.0, **common: Unpack[Common]) -> Plan:
    """DP-SAT: the gradient at w + ρ g/‖g‖ with g the previous release (Park et al., ICML 2023, Algorithm 1).

    ``ascent_momentum`` > 0 is its momentum variant, whose ρ is about ten times larger.
    Guarantees: the privacy and, within 2 %, the time of DP-SGD; the ascent re-uses releases.

    >>> plan = dp_sat(rho=0.05, epsilon=1.0, population=60_000, batch_size=2048, steps=1172)
    >>> plan.epsilon == dp_sgd(epsilon=1.0, population=60_000, batch_size=2048, steps=1172).epsilon
    True
    """
    frame, own = framed("dp-sat", {"rho": rho}, common)
    ascent = PreviousRelease(_rho(own), ascent_momentum)
    return frame.plan("dp-sat", frame.phase(frame.steps, "seek flatness", ascent=ascent))


def sai(
    *,
    rho: float | None = None,
    switch: float | int | Literal["automatic"] | None = None,
    noise_ratio: float = 1.5,
    clip_norms: tuple[float, float] | None = None,
    learning_rates: tuple[float, float] | None = None,
    split: Literal["joint", "paper"] | None = None,
    portion: float | None = None,
    ascent_momentum: float = 0.0,
    reset_momentum: bool = False,
    **common: Unpack[Common],
) -> Plan:
    """SAI: sharpness-aware initialisation, then DP-SGD (Wang et al., USENIX Security 2025, Algorithm 1).

    ``switch`` is where the first phase ends: a fraction of the steps, a step, or ``"automatic"``: then the
    ascent switches itself off when sharpness stops falling, while noise stays as planned for a third of the
    steps. Noise is calibrated jointly at σ₂/σ₁ = ``noise_ratio`` (``noise_multiplier=`` gives σ₁ itself);
    ``split="paper"`` instead gives the first phase the ``portion`` of ε by basic composition with δ/2 each,
    and is really worth less than ε.

    Guarantees: the budget for the whole plan, both phases composed jointly.

    >>> plan = sai(epsilon=1.0, population=60_000, batch_size=2048, epochs=40)
    >>> len(plan.phases), plan.epsilon <= 1.0
    (2, True)
    """
    own: dict[str, Any] = {
        "rho": rho, "switch": switch, "clip_norms": clip_norms, "learning_rates": learning_rates,
        "split": split, "portion": portion,
    }  # fmt: skip
    frame, own = framed("sai", own, common)
    where = own["switch"] if own["switch"] is not None else 0.4
    automatic = where == "automatic"
    first = _switch_step(0.33 if automatic else where, frame.steps)
    ascent = PreviousRelease(_rho(own), ascent_momentum, automatic)
    clips = _pair("clip_norms", own, frame.clip_norm)
    rates = _pair("learning_rates", own, frame.learning_rate)
    if first == 0:
        noise_ratio = 1.0  # nothing to be in proportion to
    seek = frame.phase(first, "seek flatness", ascent=ascent, clip_norm=clips[0], learning_rate=rates[0])
    descend = frame.phase(
        frame.steps - first, "descend", clip_norm=clips[1], learning_rate=rates[1],
        noise_ratio=noise_ratio, reset_momentum=reset_momentum,
    )  # fmt: skip
    if descend is not None and automatic:
        descend = replace(descend, ascent=ascent)
    if descend is not None and frame.noise_multiplier is not None:
        check_positive("noise_ratio", noise_ratio)
        descend = replace(descend, noise_multiplier=frame.noise_multiplier * noise_ratio)
    phases = [phase for phase in (seek, descend) if phase is not None]
    if own["split"] == "paper" and len(phases) == 2:
        phases = _paper_split(frame, phases, own["portion"] if own["portion"] is not None else 0.8)
    elif own["split"] not in (None, "joint", "paper"):
        raise InputError("split", own["split"], "'joint' or 'paper'")
    return frame.plan("sai", *phases)


def dp_sat_early_stop(
    *, rho: float | None = None, switch: float | int | None = None, **common: Unpack[Common]
) -> Plan:
    """DP-SAT that becomes DP-SGD at ``switch``, with even noise: the ablation between DP-SAT and SAI.

    >>> plan = dp_sat_early_stop(epsilon=1.0, population=60_000, batch_size=2048, epochs=40, switch=0.5)
    >>> plan.phases[0].sigma == plan.phases[1].sigma
    True
    """
    frame, own = framed("dp-sat-early-stop", {"rho": rho, "switch": switch}, common)
    first = _switch_step(own["switch"] if own["switch"] is not None else 0.4, frame.steps)
    seek = frame.phase(first, "seek flatness", ascent=PreviousRelease(_rho(own)))
    return frame.plan("dp-sat-early-stop", seek, frame.phase(frame.steps - first, "descend"))


def sgd(**common: Unpack[Common]) -> Plan:
    """Ordinary SGD as a baseline: no clipping, no noise, **not private**, through the same `fit`.

    >>> sgd(population=1000, batch_size=100, epochs=2).is_private
    False
    """
    frame, _ = framed("sgd", {}, _not_private(common))
    return frame.plan("sgd", frame.phase(frame.steps, "descend", clip_norm=math.inf))


def sam(*, rho: float = 0.05, **common: Unpack[Common]) -> Plan:
    """Ordinary SAM as a baseline (Foret et al. 2021): **not private**."""
    frame, _ = framed("sam", {}, _not_private(common))
    ascent = FreshQuery(rho)
    return frame.plan("sam", frame.phase(frame.steps, "descend", clip_norm=math.inf, ascent=ascent))


METHODS: dict[str, Method] = {
    "dp-sgd": dp_sgd,
    "dp-sgd-tapered": dp_sgd_tapered,
    "dp-sam": dp_sam,
    "dp-sat": dp_sat,
    "sai": sai,
    "dp-sat-early-stop": dp_sat_early_stop,
    "weight-multiplicity": weight_multiplicity,
    "dope-sgd": dope_sgd,
    "mirror-descent": mirror_descent,
    "ada-dps": ada_dps,
    "sgd": sgd,
    "sam": sam,
}

SUFFIXES: dict[str, Suffix] = {
    **AVERAGING_SUFFIXES,
    "adam": lambda given: {"optimizer": "adam"},
    "adam-bc": lambda given: {"optimizer": "adam-bc"},
    "dope": lambda given: {"public_gradient": Dope()},
    "mirror": lambda given: {"public_gradient": MirrorDescent()},
    "ada": lambda given: {"public_gradient": AdaDps()},
}


def by_name(name: str, **arguments: Any) -> Plan:
    """The plan of a method by its hyphenated name, with suffixes: ``dp-sat+swa``, ``sai+adam+ema``.

    >>> by_name("dp-sat+swa", epsilon=1, population=60_000, batch_size=2048, steps=100).method
    'dp-sat+swa'
    """
    method, added = read_name(name, METHODS, SUFFIXES, arguments)
    return method(**(added | arguments)).changed(method=name)


def _rho(own: dict[str, Any]) -> float:
    return DEFAULT_RHO if own["rho"] is None else own["rho"]


def _pair(argument: str, own: dict[str, Any], default: Any) -> tuple[Any, Any]:
    """One value for each of two phases."""
    pair = own[argument]
    if pair is None:
        return default, default
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(argument, pair, "a pair, one for each phase")
    return pair[0], pair[1]


def _switch_step(switch: float | int, steps: int) -> int:
    """A fraction of the steps, or a step itself (whole numbers above one, and zero)."""
    number = isinstance(switch, int | float) and not isinstance(switch, bool)
    if not number or not switch >= 0 or (switch > 1 and (switch != int(switch) or switch > steps)):
        expected = f"a fraction from 0 to 1, or a step up to {steps}"
        raise InputError("switch", switch, expected, cure="sai also knows switch='automatic'.")
    return round(switch * steps) if switch <= 1 else int(switch)


def _paper_split(frame: Frame, phases: list[Phase], portion: float) -> list[Phase]:
    """The paper's basic composition: ε₁ = portion · ε, ε₂ the rest, δ/2 each. Sound, and wasteful."""
    check_share("portion", portion)
    budget = frame.budget
    shares = (portion * budget.epsilon, (1 - portion) * budget.epsilon)
    if math.isinf(budget.epsilon) or frame.noise_multiplier is not None:
        raise InputError("split", "paper", "a finite epsilon= to split")
    solved = []
    for phase, share in zip(phases, shares):
        # said when the whole plan is made
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            alone = frame.draft("sai", replace(phase, noise_ratio=1.0))
        half = replace(budget, epsilon=share, delta=budget.delta / 2)
        solved.append(replace(phase, noise_multiplier=alone.calibrated_to(half).phases[0].noise_multiplier))
    frame.notes.append(f"the paper's split: {shares[0]:g} + {shares[1]:g} at δ/2 each")
    return solved


def _not_private(common: Common) -> Common:
    settings = {key: value for key, value in common.items() if key not in ("epsilon", "noise_multiplier")}
    return cast("Common", settings | {"epsilon": math.inf})
