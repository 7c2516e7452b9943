"""Going on in every tier of randomness: as exact with a seed, as fresh without, and in the tier it began in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_helpers import cut_off, fit
from torch import Tensor

import core_helpers
import saltflat as sf
from core_helpers import contents, small_data, small_net, weights_of
from saltflat import plans
from saltflat.errors import InputError
from saltflat.mechanism.randomness import TIERS, Randomness
from saltflat.plan import Plan, QuantileClipping, Swa
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError
from saltflat.record.checkpoint import Checkpoints
from saltflat.record.ledger import Ledger
from saltflat.record.packed import packed
from saltflat.training.build import Mechanism

COMMON = core_helpers.COMMON | {"steps": 8}
PLANS: dict[str, Callable[[], Plan]] = {
    "dp-sam, truncated": lambda: plans.dp_sam(rho=0.1, sampling="truncated-poisson", **COMMON),
    "sai, swa": lambda: plans.sai(rho=0.1, averaging=Swa(0.2, 2), **COMMON),
    "adam-bc, quantile": lambda: plans.dp_sgd(
        optimizer="adam-bc", clipping=QuantileClipping(count_noise=1.0), **COMMON
    ),
}  # fmt: skip
PLAN = plans.dp_sgd(**COMMON)


@pytest.mark.parametrize("tier", TIERS)
def test_the_sources_of_a_seeded_run_can_be_put_back_and_others_are_not_handed_out(tier: str) -> None:
    """Fails when the keys of a private run are handed out, or one source is left where it was (tried)."""
    seeded, other = Randomness.from_seed(1, tier=tier), Randomness.from_seed(2, tier=tier)
    mechanisms = [Mechanism(PLAN, 40, randomness, Ledger()) for randomness in (seeded, other)]

    def drawn(mechanism: Mechanism) -> tuple[list[int], list[float]]:
        total = {"w": torch.zeros(5, dtype=torch.long if tier == "exact" else torch.float64)}
        return mechanism.draw_batch().tolist(), mechanism.release(total, 2.0, 1.0)["w"].tolist()

    drawn(mechanisms[0])
    other.restore(seeded.state())
    first, second = drawn(mechanisms[0]), drawn(mechanisms[1])
    assert first == second
    assert Randomness.fresh(tier=tier).state() == {}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("tier", ["secure", "exact"])
@pytest.mark.parametrize("every", [0.0, 60.0])
def test_a_seeded_run_ends_as_if_it_had_never_stopped(
    name: str, tier: str, every: float, tmp_path: Path
) -> None:
    """Cut off twice, and resumed without naming the tier. Fails when the streams are not restored (tried)."""
    plan = PLANS[name]()
    whole = fit(small_net(), plan, seed=5, out=tmp_path / "whole", randomness=tier)
    cut_off(small_net(), plan, 3, seed=5, out=tmp_path / "cut", randomness=tier, checkpoint_every=every)
    cut_off(small_net(1), None, 6, resume=tmp_path / "cut", checkpoint_every=every)
    again = fit(small_net(2), resume=tmp_path / "cut", checkpoint_every=every)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model)))
    for file in ("weights.safetensors", "average.safetensors", "metrics.jsonl"):
        if (tmp_path / "whole" / file).exists() or (tmp_path / "cut" / file).exists():
            assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()
    assert (again.certificate.data["randomness"], again.certificate.data["resumed"]) == (tier, 2)
    entries = Ledger.read(tmp_path / "cut" / "ledger.jsonl").entries
    assert {entry["randomness"] for entry in entries} == {tier}


@pytest.mark.parametrize("tier", TIERS)
def test_no_state_of_a_private_run_is_ever_in_its_folder(
    tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every state that the sources had at a batch, an entry or a release, against every byte of every file
    after each step. Resumed twice from there, it draws other noise each time.

    Fails when `generators` and `Randomness.state` hand out what is not seeded (tried).
    """
    seen: list[bytes] = []

    def noting(name: str) -> None:
        right: Callable[..., Any] = getattr(Mechanism, name)

        def noted(self: Mechanism, *args: Any) -> Any:
            seen.extend(_state(source) for source in (self.randomness.sampling, self.randomness.noise))
            found = right(self, *args)
            seen.extend(_state(source) for source in (self.randomness.sampling, self.randomness.noise))
            return found

        monkeypatch.setattr(Mechanism, name, noted)

    for name in ("draw_batch", "record", "release"):
        noting(name)
    for every in (0.0, 60.0):
        folder = tmp_path / str(every)
        walk = sf.steps(small_net(), small_data(), PLAN, out=folder, randomness=tier, checkpoint_every=every)
        for _ in range(4):
            next(walk)
            held = list(contents(folder).values())
            assert len(held) > 4
            assert not [state for state in seen for content in held if state in content]
        walk.close()
        ends = []
        for copy in ("a", "b"):
            shutil.copytree(folder, tmp_path / f"{every}{copy}")
            ends.append(weights_of(fit(small_net(), resume=tmp_path / f"{every}{copy}").model))
        assert not torch.equal(ends[0][0], ends[1][0])
    assert len(set(seen)) > 8


def _state(source: Any) -> bytes:
    state: Tensor = source.get_state()
    return state.numpy().tobytes()


@pytest.mark.parametrize("tier", TIERS)
def test_another_tier_is_refused_by_name(tier: str, tmp_path: Path) -> None:
    """And nothing in the folder changes. Fails when the setup is not compared (tried)."""
    cut_off(small_net(), PLAN, 3, out=tmp_path / "run", randomness=tier)
    before = contents(tmp_path / "run")
    for other in (each for each in TIERS if each != tier):
        with pytest.raises(InputError, match=f"(?s)randomness='{other}' differs.*Expected {tier}"):
            fit(small_net(), resume=tmp_path / "run", randomness=other)
    with pytest.raises(InputError, match="randomness='exat' is not a tier"):
        fit(small_net(), resume=tmp_path / "run", randomness="exat")
    assert contents(tmp_path / "run") == before
    run = fit(small_net(), resume=tmp_path / "run", randomness=tier)
    assert run.certificate.data["randomness"] == tier


def test_a_checkpoint_cannot_change_the_tier(tmp_path: Path) -> None:
    """The ledger said at the beginning which it is. Fails when the checkpoint alone is asked (tried)."""
    cut_off(small_net(), PLAN, 3, out=tmp_path / "run", randomness="exact")
    tensors, facts = Checkpoints(tmp_path / "run").read()
    for tier in ("fast", "exat", None, ["exact"]):
        changed = facts | {"setup": facts["setup"] | {"randomness": tier}}
        write_whole(tmp_path / "run" / "checkpoint" / "state.safetensors", packed(tensors, changed))
        with pytest.raises(DamagedError, match="tier of randomness"):
            fit(small_net(), resume=tmp_path / "run")


@pytest.mark.parametrize(
    "key", [torch.zeros(31, dtype=torch.uint8), torch.zeros(32), torch.zeros(0, dtype=torch.uint8), None]
)
def test_a_key_that_is_none_is_refused(key: Tensor | None, tmp_path: Path) -> None:
    """Fails when a stream takes any bytes for its key (tried)."""
    cut_off(small_net(), PLAN, 3, out=tmp_path / "run", randomness="secure", seed=3, checkpoint_every=0)
    tensors, facts = Checkpoints(tmp_path / "run").read()
    del tensors["generator/noise"]
    if key is not None:
        tensors["generator/noise"] = key
    write_whole(tmp_path / "run" / "checkpoint" / "state.safetensors", packed(tensors, facts))
    with pytest.raises(DamagedError, match="generators"):
        fit(small_net(), resume=tmp_path / "run")
