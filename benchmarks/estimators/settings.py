"""Where the defaults of the estimators come from: a search on synthetic tables, none of which is in the comparison.

    python benchmarks/estimators/settings.py        prints accuracies by learning rate, and that of the default

A linear model that is trained on all rows in every step is simple enough to be simulated in a few lines: the gradient
of a row is an outer product, whose length is known. Clip and noise are those of the real mechanism. Rates are tried
on tables of different sizes and at three budgets, over three seeds.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

from saltflat.accounting import SampledGaussian, least_scale
from saltflat.estimators.defaults import choose_settings

ROWS, FEATURES, CLASSES = (200, 1000, 4000), (5, 30), (2, 5)
EPSILONS = (0.5, 1.0, 3.0)
STEPS = 40
RATES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SEEDS = 3
REACH = 2.5


def table(rows: int, features: int, classes: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """A synthetic table, scaled as the estimators scale it by bounds at four deviations; and rows to test on."""
    informative = max(4, features // 2) if features > 5 else features
    X, y = make_classification(
        n_samples=rows + 2000, n_features=features, n_informative=informative, n_redundant=0,
        n_classes=classes, n_clusters_per_class=1, class_sep=1.5, random_state=1000 + seed,
    )  # fmt: skip
    middle, reach = X.mean(0), 4 * X.std(0)
    X = np.clip((X - middle) / reach, -1, 1) * REACH / np.sqrt(features)
    X = np.concatenate([X, np.ones((len(X), 1))], axis=1)  # the bias
    return X[:rows], y[:rows], X[rows:], y[rows:]


def trained(X: Any, y: Any, classes: int, noise: float, rate: float, rng: Any) -> Any:
    """Weights after clipped and noised steps on all rows; ``noise`` is the deviation on the sum of one step."""
    truth, lengths = np.eye(classes)[y], np.linalg.norm(X, axis=1)
    weights = np.zeros((X.shape[1], classes))
    for _ in range(STEPS):
        logits = X @ weights
        shares = np.exp(logits - logits.max(1, keepdims=True))
        errors = shares / shares.sum(1, keepdims=True) - truth
        errors *= np.minimum(1.0, 1.0 / np.maximum(np.linalg.norm(errors, axis=1) * lengths, 1e-12))[:, None]
        weights -= rate * (X.T @ errors + rng.normal(0, noise, weights.shape)) / len(X)
    return weights


def main() -> None:
    """The search, and the default beside it."""
    sigma = {e: least_scale(lambda s: [SampledGaussian(s, 1.0, 1)], e, 1e-5) for e in EPSILONS}
    print("| rows | features | classes | ε | " + " | ".join(f"{rate:g}" for rate in RATES) + " | default |")
    print("|" + "---|" * (5 + len(RATES)))
    for number, (rows, features, classes) in enumerate(itertools.product(ROWS, FEATURES, CLASSES)):
        X, y, X_test, y_test = table(rows, features, classes, number)
        for epsilon in EPSILONS:
            chosen = choose_settings(epsilon, 1e-5, rows)["learning_rate"]
            cells = []
            for rate in (*RATES, chosen):
                scores = []
                for seed in range(SEEDS):
                    noise, rng = sigma[epsilon] * np.sqrt(STEPS), np.random.default_rng(seed)
                    weights = trained(X, y, classes, noise, rate, rng)
                    scores.append(100 * float(((X_test @ weights).argmax(1) == y_test).mean()))
                cells.append(f"{np.mean(scores):.1f}")
            print(
                f"| {rows} | {features} | {classes} | {epsilon:g} | {' | '.join(cells)} ({chosen:.2g}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
