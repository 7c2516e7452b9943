"""Each method with public data against its paper's algorithm, written out by hand: the same trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from public_helpers import drawn, options, public_gradient, small_public
from torch import Tensor, nn

from core_helpers import CLIP, Watch, loop_of, plan_of, small_data, small_net, weights_of
from saltflat import plans
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.engine.frame import Frame
from saltflat.models.layers import WeightStandardisedConv2d
from saltflat.plan import AdaDps, Dope, Ema, MirrorDescent, Multiplicity, PreviousRelease, Swa
from saltflat.training.step import Loop

STEPS = 8
COMMON: dict[str, Any] = {
    "population": 40, "batch_size": 8, "steps": STEPS, "delta": 1e-3, "noise_multiplier": 2.0, "clip_norm": 0.5,
    "learning_rate": 0.3, "momentum": 0.9,
}  # fmt: skip

Vector = list[Tensor]


class ByHand:
    """One example at a time, torch only; the random numbers are drawn as a private run with this seed does."""

    def __init__(self, seed: int = 3) -> None:
        self.model, self.data, self.public = small_net(), small_data(), small_public()
        self.weights = list(self.model.parameters())
        self.sampling = torch.Generator().manual_seed(2 * seed)
        self.noise = torch.Generator().manual_seed(2 * seed + 1)
        self.velocity: Vector | None = None

    def batch(self) -> list[int]:
        return [
            i for i, u in enumerate(torch.rand(40, dtype=torch.float64, generator=self.sampling)) if u < 0.2
        ]

    def gradient(self, row: int) -> Vector:
        loss = nn.functional.cross_entropy(
            self.model(self.data.inputs[row][None]), self.data.targets[row][None]
        )
        return list(torch.autograd.grad(loss, self.weights))

    def move(self, by: Vector, factor: float = 1.0) -> None:
        with torch.no_grad():
            for weight, part in zip(self.weights, by):
                weight.add_(part, alpha=factor)

    def at(self, by: Vector, compute: Callable[[], Vector]) -> Vector:
        before = weights_of(self.model)
        self.move(by)
        found = compute()
        with torch.no_grad():
            for weight, value in zip(self.weights, before):
                weight.copy_(value)
        return found

    def released(self, unit: Callable[[int], Vector], deviation: float = 1.0) -> Vector:
        total = [torch.zeros_like(weight) for weight in self.weights]
        for row in self.batch():
            found = unit(row)
            length = math.sqrt(sum(float((part**2).sum()) for part in found))
            total = [a + part * min(1.0, 0.5 / length) for a, part in zip(total, found)]
        released = []
        for part in total:
            noise = torch.empty(part.shape, dtype=torch.float64)
            released.append((part + noise.normal_(0.0, deviation, generator=self.noise)) / 8)
        return released

    def seen(self, size: int, purpose: str, step: int) -> Vector:
        return public_gradient(self.model, self.public, drawn(self.public, size, purpose, step)[0])

    def descend(self, release: Vector) -> None:
        self.velocity = (
            release if self.velocity is None else [0.9 * v + g for v, g in zip(self.velocity, release)]
        )
        self.move(self.velocity, -0.3)


def unit_length(vector: Vector, rho: float) -> Vector:
    length = math.sqrt(sum(float((part**2).sum()) for part in vector))
    return [part * (rho / length) for part in vector]


def followed(
    hand: ByHand, step: Callable[[int], Vector], after: Callable[[int], None] | None = None
) -> list[Vector]:
    path = []
    for number in range(1, STEPS + 1):
        hand.descend(step(number))
        path.append(weights_of(hand.model))
        if after is not None:
            after(number)
    return path


def assert_follows(plan: plans.METHODS, expected: list[Vector], **more: Any) -> Loop:
    loop = loop_of(small_net(), small_data(), plan, **options(small_public()), **more)
    for (ours, theirs), number in zip(
        ((weights_of(loop.model), e) for _, e in zip(loop, expected)), range(99)
    ):
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, s=number: f"step {s}: {m}")
    return loop


def test_dope_sgd() -> None:
    """g_pub + (Σ clip(g_i − g_pub) + N)/B. Meant to fail with the sign as the public-data paper prints it."""
    hand = ByHand()

    def step(number: int) -> Vector:
        seen = hand.seen(7, "gradient", number)
        release = hand.released(lambda row: [g - s for g, s in zip(hand.gradient(row), seen)])
        return [a + b for a, b in zip(release, seen)]

    assert_follows(plans.dope_sgd(public_batch=7, **COMMON), followed(hand, step), micro_batch=3)


def test_mirror_descent() -> None:
    """α_t g + (1 − α_t) g_pub with α_t = cos(πt/2T). Meant to fail when t counts from one."""
    hand = ByHand()

    def step(number: int) -> Vector:
        seen = hand.seen(7, "gradient", number)
        alpha = math.cos(math.pi * (number - 1) / (2 * STEPS))
        return [alpha * a + (1 - alpha) * b for a, b in zip(hand.released(hand.gradient), seen)]

    assert_follows(plans.mirror_descent(public_batch=7, **COMMON), followed(hand, step))


def test_ada_dps() -> None:
    """Divided by √v + stability before the clip. Meant to fail when the division comes after it."""
    hand = ByHand()
    moment = [[g**2 for g in hand.seen(7, "moment", 0)]]

    def step(_: int) -> Vector:
        scale = [1 / (v.sqrt() + 0.2) for v in moment[0]]
        return hand.released(lambda row: [g * s for g, s in zip(hand.gradient(row), scale)])

    def after(number: int) -> None:
        seen = hand.seen(7, "moment", number)
        moment[0] = [0.8 * v + 0.2 * g**2 for v, g in zip(moment[0], seen)]

    plan = plans.ada_dps(public_batch=7, decay=0.8, stability=0.2, **COMMON)
    assert_follows(plan, followed(hand, step, after))


@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_weight_multiplicity(micro_batch: int | None) -> None:
    """View k at w + ρ g_k/‖g_k‖, the mean clipped. Meant to fail when all views share one direction."""
    hand = ByHand()

    def step(number: int) -> Vector:
        batches = drawn(hand.public, 5, "views", number, 3)
        moves = [unit_length(public_gradient(hand.model, hand.public, rows), 0.4) for rows in batches]

        def unit(row: int) -> Vector:
            views = [hand.at(by, lambda: hand.gradient(row)) for by in moves]
            return [torch.stack(parts).mean(0) for parts in zip(*views)]

        return hand.released(unit)

    plan = plans.weight_multiplicity(rho=0.4, public_batch=5, multiplicity=Multiplicity(3), **COMMON)
    assert_follows(plan, followed(hand, step), micro_batch=micro_batch)


def test_dope_composes_with_dp_sat_and_with_averages() -> None:
    """Public and private gradients are taken at the same displaced weights."""
    hand, previous = ByHand(), [None]

    def step(number: int) -> Vector:
        by = (
            [torch.zeros_like(w) for w in hand.weights]
            if previous[0] is None
            else unit_length(previous[0], 0.2)
        )
        seen = hand.at(by, lambda: hand.seen(256, "gradient", number))
        release = hand.released(
            lambda row: [g - s for g, s in zip(hand.at(by, lambda: hand.gradient(row)), seen)]
        )
        previous[0] = [a + b for a, b in zip(release, seen)]
        return previous[0]

    assert_follows(plans.by_name("dp-sat+ema+dope", rho=0.2, **COMMON), followed(hand, step))


@pytest.mark.parametrize("name", ["dp-sat", "sai"])
@pytest.mark.parametrize("averaging", [Ema(0.4), Swa(0.5)])
def test_weight_multiplicity_composes_with_ascents_and_averages(name: str, averaging: Any) -> None:
    """Public gradients are taken at w + ρ r/‖r‖ with r the previous release, and the views lie around it.

    SAI has that ascent for five steps of eight, and less noise there. Fails when public gradients are taken at w, or
    the views lie around it (tried).
    """
    hand, switch = ByHand(), 5
    previous: list[Vector] = []

    def step(number: int) -> Vector:
        climbs = bool(previous) and (name == "dp-sat" or number <= switch)
        up = unit_length(previous[-1], 0.2) if climbs else [torch.zeros_like(w) for w in hand.weights]

        moves = []
        for rows in drawn(hand.public, 5, "views", number, 3):
            seen = hand.at(up, partial(public_gradient, hand.model, hand.public, rows))
            moves.append([a + b for a, b in zip(up, unit_length(seen, 0.4))])

        def unit(row: int) -> Vector:
            views = [hand.at(by, lambda: hand.gradient(row)) for by in moves]
            return [torch.stack(parts).mean(0) for parts in zip(*views)]

        louder = name == "sai" and number > switch
        previous.append(hand.released(unit, deviation=1.5 if louder else 1.0))
        return previous[-1]

    more: dict[str, Any] = {"switch": switch, "noise_ratio": 1.5} if name == "sai" else {}
    views = Multiplicity(3, rho=0.4, public_batch=5)
    plan = plans.by_name(name, rho=0.2, multiplicity=views, averaging=averaging, **more, **COMMON)
    path = followed(hand, step)
    loop = assert_follows(plan, path)
    if isinstance(averaging, Swa):
        mean = [torch.stack(parts).mean(0) for parts in zip(*path[STEPS // 2 :])]
    else:
        mean = path[0]
        for number, weights in enumerate(path[1:], start=2):
            decay = min(0.4, (1 + number) / (10 + number))
            mean = [decay * a + (1 - decay) * w for a, w in zip(mean, weights)]
    for ours, by_hand in zip(loop.average.average.values(), mean):
        torch.testing.assert_close(ours, by_hand, rtol=1e-9, atol=1e-11)


# --- what holds whatever the data ----------------------------------------------------------------------


def test_dope_is_unbiased_where_nothing_is_clipped() -> None:
    """The mean over all Poisson batches of the release is the mean gradient. No statistics: by linearity, the
    expected release is that of rate 1 with the divisor of the plan. Meant to fail when g_pub is not added."""
    plan = plans.dope_sgd(population=40, rate=1.0, steps=1, delta=1e-3, noise_multiplier=0.0, clip_norm=1e6)
    model, data = small_net(), small_data()
    loop = loop_of(model, data, plan, **options(small_public()))
    release = loop.query(1, plan.phases[0]).gradient
    loss = nn.functional.cross_entropy(model(data.inputs), data.targets)
    for ours, mean in zip(release.values(), torch.autograd.grad(loss, list(model.parameters()))):
        torch.testing.assert_close(ours, mean, rtol=1e-9, atol=1e-12)


def test_dope_releases_the_public_gradient_where_all_private_ones_equal_it() -> None:
    """The noise is all that is added to it, however small the clip norm."""
    model, one = small_net(), small_data(1)
    data = one.subset(torch.zeros(30, dtype=torch.long))
    public = small_data(1).subset(torch.zeros(4, dtype=torch.long), "public")
    plan = plans.dope_sgd(population=30, rate=0.5, steps=1, delta=1e-3, noise_multiplier=3.0, clip_norm=0.01)
    loop = loop_of(model, data, plan, **options(public))
    release = loop.query(1, plan.phases[0]).gradient
    loss = nn.functional.cross_entropy(model(one.inputs), one.targets)
    noise = torch.Generator().manual_seed(7)
    for ours, expected in zip(release.values(), torch.autograd.grad(loss, list(model.parameters()))):
        added = torch.empty(ours.shape, dtype=torch.float64).normal_(0.0, 0.03, generator=noise) / 15
        torch.testing.assert_close(ours, expected + added, rtol=0, atol=1e-12)


PARTS: dict[str, dict[str, Any]] = {
    "weight multiplicity": {"multiplicity": Multiplicity(4, rho=0.5, public_batch=6)},
    "weight multiplicity, one view": {"multiplicity": Multiplicity(1, rho=0.5, public_batch=6)},
    "dope": {"public_gradient": Dope(6)},
    "dope and weight multiplicity": {
        "public_gradient": Dope(6),
        "multiplicity": Multiplicity(4, rho=0.5, public_batch=6),
    },
    "mirror descent": {"public_gradient": MirrorDescent(6)},
    "ada-dps": {"public_gradient": AdaDps(6)},
    "ada-dps after an ascent": {"public_gradient": AdaDps(6), "ascent": PreviousRelease(0.1)},
}


def summed(parts: dict[str, Any], data: Any, batch: list[int], seed: int | None = 3, **more: Any) -> Tensor:
    loop = loop_of(small_net(), data, plan_of(**parts), seed=seed, **options(small_public()), **more)
    watch = Watch(loop, batch)
    next(iter(loop))
    return watch.sums[-1]


@pytest.mark.parametrize("strange", [1e9, math.inf, math.nan, 0.0, 1.0])
@pytest.mark.parametrize("name", PARTS)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(name: str, strange: float) -> None:
    """Whatever K; for DOPE, of clipped differences. Meant to fail when views are clipped one by one."""
    data = small_data()
    data.inputs[11] *= strange
    without, joined = (summed(PARTS[name], data, batch) for batch in ([2, 5, 30], [2, 5, 11, 30]))
    assert bool(joined.isfinite().all())
    assert float((joined - without).norm()) <= CLIP * (1 + 1e-9)


@pytest.mark.parametrize("name", PARTS)
def test_a_large_example_reaches_the_clip_norm(name: str) -> None:
    """So the test above would notice a sum that ignores the example."""
    data = small_data()
    data.inputs[11] *= 20
    without, joined = (summed(PARTS[name], data, batch) for batch in ([2, 5, 30], [2, 5, 11, 30]))
    assert float((joined - without).norm()) >= 0.99 * CLIP


@pytest.mark.parametrize("name", PARTS)
def test_every_micro_batch_sees_the_same_public_gradients(name: str) -> None:
    whole = summed(PARTS[name], small_data(), list(range(12)))
    for size in (1, 5):
        torch.testing.assert_close(
            summed(PARTS[name], small_data(), list(range(12)), micro_batch=size),
            whole,
            rtol=1e-10,
            atol=1e-12,
        )


@pytest.mark.parametrize("name", ["dope", "weight multiplicity", "ada-dps"])
def test_the_exact_tier_takes_public_gradients_too(name: str) -> None:
    exact = summed(PARTS[name], small_data(), [2, 5, 11, 30], seed=None, randomness="exact")
    fast = summed(PARTS[name], small_data(), [2, 5, 11, 30])
    assert exact.dtype == torch.int64
    scaled = exact.double() / float(exact.double().norm()) * float(fast.norm())
    torch.testing.assert_close(scaled, fast, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in PARTS if "ascent" not in name])
def test_public_batches_cost_nothing(name: str) -> None:
    """The same ε and the same ledger as without them."""
    plain, public = plan_of(steps=3), plan_of(steps=3, **PARTS[name])
    assert plain.epsilon == public.epsilon
    assert plain.events() == public.events()
    loops = [loop_of(small_net(), small_data(), p, **options(small_public())) for p in (plain, public)]
    for loop in loops:
        assert sum(1 for _ in loop) == 3
    one, two = ([e for e in loop.mechanism.ledger.entries if e["kind"] == "release"] for loop in loops)
    dropped = {"hash", "previous", "plan_hash"}
    assert [{k: v for k, v in e.items() if k not in dropped} for e in one] == [
        {k: v for k, v in e.items() if k not in dropped} for e in two
    ]


def test_views_of_standardised_kernels_each_have_their_own_derivation() -> None:
    """The pull-back to a kernel depends on the kernel. Meant to fail when one view's form serves another."""
    torch.manual_seed(0)
    model = nn.Sequential(
        WeightStandardisedConv2d(8, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(96, 3)
    ).double()
    inputs, targets = torch.randn(12, 8, 4, 4, dtype=torch.float64), torch.arange(12) % 3
    moves = [{n: 0.3 * torch.randn_like(p) for n, p in model.named_parameters()} for _ in range(2)]
    loss = nn.CrossEntropyLoss(reduction="none")
    found = clipped_sum(model, loss, inputs, targets, 0.5, rows_per_unit=2, displacements=moves)
    expected = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    weights = dict(model.named_parameters())
    for unit in range(6):
        total = {n: torch.zeros_like(p) for n, p in expected.items()}
        for view, by in enumerate(moves):
            row = slice(2 * unit + view, 2 * unit + view + 1)
            moved = {n: (p + by[n]).detach().requires_grad_() for n, p in weights.items()}
            out = loss(torch.func.functional_call(model, moved, (inputs[row],)), targets[row]).sum()
            for n, g in zip(moved, torch.autograd.grad(out, list(moved.values()))):
                total[n] += g
        factor = min(1.0, 0.5 / math.sqrt(sum(float(g.square().sum()) for g in total.values())))
        expected = {n: expected[n] + factor * total[n] for n in total}
    for n, value in expected.items():
        torch.testing.assert_close(found.grads[n], value, rtol=1e-8, atol=1e-10)


def test_a_frame_reaches_weights_that_the_batch_did_not_touch() -> None:
    """Their gradient is zero, and the difference from the shift is not."""
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    model.forward = lambda x: model["used"](x)  # type: ignore[assignment]
    shift = {name: torch.full_like(p, 0.1) for name, p in model.named_parameters()}
    targets = torch.zeros(3, dtype=torch.long)
    loss = nn.CrossEntropyLoss(reduction="none")
    found = clipped_sum(model, loss, torch.randn(3, 2), targets, 100.0, frame=Frame(shift=shift))
    torch.testing.assert_close(found.grads["idle.weight"], torch.full((2, 2), -0.3))
