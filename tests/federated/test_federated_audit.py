"""The audit of central training, on rounds: it passes as they are, and catches what is broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federated_helpers import plan_of, small_net, small_rows

import saltflat as sf
from saltflat.audit.noise_law import noise_check
from saltflat.audit.replay import replay_check
from saltflat.audit.worlds import subject_of
from saltflat.errors import InputError
from saltflat.federated import aggregate, server
from saltflat.federated.aggregate import Sum


def subject(method: str = "dp-fedavg", **changes: Any) -> Any:
    return subject_of(small_net(), small_rows(), plan_of(method, **changes), None, "fast")


def by_tensors(answers: Any, cohort: Any, form: Any, clip_norm: float, **_: Any) -> Sum:
    """Each tensor clipped by itself."""
    total = torch.zeros(form.size, dtype=torch.float64)
    for whole in aggregate.usable(answers, cohort, form):
        parts = [
            part * min(1.0, clip_norm / max(float(part.norm()), 1e-300))
            for part in form.split(whole).values()
        ]
        total += torch.cat([part.flatten() for part in parts])
    return Sum(total, 0.0, 0)


def by_answers(answers: Any, cohort: Any, form: Any, clip_norm: float, **_: Any) -> Sum:
    """Divided by how many answered, and multiplied back by how many were expected: a mean over the realised cohort."""
    found = aggregate.sum_of_clipped(answers, cohort, form, clip_norm)
    return Sum(found.total * 8 / max(found.answers, 1), 0.0, found.answers)


def without_check(answers: Any, cohort: Any, form: Any, clip_norm: float, **_: Any) -> Sum:
    """NaN goes through."""
    total = torch.zeros(form.size, dtype=torch.float64)
    for answer in answers:
        whole = form.flat(answer.update)
        total += whole * (clip_norm / whole.norm()).clamp(max=1.0)
    return Sum(total, 0.0, 0)


def test_rounds_pass_the_replay() -> None:
    found = replay_check(subject("dp-fedsam"))
    assert found.faults == ()


@pytest.mark.parametrize("broken", [by_tensors, by_answers, without_check], ids=lambda f: f.__name__)
def test_a_broken_sum_is_caught(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "sum_of_clipped", broken)
    assert replay_check(subject()).faults


def test_noise_for_the_mean_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from saltflat.training.build import Mechanism

    sound = Mechanism.release

    def weak(self: Any, total: Any, noise_multiplier: float, clip_norm: float) -> Any:
        return sound(self, total, noise_multiplier / 2, clip_norm)

    assert noise_check(subject(), 2000).faults == ()
    monkeypatch.setattr(Mechanism, "release", weak)
    assert noise_check(subject(), 2000).faults


@pytest.mark.slow
def test_the_whole_suite() -> None:
    report = sf.audit.run(small_net(), small_rows(), plan_of("dp-fedsam-topk", rounds=20), quick=True)
    assert report.passed, str(report)


def test_shared_noise_is_not_audited() -> None:
    with pytest.raises(InputError, match="clients add"):
        sf.audit.run(small_net(), small_rows(), plan_of(survivors=3))
