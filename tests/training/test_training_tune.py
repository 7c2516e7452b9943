"""`sf.tune`: what is spent, what is shown, and what must stay secret."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import saltflat as sf
from core_helpers import small_data, small_net
from saltflat.accounting.selection import repeated_epsilon
from saltflat.data.source import Examples
from saltflat.errors import InputError, PrivacyWarning
from saltflat.mechanism.randomness import Randomness
from saltflat.mechanism.streams import CryptographicStream
from saltflat.plan.tuning import repeated_from_dict
from saltflat.record.ledger import Ledger
from saltflat.training import trials
from saltflat.training.score import held_out, noised_score, right_answers
from saltflat.training.trials import NothingSelectedError

GRID = {"learning_rate": [0.1, 0.5], "clip_norm": [0.3, 1.0]}


def tuned(rows: int = 200, **changes: Any) -> sf.Tuned:
    settings: dict[str, Any] = {
        "grid": GRID, "epsilon": 3.0, "delta": 1e-4, "population": rows, "batch_size": 40, "steps": 2,
        "progress": False,
    }  # fmt: skip
    model = changes.pop("model", small_net())
    data = changes.pop("data", small_data(rows))
    return sf.tune(model, data, **(settings | changes))


@pytest.fixture
def always_three(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Three trials, whose scores are handed out."""
    scores: list[float] = []
    score = trials.Trials._score

    def watched(self: trials.Trials, session: Any) -> float:
        scores.append(score(self, session))
        return scores[-1]

    monkeypatch.setattr(trials, "draw_repetitions", lambda *_: 3)
    monkeypatch.setattr(trials.Trials, "_score", watched)
    return scores


def test_the_budget_covers_all_trials_and_the_choice(tmp_path: Path) -> None:
    """The claim is that of the whole tuning, it is within the budget, and a trial alone has more noise than a
    run with the same budget would have.
    """
    found = tuned(out=tmp_path / "here")
    data = found.run.certificate.data
    assert found.tuning is not None
    assert data["epsilon"] == found.run.epsilon == found.tuning.epsilon <= 3.0
    assert found.run.plan.epsilon < 2.5
    single = sf.plans.dp_sgd(epsilon=3.0, delta=1e-4, population=180, batch_size=40, steps=2)
    assert found.run.plan.phases[0].sigma > single.phases[0].sigma
    declared, delta = repeated_from_dict(data["selection"])
    assert repeated_epsilon(declared, delta) == data["epsilon"]
    assert not any(line.startswith("tuning") for line in data["not_covered"])
    assert any("time that tuning took" in line for line in data["not_covered"])
    assert "Tuning is covered: the best of a random number of trials (logarithmic, 4 expected)" in str(
        found.run.certificate
    )


def test_only_the_best_is_shown(
    tmp_path: Path, always_three: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    """Files, streams and values hold one score and one run. Fails when the worst is taken (tried)."""
    found = tuned(out=tmp_path / "here")
    assert len(always_three) == 3
    assert found.score == max(always_three)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "certificate.html", "certificate.json", "ledger.jsonl", "metrics.jsonl", "plan.json", "run.json",
        "tuning.jsonl",
        "weights.safetensors",
    ]  # fmt: skip
    held = "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    held += "".join(capfd.readouterr()) + repr(found)
    others = [score for score in always_three if score != found.score]
    assert others
    assert not any(repr(score)[:8] in held for score in others)
    ledger = Ledger.read(tmp_path / "here" / "ledger.jsonl")
    assert ledger.releases == 2
    kinds = [entry["kind"] for entry in Ledger.read(tmp_path / "here" / "tuning.jsonl").entries]
    assert kinds == ["tuning", "selected"]
    again = sf.Run.load(tmp_path / "here", small_net())
    assert again.plan == found.run.plan
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), found.run.model.parameters()))


def test_the_whole_cost_is_on_disk_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuning that was cut off shows nothing, is spent, and its folder takes no other run."""

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials.Trials, "_score", cut)
    with pytest.raises(KeyboardInterrupt):
        tuned(out=tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["tuning.jsonl"]
    (entry,) = Ledger.read(tmp_path / "here" / "tuning.jsonl").entries
    assert 0 < entry["epsilon"] <= 3.0
    assert len(entry["tuning"]["candidates"]) == 4
    monkeypatch.undo()
    with pytest.raises(InputError, match="already holds a tuning"):
        tuned(out=tmp_path / "here")
    plan = sf.plans.dp_sgd(noise_multiplier=2.0, delta=1e-4, population=200, batch_size=40, steps=1)
    with pytest.raises(InputError, match="already holds a tuning"):
        sf.fit(small_net(), small_data(200), plan, out=tmp_path / "here", progress=False)


def test_a_seed_repeats_and_makes_no_claim() -> None:
    first, second = (tuned(seed=5) for _ in range(2))
    assert (first.settings, first.score) == (second.settings, second.score)
    assert not first.run.certificate.is_private
    assert first.run.epsilon == math.inf
    assert first.run.history[-1]["epsilon_so_far"] == "inf"


def test_candidates_with_other_steps_share_the_dearest_curve() -> None:
    found = tuned(grid={"steps": [2, 6]}, steps=None)
    assert found.tuning is not None
    assert found.tuning.epsilon <= 3.0
    costs = [plan.epsilon for plan in found.tuning.plans]
    assert costs[0] < costs[1]
    assert len({plan.phases[0].sigma for plan in found.tuning.plans}) == 1


def test_public_rows_score_exactly_and_for_free() -> None:
    public = Examples(small_data(60, seed=9).inputs, small_data(60, seed=9).targets, "public", "made up", 3)
    found = tuned(validation=public)
    assert found.tuning is not None
    assert found.tuning.score_noise is None
    assert found.run.plan.sampling.population == 200
    right = (found.run.predict(public.inputs) == public.targets).double().mean()
    assert found.score == pytest.approx(float(right))
    with pytest.raises(InputError, match="validation"):
        tuned(validation=small_data(60))


def test_a_proxy_costs_nothing_and_shows_everything() -> None:
    public = Examples(small_data(100, seed=9).inputs, small_data(100, seed=9).targets, "public", "made up", 3)
    found = tuned(proxy=public)
    assert found.tuning is None
    assert len(found.scores) == 4
    assert found.score == max(row["score"] for row in found.scores)
    data = found.run.certificate.data
    assert (data["tuned_on"], data["selection"]) == ("made up", None)
    assert found.run.epsilon == found.run.plan.epsilon <= 3.0
    assert "Tuned on public data (made up), which costs nothing." in str(found.run.certificate)
    with pytest.raises(InputError, match="proxy"):
        tuned(proxy=small_data(100))


@pytest.mark.parametrize("argument", ["validation", "proxy"])
def test_a_private_row_among_public_ones_is_refused(argument: str) -> None:
    """Its score would be exact."""
    rows = small_data(60, seed=9)
    slipped = torch.cat([rows.inputs[:-1], small_data(200).inputs[5:6]])
    public = Examples(slipped, rows.targets, "public", "made up", 3)
    with pytest.raises(InputError, match=f"{argument}='made up' holds a row of the private data"):
        tuned(**{argument: public})


def test_the_law_may_give_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "draw_repetitions", lambda *_: 0)
    with pytest.raises(NothingSelectedError, match="The budget of this tuning is spent"):
        tuned(law="poisson", out=tmp_path / "here")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": {}}, "grid"),
        ({"grid": {"epsilon": [1, 2]}}, "cannot be tuned"),
        ({"grid": {"learning_rate": []}}, "no list of values"),
        ({"grid": {"learning_rat": [1]}}, "Did you mean 'learning_rate'"),
        ({"grid": {"rho": [1]}}, "rho"),
        ({"grid": {"steps": list(range(1, 2000))}}, "points are too many"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": -1.0, "steps": None}, "epsilon"),
        ({"evaluate": (torch.zeros(4, 9).double(), torch.zeros(4).long())}, "evaluate"),
        ({"repeats": 0}, "repeats"),
        ({"law": "often"}, "law"),
        ({"validation_fraction": 1.5}, "validation_fraction"),
        ({"score_noise": 0.0}, "score_noise"),
        ({"method": "sgd"}, "private method"),
        ({"sampling": "truncated-poisson"}, "truncated-poisson"),
        ({"model": nn.Linear(7, 3).double()}, "failed on the first rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((InputError, TypeError), match=words):
        tuned(out=tmp_path / "here", **changes)
    assert not (tmp_path / "here").exists()


def test_sides_are_drawn_by_a_coin_for_each_unit() -> None:
    """Rows are split whole and lost nowhere; people stay together; the number of rows does not shift a coin."""
    data = small_data(2000)
    train, held = held_out(data, 0.1, None, CryptographicStream.from_seed(1, "x"))
    assert len(train) + len(held) == 2000
    assert 120 < len(held) < 280  # six standard deviations
    groups = torch.arange(2000) % 300
    train, held = held_out(data, 0.3, groups, CryptographicStream.fresh())
    assert train.groups is not None
    assert held.groups is not None
    assert not set(train.groups.tolist()) & set(held.groups.tolist())
    fewer = Examples(data.inputs[:1500], data.targets[:1500], num_classes=3)
    _, first = held_out(data, 0.1, None, CryptographicStream.from_seed(1, "x"))
    _, second = held_out(fewer, 0.1, None, CryptographicStream.from_seed(1, "x"))
    assert torch.equal(first.inputs[: len(second)], second.inputs)


@pytest.mark.statistical
@pytest.mark.parametrize("tier", ["fast", "secure", "exact"])
def test_the_score_is_a_noised_count(tier: str) -> None:
    """Mean and deviation of 400 scores within five standard errors: a deviation a third off is always found."""
    model, rows = small_net(), small_data(100)
    randomness = Randomness.fresh(tier=tier)
    where = torch.device("cpu")
    scores = torch.tensor(
        [noised_score(model, rows, 4.0, randomness, where, by_person=False) for _ in range(400)]
    )
    right = float(right_answers(model, rows, where).sum())
    assert abs(float(scores.mean()) - right) < 5 * 4.0 / 20
    assert abs(float(scores.std()) - 4.0) < 5 * 4.0 / math.sqrt(800)


def test_a_person_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has many rows adds at most one to the score."""
    data = small_data(50)
    one = Examples(data.inputs, data.targets, num_classes=3, groups=torch.zeros(50, dtype=torch.long))
    score = noised_score(small_net(), one, 0.0, Randomness.fresh(), torch.device("cpu"), by_person=True)
    assert 0 <= score <= 1
    people = Examples(
        small_data(200).inputs, small_data(200).targets, num_classes=3, groups=torch.arange(200) // 2
    )
    found = tuned(data=people, population=100, batch_size=20, unit="person")
    assert found.run.certificate.data["unit"] == "person"


def test_that_rows_have_people_is_said_once() -> None:
    """Where single rows are protected. Fails when the rehearsal says it again (tried)."""
    rows = small_data(200)
    people = Examples(rows.inputs, rows.targets, num_classes=3, groups=torch.arange(200) // 2)
    with pytest.warns(PrivacyWarning, match="says whose rows they are") as said:
        tuned(data=people)
    assert len(said) == 1


def test_another_size_than_declared_is_said_once_and_stored_nowhere(tmp_path: Path) -> None:
    with pytest.warns(PrivacyWarning, match="The data has 203 rows") as said:
        tuned(data=small_data(203), out=tmp_path / "here")
    assert len(said) == 1
    certificates = list(tmp_path.rglob("certificate.json"))
    number = re.compile(r"(?<![\w.])203(?![\w.])")  # a hash may hold the three digits
    assert certificates
    assert not any(number.search(path.read_text()) for path in certificates)
