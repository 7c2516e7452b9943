"""The comparison of engines: same sums, failures listed, wrong gradients noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from saltflat.bench import contenders as all_contenders
from saltflat.bench import engines, jax_engine
from saltflat.bench.contenders import WHOLLY_WRONG, Contender, contenders, one_by_one, relative_error, sums_of
from saltflat.bench.processes import FailedProcessError
from saltflat.bench.timing import Step
from saltflat.bench.workload import OWN_LOSS, Workload, build, check_models, input_shape, parameter_count
from saltflat.errors import InputError
from saltflat.models import describe, names

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_all_engines_give_one_and_the_same_sum() -> None:
    """Fails when a peer forgets the earlier of two physical batches (tried: it is not among them then)."""
    pytest.importorskip("opacus")
    result = engines.compare("mlp", examples=80, rounds=1)  # two physical batches of at most 64
    left_out = {row["name"] for row in result["missing"] if row["reason"].startswith("slower than")}
    assert {name for name in [*result["contenders"], *left_out] if not name.startswith("jax")} == {
        "saltflat", "ordinary, 64", "ordinary, 80", "channels_last, 64", "channels_last, 80", "opacus hooks, 64",
        "opacus ghost, 64", "opacus ghost, 80", "torch.func, 16", "torch.func, 64",
    }  # fmt: skip
    for row in result["contenders"].values():
        assert row["difference"] is None or row["difference"] < 1e-5
        assert row["seconds"] > 0
        assert len(row["times"]) == 1
    assert result["gradient_error"] < 1e-5
    assert result["clipped_error"] < 1e-5
    assert engines.is_right(result)
    assert result["parameters"] == 4_810
    for family in ("ordinary", "channels_last", "opacus", "torch.func", "fastest peer"):
        assert result["ratios"][family]["median"] > 0


def test_a_model_has_a_process_of_its_own() -> None:
    """With as many threads as here: fails when it takes as many as it likes (tried)."""
    here = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = engines.compare_apart("logistic", examples=8, rounds=2)
    finally:
        torch.set_num_threads(here)
    assert found["threads"] == 3
    assert engines.is_right(found)
    assert found.keys() == engines.compare("logistic", examples=8, rounds=2).keys()


def test_peers_warm_up_as_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is clearly slower is decided then. Fails when all warm up with what saltflat set (tried)."""
    state: list[str] = []
    seen: dict[str, str] = {}
    monkeypatch.setattr(engines, "as_with_saltflat", lambda: state.append("kept"))
    monkeypatch.setattr(engines, "as_without_saltflat", lambda: state.append("given back"))

    def noting(family: str) -> Contender:
        def build(work: Workload, physical: int) -> Step:
            def step() -> dict[str, Tensor]:
                seen[family] = state[-1]
                return {"weight": torch.ones(1)}

            return step

        return Contender(family, "", None, build)

    engines.taking_part([noting(name) for name in ("saltflat", "ordinary", "opacus")], Workload("mlp", 4))
    assert seen == {"saltflat": "kept", "ordinary": "given back", "opacus": "given back"}


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(FailedProcessError, match="name of a model"):
        engines.compare_apart("no-such-model", examples=8, rounds=1)


def test_the_ratio_is_throughput_over_the_fastest_setting() -> None:
    """Fails when the ratio is upside down, or when the slower of two settings counts (tried)."""
    result = engines.compare("mlp", examples=12, rounds=3)
    rows, fastest = result["contenders"], result["fastest"]
    for family, name in fastest.items():
        of_family = [row["seconds"] for row in rows.values() if row["family"] == family]
        if of_family:
            assert rows[name]["seconds"] == min(of_family)
    quick = [a / b for a, b in zip(rows[fastest["ordinary"]]["times"], rows["saltflat"]["times"])]
    assert result["ratios"]["ordinary"]["median"] == pytest.approx(sorted(quick)[1])
    assert rows[fastest["ordinary"]]["throughput"]["median"] == 1.0


def test_only_settings_that_could_be_the_fastest_are_timed() -> None:
    """Of each peer alone: a slow one is not left out beside a fast one, and the ordinary step never is."""
    seconds = {"a 1": 1.0, "a 2": 1.9, "a 3": 2.1, "b 1": 9.0, "plain 1": 1.0, "plain 2": 9.0}
    families = dict(zip(seconds, ("opacus", "opacus", "opacus", "torch.func", "ordinary", "ordinary")))
    lineup = engines.Lineup({name: lambda: None for name in seconds}, seconds)
    lineup.leave_out_slower(families)
    assert set(lineup.steps) == set(seconds) - {"a 3"}
    (row,) = lineup.missing
    assert row == {"name": "a 3", "family": "opacus", "reason": "slower than a 1: 2.1 s against 1 s"}


def test_every_engine_has_its_own_allocator_and_a_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One untimed step after each other engine. Fails when a peer is timed with what saltflat set, or right after
    another peer (tried: it was so)."""
    done: list[str] = []
    monkeypatch.setattr(engines, "as_with_saltflat", lambda: done.append("kept"))
    monkeypatch.setattr(engines, "as_without_saltflat", lambda: done.append("given back"))
    lineup = engines.Lineup({name: lambda name=name: done.append(name) for name in ("saltflat", "x", "y")})  # type: ignore[misc]
    for name in ("x", "y", "saltflat", "saltflat", "y"):
        lineup.get_ready(name)
        done.append(f"timed {name}")
    assert done == [
        "given back", "x", "timed x", "given back", "y", "timed y", "kept", "saltflat", "timed saltflat",
        "timed saltflat", "given back", "y", "timed y",
    ]  # fmt: skip


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that forgets a hundredth of one parameter's sum. Fails when nothing is compared (tried)."""
    real = all_contenders.clipped_sum

    def forgetful(*arguments: Any, **options: Any) -> Any:
        total = real(*arguments, **options)
        next(iter(total.grads.values())).mul_(0.99)
        return total

    monkeypatch.setattr(all_contenders, "clipped_sum", forgetful)
    checked = engines.check(Workload("mlp", 12))
    assert 1e-4 < checked["gradient_error"] < 0.1
    assert not engines.is_right(checked)


def test_a_wrong_clip_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right without a clip, wrong with one. Fails when only C = ∞ is checked (tried)."""
    real = all_contenders.clipped_sum

    def lax(model: Any, loss: Any, inputs: Any, targets: Any, clip_norm: float, **options: Any) -> Any:
        return real(model, loss, inputs, targets, 1.1 * clip_norm, **options)

    monkeypatch.setattr(all_contenders, "clipped_sum", lax)
    checked = engines.check(Workload("mlp", 12))
    assert checked["gradient_error"] < 1e-5
    assert checked["clipped_error"] > 1e-3
    assert not engines.is_right(checked)


def failing(error: Exception) -> Any:
    def build_step(work: Workload, physical: int) -> Step:
        raise error

    return build_step


def doubled(work: Workload, physical: int) -> Step:
    step = all_contenders.torch_func(work, physical)
    return lambda: {name: 2 * value for name, value in step().items()}


def test_peers_that_cannot_take_part_are_listed_with_the_reason() -> None:
    """Not installed, broken, out of memory, or computing something else: none stops the others."""
    peers = [
        Contender("saltflat", "", None, all_contenders.saltflat),
        Contender("opacus", "hooks", 4, failing(ModuleNotFoundError("No module named 'opacus'"))),
        Contender("opacus", "ghost", 4, failing(RuntimeError("not this layer\nand more"))),
        Contender("jax-privacy", "", 4, failing(MemoryError())),
        Contender("torch.func", "", 8, doubled),
        Contender("torch.func", "", 4, all_contenders.torch_func),
    ]
    lineup = engines.taking_part(peers, Workload("mlp", 12))
    assert list(lineup.steps) == list(lineup.seconds) == ["saltflat", "torch.func, 4"]
    assert list(lineup.differences) == ["torch.func, 4"]
    reasons = {row["name"]: row["reason"] for row in lineup.missing}
    assert reasons == {
        "opacus hooks, 4": "not installed",
        "opacus ghost, 4": "fails on this model: RuntimeError: not this layer",
        "jax-privacy, 4": "fails on this model: MemoryError",
        "torch.func, 8": "gives another sum (relative difference 1)",
    }


def test_a_failure_of_our_own_is_not_a_peer_that_is_missing() -> None:
    for family in ("saltflat", "ordinary"):
        with pytest.raises(RuntimeError, match="broken"):
            engines.taking_part(
                [Contender(family, "", 4, failing(RuntimeError("broken")))], Workload("mlp", 4)
            )


def test_no_physical_batch_is_larger_than_there_are_examples() -> None:
    assert {one.physical for one in contenders(256)} == {None, 1, 16, 64, 256}
    assert max(one.physical or 0 for one in contenders(20)) == 20
    assert len({one.name for one in contenders(20)}) == len(contenders(20))


@pytest.mark.filterwarnings("ignore")  # of JAX
@pytest.mark.parametrize("physical", [2, 4])
def test_jax_privacy_gives_the_same_sum_where_it_is_installed(physical: int) -> None:
    """The network that is written in JAX, in two micro-batches and in one go, against gradients clipped one by one."""
    pytest.importorskip("jax_privacy")
    work = Workload("cnn-selu", 4)
    found = sums_of(jax_engine.clipped_gradient(work, physical)())
    assert relative_error(found, one_by_one(work)) < 1e-4


def test_one_by_one_clips_to_one() -> None:
    """The judge itself, judged: each example's part is at most 1 long, and one example is its own gradient."""
    one = one_by_one(Workload("mlp", 1))
    length = sum(float(value.double().square().sum()) for value in one.values()) ** 0.5
    assert length <= 1 + 1e-6
    plain = sums_of(all_contenders.ordinary(Workload("mlp", 1), 1)())
    whole = sum(float(value.double().square().sum()) for value in plain.values()) ** 0.5
    for name, value in plain.items():
        torch.testing.assert_close(one[name], value * min(1.0, 1 / whole), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_compared_is_wholly_wrong() -> None:
    right = {"a": torch.ones(2)}
    for wrong in ({}, {"b": torch.ones(2)}, {"a": torch.tensor([1.0, float("nan")])}):
        assert relative_error(wrong, right) == WHOLLY_WRONG
    assert relative_error({"a": torch.tensor([1.0, 1.1])}, right) == pytest.approx(0.1 / 2**0.5, rel=1e-5)


@pytest.mark.parametrize("name", names())
def test_every_model_can_be_a_workload(name: str) -> None:
    """Also regression, and models on fixed features, whose rows have the shape of the features; one that needs a
    loss of its own is refused."""
    if name in OWN_LOSS:
        with pytest.raises(InputError, match="needs a loss of its own"):
            check_models((name,))
        return
    check_models((name,))
    work = Workload(name, 2)
    assert work.inputs.shape[1:] == describe(name).input_shape
    with torch.no_grad():
        losses: Tensor = work.loss(work.fresh_model()(work.inputs), work.targets)
    assert losses.shape == (2,)
    assert bool((losses > 0).all())


def test_a_workload_is_the_same_every_time() -> None:
    first, second = Workload("mlp", 3), Workload("mlp", 3)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    pairs = zip(first.fresh_model().parameters(), second.fresh_model().parameters())
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_scaled_network_grows_with_its_width() -> None:
    counts = [parameter_count(f"cnn-width-{width:g}") for width in (0.25, 0.5, 1.0)]
    assert counts[2] == 550_570  # that of cnn-selu
    assert 3 < counts[1] / counts[0] < 5
    assert build("cnn-width-0.25")(torch.rand(1, *input_shape("cnn-width-0.25"))).shape == (1, 10)
