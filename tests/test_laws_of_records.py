"""The laws of what a run writes: nothing of the number of rows, an entry before each release, seeds said aloud."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saltflat as sf
from core_helpers import Watch, loop_of, other_size_declared, plan_of, small_data, small_net, weights_of
from saltflat import plans
from saltflat.plan import (
    Plan,
    QuantileClipping,
)
from saltflat.record.ledger import Ledger
from saltflat.training import build

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
    assert {key for row in rows for key in row} == {
        "step", "epoch", "epsilon_so_far", "loss", "accuracy", "evaluation",
    }  # fmt: skip
    assert {row["evaluation"] for row in rows} == {"not covered"}
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
    """Two batches before one draw, or a draw without an entry, would show. Fails for both (tried).

    Micro-batches have one row: a draw for each of them would show as well.
    """
    calls = {"noise": 0, "batch": 0}
    noised, draw = build.noised, build.draw
    monkeypatch.setattr(build, "noised", lambda *a: (calls.update(noise=calls["noise"] + 1), noised(*a))[1])
    monkeypatch.setattr(build, "draw", lambda *a: (calls.update(batch=calls["batch"] + 1), draw(*a))[1])
    loop = loop_of(small_net(), small_data(), plans.dp_sam(
        population=40, batch_size=8, steps=7, noise_multiplier=2.0, delta=1e-3
    ), micro_batch=1)  # fmt: skip
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
            tensors = [*loop.weights.values(), *loop.ascent.memory.get("direction", {}).values()]
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
