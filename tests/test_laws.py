"""The laws of the private step, and an audit of it: sensitivity by replay, the laws of noise and of sampling."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import saltflat as sf
from core_helpers import loop_of, other_size_declared, small_data, small_net, weights_of
from saltflat import plans
from saltflat.data.source import Examples
from saltflat.plan import (
    AutomaticClipping,
    Budget,
    FreshQuery,
    Multiplicity,
    PerLayerClipping,
    Phase,
    Plan,
    Poisson,
    PreviousRelease,
    QuantileClipping,
)
from saltflat.record.ledger import Ledger
from saltflat.training import build
from saltflat.training.step import Loop

CLIP = 0.5


def plan_of(*, steps: int = 1, sigma: float = 2.0, ascent: Any = None, **parts: Any) -> Plan:
    """A plan over 40 declared rows, 8 expected in a batch."""
    phase = Phase(steps, CLIP, sigma, 0.5, *([ascent] if ascent else []))
    return Plan(Poisson(40, 8), (phase,), Budget(100.0, 1e-5), **parts)


class Watch:
    """What a loop's mechanism was asked to release, before noise, and what it drew from."""

    def __init__(self, loop: Loop, batch: list[int]) -> None:
        self.loop, self.sums, self.counts = loop, [], []
        mechanism = loop.mechanism
        release, release_count = mechanism.release, mechanism.release_count

        def watched(total: Any, sigma: float, clip_norm: float) -> dict[str, Tensor]:
            self.sums.append(torch.cat([part.flatten().clone() for part in total.values()]))
            return release(total, sigma, clip_norm)

        def counted(count: float) -> float | None:
            self.counts.append(count)
            return release_count(count)

        mechanism.release = watched  # type: ignore[method-assign]
        mechanism.release_count = counted  # type: ignore[method-assign]
        mechanism.draw_batch = lambda: torch.tensor(batch, dtype=torch.long)  # type: ignore[method-assign]


def stranger(kind: str) -> tuple[Tensor, int]:
    """One more example, of the kind that has broken other libraries."""
    values = {"large": 1e9, "huge": 1e200, "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "zero": 0.0}
    label = -7 if kind == "label" else 99 if kind == "far label" else 1
    return torch.full((4,), values.get(kind, 1.0), dtype=torch.float64), label


PARTS: dict[str, dict[str, Any]] = {
    "dp-sgd": {},
    "dp-sat": {"ascent": PreviousRelease(0.3)},
    "dp-sam": {"ascent": FreshQuery(0.0, 3.0)},  # at radius zero, both queries are at the same weights
    "automatic": {"clipping": AutomaticClipping()},
    "per layer": {"clipping": PerLayerClipping()},
    "quantile": {"clipping": QuantileClipping(count_noise=2.0)},
    "views": {"multiplicity": Multiplicity(3)},
    "moved weights": {"multiplicity": Multiplicity(2, deviation=0.1)},
}


@pytest.mark.parametrize("kind", ["large", "huge", "nan", "inf", "-inf", "zero", "label", "far label"])
@pytest.mark.parametrize("parts", PARTS)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(parts: str, kind: str) -> None:
    """Replay: the same batch with and without one example, from the same state.

    Fails when the norm leaves out a tensor, when NaN is multiplied by zero instead of masked, or when views
    are clipped one by one (tried).
    """
    data, plan = small_data(12), plan_of(**PARTS[parts])
    row, label = stranger(kind)
    more = Examples(torch.cat([data.inputs, row[None]]), torch.cat([data.targets, torch.tensor([label])]))
    watches = []
    for rows, batch in ((data, list(range(9))), (more, [*range(9), 12])):
        loop = loop_of(small_net(), rows, plan)
        watch = Watch(loop, batch)
        loop.ascent.direction = {name: torch.ones_like(w) for name, w in loop.weights.items()}
        assert [step.number for step in loop] == [1]
        watches.append(watch)
    one, two = watches
    assert len(one.sums) == len(two.sums) == len(plan.phases[0].query_noises)
    for a, b in zip(one.sums, two.sums):
        assert torch.isfinite(b).all()
        assert float((a - b).norm()) <= CLIP * (1 + 1e-5)
        assert float(a.norm()) > 0.1  # the batch itself is not silenced
    assert abs(one.counts[0] - two.counts[0]) <= 0.5 + 1e-12
    # What is declared, and the random numbers drawn, are the same to the last bit.
    assert one.loop.mechanism.ledger.entries == two.loop.mechanism.ledger.entries
    states = [w.loop.mechanism.randomness.noise.get_state() for w in watches]
    assert torch.equal(*states)
    assert all(torch.isfinite(weight).all() for weight in two.loop.model.parameters())


def test_a_far_example_does_move_the_sum_by_the_clip_norm() -> None:
    """The bound above is tight: an example that is clipped contributes exactly C."""
    data = small_data(12)
    loop = loop_of(small_net(), data, plan_of())
    lengths = []
    for row in range(12):
        watch = Watch(loop, [row])
        loop.private_step(1, loop.plan.phases[0])
        lengths.append(float(watch.sums[0].norm()))
    assert max(lengths) == pytest.approx(CLIP, rel=1e-9)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sat", "dp-sam", "sai"])
def test_a_step_never_raises_on_data_and_weights_stay_finite(method: str) -> None:
    """Half of the rows are broken, the first ones among them. Fails when 0 · inf reaches the sum (tried)."""
    data = small_data(40)
    data.inputs[0:20:3] = math.nan
    data.inputs[1:20:3] = math.inf
    data.inputs[2:20:3] = 1e300
    data.targets[20:30] = -1
    settings = {"population": 40, "batch_size": 20, "steps": 12, "noise_multiplier": 3.0, "delta": 1e-3}
    plan = plans.by_name(method, **settings)
    rows = (data.inputs, data.targets)  # without declared classes, so that the labels pass
    model = small_net()
    run = sf.fit(model, rows, plan, progress=False)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert run.epsilon == plan.epsilon


# --- the law of noise ---------------------------------------------------------------------------------


class Blind(nn.Module):
    """Three tensors of 120,000 numbers in all, and a loss that does not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(200, 200, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(40_000, dtype=torch.float64))
        self.c = nn.Parameter(torch.zeros(100, 400, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return 0.0 * (self.a.sum() + self.b.sum() + self.c.sum()) + inputs


def blind_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum(1) * 0.0


def noise_of_steps(steps: int, *, micro_batch: int | None = None, rows: int = 40) -> list[list[Tensor]]:
    """The noise of each step and tensor, in units of what was declared, from the weights alone."""
    sigma, rate = 1.7, 0.3
    phase = Phase(steps, CLIP, sigma, rate)
    plan = Plan(Poisson(40, 8), (phase,), Budget(100.0, 1e-5), optimizer=sf.plan.Optimizer("sgd", {}))
    data = Examples(torch.zeros(rows, 2, dtype=torch.float64), torch.zeros(rows, dtype=torch.long))
    loop = loop_of(Blind(), data, plan, loss_fn=blind_loss, seed=11, micro_batch=micro_batch)
    before, found = weights_of(loop.model), []
    for _ in loop:
        after = weights_of(loop.model)
        found.append([(b - a).flatten() * 8 / (rate * sigma * CLIP) for a, b in zip(after, before)])
        before = after
    return found


@pytest.mark.statistical
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_the_noise_in_the_weights_has_the_declared_size(micro_batch: int | None) -> None:
    """χ² over 120,000 coordinates at level 1e-6.

    Power: one standard error of the variance is 0.41 %, the threshold 4.9 of them, and 2 % too much or too
    little σ is 9.9: missed less than once in a million. Fails when noise is scaled for the mean, added once
    per micro-batch, or left out of one tensor (tried).
    """
    for step in noise_of_steps(2, micro_batch=micro_batch):
        noise = torch.cat(step)
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(noise))
        assert low < float((noise**2).sum()) < high
        for part in step:
            low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(part))
            assert low < float((part**2).sum()) < high
        assert abs(float(noise.mean())) < 6 / math.sqrt(len(noise))
        assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-6


@pytest.mark.statistical
def test_noise_is_new_in_every_tensor_and_step() -> None:
    """No correlation beyond 6/√d. Fails when one draw is used for two tensors, or for two steps (tried)."""
    vectors = [part for step in noise_of_steps(3) for part in step]
    bound = 6 / math.sqrt(len(vectors[0]))
    for i, a in enumerate(vectors):
        for b in vectors[:i]:
            assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < bound


def test_an_empty_batch_releases_pure_noise() -> None:
    """The weights move by noise alone, and the step is recorded like any other. Fails when it is skipped (tried)."""
    loop = loop_of(small_net(), small_data(3), plan_of(steps=3))
    watch = Watch(loop, [])
    before = weights_of(loop.model)
    assert len(list(loop)) == 3
    assert all(float(total.norm()) == 0 for total in watch.sums)
    assert all(not torch.equal(a, b) for a, b in zip(before, weights_of(loop.model)))
    assert loop.mechanism.ledger.releases == 3


def test_fit_goes_through_with_nothing_but_empty_batches(tmp_path: Path) -> None:
    plan = plans.dp_sgd(noise_multiplier=2.0, population=10**7, batch_size=1, steps=4, delta=1e-9)
    with pytest.warns(sf.PrivacyWarning, match="The data has 3 rows"):
        run = sf.fit(small_net(), small_data(3), plan, out=tmp_path / "run", progress=False)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").releases == 4
    assert run.epsilon == plan.epsilon


def test_every_coordinate_has_noise() -> None:
    """Also parameters that the loss does not reach. Fails when only used ones are released (tried)."""

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 3).double(), nn.Linear(2, 2).double()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.used(inputs)

    model = Idle()
    before = weights_of(model)
    list(loop_of(model, small_data(), plan_of()))
    assert all((a != b).all() for a, b in zip(before, weights_of(model)))


def test_tied_parameters_are_one() -> None:
    """One draw of noise, one part of the sum. Fails when a tied weight is released twice (tried)."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    model[2].weight = model[0].weight
    loop = loop_of(model, small_data(), plan_of())
    watch = Watch(loop, [1, 2, 3])
    list(loop)
    assert model[2].weight is model[0].weight
    assert len(watch.sums[0]) == 4 * 4 + 4 + 4


def test_frozen_parameters_stay() -> None:
    model = small_net()
    model[0].weight.requires_grad_(False)
    before = weights_of(model)
    list(loop_of(model, small_data(), plan_of()))
    after = weights_of(model)
    assert torch.equal(before[0], after[0])
    assert all(not torch.equal(a, b) for a, b in zip(before[1:], after[1:]))


# --- the law of sampling ------------------------------------------------------------------------------


def mechanism_over(rows: int, plan: Plan, seed: int = 4) -> build.Mechanism:
    data = Examples(torch.zeros(rows, 1), torch.zeros(rows))
    return build.build_mechanism(plan, data, Ledger(), torch.device("cpu"), seed)


@pytest.mark.statistical
def test_batch_sizes_are_binomial() -> None:
    """Variance n·q·(1 − q) by χ² at 1e-6 over 2000 batches. Fails for batches of fixed size (tried).

    Power: the variance is known to 3.2 %, the threshold is 16 %, and a shuffle has none at all.
    """
    plan = Plan(Poisson(2000, 200), (Phase(1, 1.0, 2.0),), Budget(1.0, 1e-5))
    mechanism = mechanism_over(2000, plan)
    sizes = torch.tensor([float(len(mechanism.draw_batch())) for _ in range(2000)])
    expected = 2000 * 0.1 * 0.9
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(sizes))
    assert low < float(((sizes - 200) ** 2).sum()) / expected < high
    assert abs(float(sizes.mean()) - 200) < 6 * math.sqrt(expected / 2000)


@pytest.mark.statistical
def test_the_share_that_is_seen_exactly_once() -> None:
    """0.387 in 1/q steps at q = 0.1; a shuffle has 1.0. Fails when batches partition the rows (tried)."""
    plan = Plan(Poisson(20_000, 2000), (Phase(1, 1.0, 2.0),), Budget(1.0, 1e-5))
    mechanism = mechanism_over(20_000, plan)
    seen = torch.zeros(20_000)
    for _ in range(10):
        seen[mechanism.draw_batch()] += 1
    exact = 10 * 0.1 * 0.9**9
    assert exact == pytest.approx(0.387, abs=1e-3)
    assert float((seen == 1).double().mean()) == pytest.approx(exact, abs=6 * math.sqrt(0.24 / 20_000))


# --- n is secret --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sat", "dp-sam", "sai"])
def test_nothing_outside_the_batch_depends_on_the_number_of_rows(method: str) -> None:
    """The same batch out of 30 and out of 300 rows: the same weights, bit for bit, and the same ledger.

    Fails when rate, divisor or steps are taken from the data (tried).
    """
    plan = plans.by_name(method, population=40, batch_size=8, steps=6, noise_multiplier=2.0, delta=1e-3)
    data = small_data(300)
    ends = []
    for rows in (30, 300):
        loop = loop_of(small_net(), data.subset(torch.arange(rows)), plan)
        Watch(loop, [1, 4, 9, 16, 25])
        list(loop)
        ends.append((weights_of(loop.model), loop.mechanism.ledger.entries))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0], ends[1][0]))
    assert ends[0][1] == ends[1][1]


def everything_in(folder: Path) -> list[Any]:
    """Every key and value in the text files of a run folder."""
    found: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                found.append(key)
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        else:
            found.append(value)

    for path in folder.rglob("*.json*"):
        text = path.read_text(encoding="utf-8")
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            walk(json.loads(part))
    return found


def test_the_folder_says_nothing_of_the_rows(tmp_path: Path) -> None:
    """Another size than declared is said on the terminal and stored nowhere; nor are losses or batch sizes."""
    plan = plans.dp_sgd(noise_multiplier=2.0, population=100, batch_size=20, steps=10, delta=1e-3)
    files = {}
    for rows in (97, 83):
        with pytest.warns(sf.PrivacyWarning, match=f"The data has {rows} rows .* stored nowhere"):
            sf.fit(small_net(), small_data(rows), plan, out=tmp_path / str(rows), seed=1, progress=False)
        folder = tmp_path / str(rows)
        assert rows not in everything_in(folder)
        assert not any("loss" in str(key) or "batch" in str(key) for key in json_keys(folder))
        files[rows] = {
            name: (folder / name).read_bytes() for name in ("plan.json", "ledger.jsonl", "metrics.jsonl")
        }
    assert files[97] == files[83]


def json_keys(folder: Path) -> set[str]:
    """The keys of ledger, metrics and run facts; the plan and the certificate declare a batch size."""
    keys: set[str] = set()
    for name in ("ledger.jsonl", "metrics.jsonl"):
        for line in (folder / name).read_text().splitlines():
            keys |= set(json.loads(line))
    return keys | set(json.loads((folder / "run.json").read_text()))


def test_with_test_data_only_its_own_figures_are_stored(tmp_path: Path) -> None:
    plan = plans.dp_sgd(noise_multiplier=2.0, population=40, batch_size=8, steps=10, delta=1e-3)
    sf.fit(
        small_net(), small_data(), plan, evaluate=small_data(9, seed=1), out=tmp_path / "r", progress=False
    )
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert {key for row in rows for key in row} == {"step", "epoch", "epsilon_so_far", "loss", "accuracy"}
    model = sf.Run.load(tmp_path / "r", small_net()).model
    outputs = model(small_data(9, seed=1).inputs).detach()
    targets = small_data(9, seed=1).targets
    assert rows[-1]["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)))
    assert rows[-1]["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))


# --- the ledger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sam", "sai", "dp-sgd quantile"])
def test_the_entry_is_on_disk_before_the_release_is_drawn(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the step is recorded after its noise was drawn, or is not flushed (tried)."""
    name, _, quantile = method.partition(" ")
    parts = {"clipping": QuantileClipping()} if quantile else {}
    plan = plans.by_name(
        name, population=40, batch_size=8, steps=5, noise_multiplier=2.0, delta=1e-3, **parts
    )
    path = tmp_path / "run" / "ledger.jsonl"
    seen: list[int] = []
    noised = build.noised

    def looking(*arguments: Any) -> Any:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        seen.append(lines[-1]["step"])
        return noised(*arguments)

    monkeypatch.setattr(build, "noised", looking)
    sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", progress=False)
    queries = len(plan.phases[0].query_noises)
    assert seen == [step for step in range(1, 6) for _ in range(queries)]


@pytest.mark.parametrize("method", ["dp-sgd", "dp-sam", "dp-sat", "sai", "truncated", "quantile"])
def test_the_ledger_alone_gives_the_plans_epsilon(method: str, tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "truncated": {"sampling": "truncated-poisson"}, "quantile": {"clipping": QuantileClipping()},
    }.get(method, {})  # fmt: skip
    name = "dp-sgd" if parts else method
    plan = plans.by_name(
        name, population=40, batch_size=4, steps=8, noise_multiplier=3.0, delta=1e-3, **parts
    )
    run = sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", progress=False)
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    from saltflat.accounting import epsilon

    assert epsilon(list(ledger.events()), 1e-3) == pytest.approx(plan.epsilon, rel=1e-9)
    assert run.certificate.epsilon == plan.epsilon
    assert [entry["noise_multipliers"] for entry in ledger.entries[1:]] == [
        list(plan.query_noises(phase)) for phase in plan.schedule()
    ]


def test_what_follows_a_release_leaves_the_ledger_unchanged() -> None:
    """Schedules, averaging, optimizers and ascents from releases."""
    common = {"population": 40, "batch_size": 8, "steps": 5, "noise_multiplier": 2.0, "delta": 1e-3}
    variants: list[tuple[Plan, dict[str, Any]]] = [
        (plans.dp_sgd(**common), {}),
        (plans.dp_sgd(**common), {"schedule": lambda done: 1 - done}),
        (plans.dp_sgd(averaging=sf.plan.Ema(), **common), {}),
        (plans.dp_sgd(optimizer="adam", **common), {}),
        (plans.dp_sat(rho=0.5, **common), {}),
    ]
    ledgers = []
    for plan, options in variants:
        loop = loop_of(small_net(), small_data(), plan, **options)
        list(loop)
        ledgers.append(
            [
                {**entry, "plan_hash": "", "previous": "", "hash": ""}
                for entry in loop.mechanism.ledger.entries[1:]
            ]
        )
    assert all(ledger == ledgers[0] for ledger in ledgers)


def test_draws_of_noise_equal_ledger_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches before one draw, or a draw without an entry, would show. Fails for both (tried)."""
    calls = {"noise": 0, "batch": 0}
    noised, draw = build.noised, build.draw
    monkeypatch.setattr(build, "noised", lambda *a: (calls.update(noise=calls["noise"] + 1), noised(*a))[1])
    monkeypatch.setattr(build, "draw", lambda *a: (calls.update(batch=calls["batch"] + 1), draw(*a))[1])
    loop = loop_of(small_net(), small_data(), plans.dp_sam(
        population=40, batch_size=8, steps=7, noise_multiplier=2.0, delta=1e-3
    ))  # fmt: skip
    list(loop)
    entries = loop.mechanism.ledger.entries[1:]
    assert calls == {"noise": sum(len(e["noise_multipliers"]) for e in entries), "batch": len(entries)}
    assert calls == {"noise": 14, "batch": 7}


def test_gradients_of_one_step_do_not_reach_the_next() -> None:
    """No left-over ``grad``. Fails when gradients are added to what is there (tried)."""
    model = small_net()
    loop = loop_of(model, small_data(), plan_of(steps=3))
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 1e6)
    list(loop)
    clean = loop_of(small_net(), small_data(), plan_of(steps=3))
    list(clean)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(model), weights_of(clean.model)))
    assert all(weight.grad is None for weight in model.parameters())


# --- seeds and certificates ---------------------------------------------------------------------------


def test_a_seeded_run_is_not_private_and_says_so(tmp_path: Path) -> None:
    plan = plans.dp_sgd(noise_multiplier=2.0, population=40, batch_size=8, steps=3, delta=1e-3)
    run = sf.fit(small_net(), small_data(), plan, out=tmp_path / "run", seed=7, progress=False)
    assert run.epsilon == math.inf
    assert not run.certificate.is_private
    assert "fixed seed" in str(run.certificate)
    stored = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert (stored["epsilon"], stored["private"], stored["seeded"]) == ("inf", False, True)
    entry = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert entry["seeded"] is True


def test_a_seed_repeats_a_run_and_no_seed_does_not() -> None:
    plan = plans.dp_sgd(noise_multiplier=2.0, population=40, batch_size=8, steps=3, delta=1e-3)

    def end(seed: int | None) -> list[Tensor]:
        return weights_of(sf.fit(small_net(), small_data(), plan, seed=seed, progress=False).model)

    assert all(torch.equal(a, b) for a, b in zip(end(5), end(5)))
    assert not torch.equal(end(5)[0], end(6)[0])
    assert not torch.equal(end(None)[0], end(None)[0])


def test_the_global_seed_does_not_make_noise_predictable() -> None:
    """`torch.manual_seed` before a run. Fails when noise comes from the global generator (tried)."""
    plan = plans.dp_sgd(noise_multiplier=2.0, population=40, batch_size=8, steps=2, delta=1e-3)
    ends = []
    for _ in range(2):
        model = small_net()
        torch.manual_seed(0)
        ends.append(weights_of(sf.fit(model, small_data(), plan, progress=False).model))
    assert not torch.equal(ends[0][0], ends[1][0])


def test_memory_of_a_step_does_not_grow_with_the_run() -> None:
    """What a loop holds after many steps is what it held after few."""
    loop = loop_of(small_net(), small_data(), plans.sai(
        rho=0.1, population=40, batch_size=8, steps=60, noise_multiplier=2.0, delta=1e-3
    ))  # fmt: skip
    held = []
    for step in loop:
        if step.number in (5, 60):
            tensors = [*loop.weights.values(), *(loop.ascent.direction or {}).values()]
            tensors += [v for s in loop.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
            held.append(sum(t.numel() for t in tensors))
    assert held[0] == held[1]


def test_the_size_warning_is_only_about_the_size() -> None:
    """Declared and real sizes that agree are silent; the helper for the others silences nothing else."""
    plan = plans.dp_sgd(noise_multiplier=2.0, population=40, batch_size=8, steps=1, delta=1e-3)
    sf.fit(small_net(), small_data(40), plan, progress=False)
    with other_size_declared():
        sf.fit(small_net(), small_data(30), plan, progress=False)
    assert copy.deepcopy(plan) == plan
