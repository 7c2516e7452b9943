"""The papers' own settings, as data: by method, model and ε (1, 2, 3).

Sources: Park et al. 2023 (DP-SAT), Wang et al. 2025 (SAI-DPSGD, its Table 5). Both use SGD with momentum 0.9,
clip norm 0.1, batches of 2048, 40 epochs on MNIST and Fashion-MNIST and 30 on CIFAR-10 and SVHN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from saltflat.errors import InputError, check_known
from saltflat.plan import Ema, Multiplicity
from saltflat.plans.frame import Common, Frame

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


_PUBLIC = {  # ε: epochs, learning rate, ρ
    1: (15, 0.5, 0.05), 2: (30, 0.5, 0.1), 3: (30, 1.0, 0.1), 4: (30, 1.0, 0.1), 6: (20, 2.0, 0.1),
}  # fmt: skip


_WITH_PUBLIC_DATA = ("weight-multiplicity", "dope-sgd", "mirror-descent", "ada-dps")


def framed(method: str, own: dict[str, Any], common: Common) -> tuple[Frame, dict[str, Any]]:
    """The common arguments, checked, and the method's own; with ``preset="paper"`` the paper says the rest."""
    given = {key: value for key, value in common.items() if value is not None}
    preset = given.get("preset")
    if preset is None:
        return Frame(common), own
    if preset != "paper":
        raise InputError("preset", preset, "'paper', or nothing")
    model, epsilon = common.get("model"), common.get("epsilon")
    published = paper_settings(method, model, epsilon)
    if "steps" in given:
        published.pop("epochs")
    if common.get("optimizer") not in (None, "sgd"):  # the papers' rate for Adam, in both phases
        published.pop("momentum")
        published.pop("learning_rates", None)
        published["learning_rate"] = 0.002
    own = {key: published.get(key) if value is None else value for key, value in own.items()}
    shared = {key: value for key, value in published.items() if key in Common.__annotations__}
    frame = Frame(cast("Common", shared | given))
    frame.notes.append(f"settings of the paper for {model} at ε = {epsilon}")
    return frame, own


def public_settings(model: str | None, epsilon: float | None) -> dict[str, Any]:
    """What the paper on public data reports for wrn-16-4 on CIFAR-10 after a warm-up (its Table 10).

    >>> public_settings("wrn-16-4", 2.0)["learning_rate"]
    0.5
    """
    if model != "wrn-16-4":
        raise InputError(
            "model", model, "wrn-16-4, with public data and preset='paper'", problem="has no settings there"
        )
    if epsilon not in _PUBLIC:
        raise InputError(
            "epsilon", epsilon, "1, 2, 3, 4 or 6 for preset='paper'", problem="is not a budget of the paper",
            cure="Leave the preset out for any other budget.",
        )  # fmt: skip
    epochs, rate, rho = _PUBLIC[int(epsilon)]
    return {
        "batch_size": 4096, "epochs": epochs, "clip_norm": 1.0, "learning_rate": rate, "momentum": 0.0,
        "averaging": Ema(0.9999), "multiplicity": Multiplicity(16, ("flip", "crop")), "rho": rho,
        "public_batch": 64,
    }  # fmt: skip


def paper_settings(method: str, model: str | None, epsilon: float | None) -> dict[str, Any]:
    """What the paper of ``method`` reports for ``model`` at ``epsilon``: arguments of the plan.

    >>> paper_settings("dp-sat", "cnn-selu", 1.0)["rho"]
    0.02
    """
    if method in _WITH_PUBLIC_DATA or (model, method) == ("wrn-16-4", "dp-sgd"):
        return public_settings(model, epsilon)
    expected = "a model of the papers for preset='paper'"
    check_known("model", model, _EPOCHS, expected, problem="has no settings there")
    assert model is not None
    if epsilon is None or epsilon not in _EPSILONS:
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
        settings = common | {"rho": sai.rho[column], "switch": sai.sai_epochs[column] / _EPOCHS[model]}
        if method == "dp-sat-early-stop":
            return settings
        return settings | {
            "clip_norms": (sai.first_clip_norm[column], 0.1),
            "learning_rates": (2.0, 0.1),
            "split": "paper",
            "portion": sai.first_budget[column] / epsilon,
        }
    return common
