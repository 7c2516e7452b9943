"""The papers' own settings, as data: by method, model and ε (1, 2, 3).

Sources: Park et al. 2023 (DP-SAT), Wang et al. 2025 (SAI-DPSGD, its Table 5). Both use SGD with momentum 0.9,
clip norm 0.1, batches of 2048, 40 epochs on MNIST and Fashion-MNIST and 30 on CIFAR-10 and SVHN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saltflat.errors import InputError, nearest

_EPSILONS = (1, 2, 3)
_EPOCHS = {"gn-resnet10": 40, "dpnas-mnist": 40, "dpnas-fmnist": 40, "cnn-selu": 30, "dpnas-cifar": 30}

_DP_SAT_RHO = {
    "gn-resnet10": (0.03, 0.03, 0.03),
    "dpnas-mnist": (0.03, 0.03, 0.03),
    "dpnas-fmnist": (0.05, 0.03, 0.02),
    "cnn-selu": (0.02, 0.1, 0.05),
    "dpnas-cifar": (0.01, 0.01, 0.01),
}


@dataclass(frozen=True)
class SaiSettings:
    """SAI's settings for one model, for ε = 1, 2, 3."""

    rho: tuple[float, float, float]
    sai_epochs: tuple[int, int, int]
    first_clip_norm: tuple[float, float, float] = (0.1, 0.2, 0.2)
    first_budget: tuple[float, float, float] = (0.8, 1.8, 2.7)


_SAI = {
    "gn-resnet10": SaiSettings((0.05, 0.05, 0.03), (15, 15, 20)),
    "dpnas-mnist": SaiSettings((0.05, 0.05, 0.05), (15, 15, 20), first_clip_norm=(0.1, 0.1, 0.2)),
    "dpnas-fmnist": SaiSettings((0.05, 0.05, 0.03), (15, 15, 20)),
    "cnn-selu": SaiSettings((0.3, 0.05, 0.05), (10, 10, 15)),
    "dpnas-cifar": SaiSettings((0.1, 0.05, 0.05), (10, 10, 15)),
}


def paper_settings(method: str, model: str | None, epsilon: float) -> dict[str, Any]:
    """What the paper of ``method`` reports for ``model`` at ``epsilon``: arguments of the plan.

    >>> paper_settings("dp-sat", "cnn-selu", 1.0)["rho"]
    0.02
    """
    if model not in _EPOCHS:
        raise InputError(
            "model", model, "a model of the papers for preset='paper'", problem="has no settings there",
            cure=nearest(str(model), list(_EPOCHS)),
        )  # fmt: skip
    if epsilon not in _EPSILONS:
        raise InputError(
            "epsilon", epsilon, "1, 2 or 3 for preset='paper'", problem="is not a budget of the papers",
            cure="Leave the preset out for any other budget.",
        )  # fmt: skip
    column = _EPSILONS.index(int(epsilon))
    common = {
        "batch_size": 2048, "epochs": _EPOCHS[model], "clip_norm": 0.1, "learning_rate": 2.0, "momentum": 0.9,
    }  # fmt: skip
    if method == "dp-sat":
        return common | {"rho": _DP_SAT_RHO[model][column]}
    if method in ("sai", "dp-sat-early-stop"):
        sai = _SAI[model]
        settings = common | {
            "rho": sai.rho[column],
            "switch": sai.sai_epochs[column] / _EPOCHS[model],
        }
        if method == "dp-sat-early-stop":
            return settings
        return settings | {
            "clip_norms": (sai.first_clip_norm[column], 0.1),
            "learning_rates": (2.0, 0.1),
            "split": "paper",
            "portion": sai.first_budget[column] / epsilon,
        }
    return common
