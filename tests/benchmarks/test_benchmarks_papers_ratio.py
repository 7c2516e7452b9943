"""The ratio of SAI's two noises, which the registry holds as a number, is that of the paper's split."""

from __future__ import annotations

import benchmarks_papers_helpers  # noqa: F401 - puts the benchmarks on the path
import pytest
from papers.registry import load

import saltflat as sf


@pytest.mark.parametrize(
    ("table", "preset"), [("joint-fashion-mnist-mlp", None), ("joint-cifar10-cnn-selu", "paper")]
)
def test_same_ratio_is_that_of_the_papers_split(table: str, preset: str | None) -> None:
    work = load().works[f"{table}-eps1-same-ratio"]
    if preset:
        given = float(work.words[work.words.index("--noise-ratio") + 1])
        plan = sf.plans.sai(epsilon=1.0, delta=1e-5, population=50_000, preset="paper", model="cnn-selu")
    else:
        given = work.settings["noise_ratio"]
        plan = sf.plans.sai(
            epsilon=1.0, delta=1e-5, population=60_000, batch_size=2048, epochs=20, switch=0.375, split="paper",
            portion=0.8, clip_norm=0.1, learning_rates=(2.0, 0.1), momentum=0.9,
        )  # fmt: skip
    first, second = (phase.sigma for phase in plan.phases)
    assert given == pytest.approx(second / first, rel=1e-3)
    assert plan.epsilon < 0.95  # what the split wastes, and joint calibration gives back
