"""Any plan that can be written down."""

from __future__ import annotations

import math
import warnings

from hypothesis import strategies as st

from saltflat.errors import PrivacyWarning
from saltflat.plan import (
    AdaDps,
    AutomaticClipping,
    Budget,
    CentralNoise,
    Dope,
    Ema,
    Federation,
    FlatClipping,
    FreshQuery,
    LocalTraining,
    MirrorDescent,
    Multiplicity,
    NoAscent,
    NoAveraging,
    NoMask,
    NoPublicGradient,
    Optimizer,
    OwnGradient,
    OwnMask,
    PerLayerClipping,
    Phase,
    Plan,
    Poisson,
    PreviousRelease,
    PublicMask,
    QuantileClipping,
    RandomMask,
    ReleaseMask,
    SharedNoise,
    Survey,
    Swa,
    TruncatedPoisson,
)

positive = st.floats(1e-6, 1e6)
fraction = st.floats(0.0, 0.999)
words = st.text(max_size=12)

ascents = st.one_of(
    st.builds(NoAscent),
    st.builds(PreviousRelease, fraction, fraction, st.booleans()),
    st.builds(FreshQuery, fraction, positive),
)
client_ascents = st.one_of(st.builds(NoAscent), st.builds(OwnGradient, fraction, st.booleans()))
averagings = st.one_of(
    st.builds(NoAveraging), st.builds(Swa, fraction, st.integers(1, 50)), st.builds(Ema, fraction)
)
clippings = st.one_of(
    st.builds(FlatClipping),
    st.builds(AutomaticClipping, positive),
    st.builds(PerLayerClipping),
    st.builds(QuantileClipping, st.floats(0.01, 0.99), positive, positive),
)
multiplicities = st.builds(
    Multiplicity,
    st.integers(2, 32),
    st.lists(st.sampled_from(["flip", "crop", "cutout", "auto"]), max_size=3).map(tuple),
    fraction,
) | st.builds(
    Multiplicity, st.integers(1, 32), st.just(("flip",)), st.just(0.0), fraction, st.integers(1, 500)
)
public_gradients = st.one_of(
    st.builds(NoPublicGradient),
    st.builds(Dope, st.integers(1, 500)),
    st.builds(MirrorDescent, st.integers(1, 500)),
    st.builds(AdaDps, st.integers(1, 500), fraction, positive),
)
optimizers = st.none() | st.builds(
    Optimizer,
    st.sampled_from(["sgd", "adam", "adam-bc"]),
    st.dictionaries(st.sampled_from(["momentum", "weight_decay", "nesterov"]), fraction | st.booleans()),
)
budgets = st.builds(
    Budget,
    positive | st.just(math.inf),
    st.floats(1e-12, 0.5),
    st.sampled_from(["add-remove", "zero-out"]),
    st.sampled_from(["example", "person", "client"]),
)

surveys = st.builds(Survey, st.integers(1, 10**6), positive | st.just(0.0))
ratios = st.floats(0.001, 1.0)
masks = st.one_of(
    st.builds(NoMask),
    st.builds(RandomMask, ratios, st.booleans()),
    st.builds(ReleaseMask, ratios, fraction, st.integers(0, 5)),
    st.builds(PublicMask, ratios),
    st.builds(OwnMask, ratios),
)
trainings = st.builds(
    LocalTraining, st.integers(1, 50), st.integers(1, 500), positive, fraction, fraction, fraction, fraction, fraction
)  # fmt: skip


@st.composite
def federated_plans(draw: st.DrawFn) -> Plan:
    """Plans over clients, in any combination that is allowed."""
    shared, clients, sigma = draw(st.booleans()), draw(st.integers(1, 10**5)), draw(st.none() | positive)
    stretches = tuple(
        Phase(
            draw(st.integers(1, 1000)),
            draw(positive),
            sigma,
            draw(positive),
            draw(client_ascents),
            draw(positive),
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    placement = SharedNoise(draw(st.integers(1, clients))) if shared else CentralNoise()
    clip = (
        st.builds(FlatClipping)
        if shared
        else st.builds(FlatClipping) | st.builds(AutomaticClipping, positive)
    )
    relation = "zero-out" if shared else draw(st.sampled_from(["add-remove", "zero-out"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return Plan(
            Poisson(clients, draw(st.integers(1, clients))),
            stretches,
            Budget(draw(positive), draw(st.floats(1e-12, 0.5)), relation, "client"),
            draw(optimizers),
            draw(st.builds(NoAveraging) | st.builds(Ema, fraction)),
            draw(clip),
            method=draw(words),
            federation=Federation(draw(trainings), draw(masks), placement),
        )


@st.composite
def samplings(draw: st.DrawFn) -> Poisson | TruncatedPoisson:
    population = draw(st.integers(1, 10**7))
    size = draw(st.integers(1, population) | st.floats(1e-3, 1.0))
    if draw(st.booleans()):
        return Poisson(population, size)
    return TruncatedPoisson(population, size, draw(st.just(0) | st.integers(population, 2 * population)))


@st.composite
def phases(draw: st.DrawFn, rated: bool) -> Phase:
    sigma = draw(st.none() | positive | st.just(0.0))
    clip = draw(positive | st.just(math.inf) if sigma == 0 else positive)
    return Phase(
        draw(st.integers(1, 10**6)),
        clip,
        sigma,
        draw(positive) if rated else None,
        draw(ascents),
        draw(positive),
        draw(st.booleans()),
        draw(words),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """All parts, in any combination."""
    rated = draw(st.booleans())
    stretches = tuple(draw(st.lists(phases(rated), min_size=1, max_size=3)))
    averaging, budget = draw(averagings), draw(budgets)
    survey = draw(st.none() | surveys) if budget.unit == "example" else None
    if isinstance(averaging, Swa) and sum(phase.steps for phase in stretches) < 100_000:
        averaging = Swa(averaging.start)  # every iterate, so that there is one to average
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return Plan(
            draw(samplings()),
            stretches,
            budget,
            draw(optimizers),
            averaging,
            draw(clippings),
            draw(multiplicities | st.just(Multiplicity())),
            draw(words),
            tuple(draw(st.lists(words, max_size=2))),
            draw(public_gradients),
            survey=survey,
        )
