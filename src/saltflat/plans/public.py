"""Methods that look at public data in every step: each a plan, and `fit` needs ``public=`` for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from saltflat.plan import AdaDps, Dope, MirrorDescent, Multiplicity, Plan, PublicGradient
from saltflat.plans.frame import Common
from saltflat.plans.presets import framed

DEFAULT_VIEWS = 16
DEFAULT_RHO = 0.1
PUBLIC_BATCH = 256


def weight_multiplicity(
    *, rho: float | None = None, public_batch: int | None = None, **common: Unpack[Common]
) -> Plan:
    """Weight multiplicity: view k of each example at w + ρ g_k/‖g_k‖, g_k the gradient of a public batch.

    ``multiplicity`` says how many views there are (16 by default) and how each is augmented; ``rho`` and
    ``public_batch`` (64 rows) belong to the public directions. They are the same for all private rows of a step.
    Guarantees: the budget for the whole plan. The mean over the views is clipped, so K changes nothing;
    public rows cost nothing.

    Reference: *Improving Private Training via In-distribution Public Data Synthesis and Generalization*,
    Algorithm 1.

    >>> plan = weight_multiplicity(epsilon=2.0, population=48_000, batch_size=4096, epochs=30)
    >>> print(plan.multiplicity)
    16 views, weights along public gradients, ρ 0.1, batches of 64
    """
    method = "weight-multiplicity"
    frame, own = framed(method, {"rho": rho, "public_batch": public_batch}, common)
    own["rho"] = DEFAULT_RHO if own["rho"] is None else own["rho"]
    plan = frame.plan(method, frame.phase(frame.steps, "descend"))
    views = frame.get("multiplicity", Multiplicity(DEFAULT_VIEWS))
    chosen = {key: value for key, value in own.items() if value is not None}
    return plan.changed(multiplicity=replace(views, **chosen))


def dope_sgd(*, public_batch: int = PUBLIC_BATCH, **common: Unpack[Common]) -> Plan:
    """DOPE-SGD: g_pub + (Σ clip(g_i − g_pub, C) + noise)/B (Nasr et al., ICML 2023).

    The public-data paper prints the difference with its sign reversed. Guarantees: one example moves the sum
    of clipped differences by at most C; unbiased where nothing is clipped.

    >>> plan = dope_sgd(epsilon=2.0, population=48_000, batch_size=4096, epochs=30)
    >>> print(plan.public_gradient)
    DOPE, batches of 256
    """
    return _with("dope-sgd", Dope(public_batch), common)


def mirror_descent(*, public_batch: int = PUBLIC_BATCH, **common: Unpack[Common]) -> Plan:
    """PDA-DPMD: steps with α_t g + (1 − α_t) g_pub, α_t = cos(πt/2T) (Amid et al., ICML 2022).

    Guarantees: the budget for the whole plan; the mixture is post-processing of a release.

    >>> mirror_descent(epsilon=2.0, population=48_000, batch_size=4096, epochs=30).needs_public
    True
    """
    return _with("mirror-descent", MirrorDescent(public_batch), common)


def ada_dps(
    *, public_batch: int = PUBLIC_BATCH, decay: float = 0.9, stability: float = 0.1, **common: Unpack[Common]
) -> Plan:
    """AdaDPS: gradients divided by √v + ``stability`` before the clip, v from public gradients (Li et al. 2022).

    Guarantees: the clip comes after the division, so one example moves the sum by at most C.

    >>> print(ada_dps(epsilon=2.0, population=48_000, batch_size=4096, epochs=30).public_gradient)
    AdaDPS, batches of 256, decay 0.9, stability 0.1
    """
    return _with("ada-dps", AdaDps(public_batch, decay, stability), common)


def _with(method: str, part: PublicGradient, common: Common) -> Plan:
    frame, _ = framed(method, {}, {**common, "public_gradient": part})
    return frame.plan(method, frame.phase(frame.steps, "descend"))
