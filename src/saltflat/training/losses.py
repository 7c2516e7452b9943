"""Losses with one number per example, and the checks on targets that must come before any budget is spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.engine.batch import LossFunction
from saltflat.errors import InputError


def logits_of(outputs: Any) -> Tensor:
    """The tensor in a model's outputs that losses and accuracies are about.

    A tensor is itself, a tuple its first, and what has ``logits``, as the outputs of Hugging Face's models, those.

    >>> logits_of({"logits": torch.zeros(2, 3), "hidden_states": None}).shape
    torch.Size([2, 3])
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    else:
        found = getattr(outputs, "logits", None)
        if found is None and isinstance(outputs, tuple | list) and outputs:
            found = outputs[0]
    if not isinstance(found, Tensor):
        raise InputError(
            "model", type(outputs).__name__, "a tensor, a tuple that starts with one, or an output with logits",
            problem="is what the model returns, and holds no logits",
            cure="Put a head on it: sf.models.with_head(encoder, classes); or bring a loss: fit(loss_fn=).",
        )  # fmt: skip
    return found


def found_logits(outputs: Any) -> Tensor | None:
    """The logits, or None in outputs that only a loss of one's own can read."""
    try:
        return logits_of(outputs)
    except InputError:
        return None


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy per example. A label outside the classes adds nothing: a private step never raises."""
    logits = logits_of(outputs)
    valid = (targets >= 0) & (targets < logits.shape[1])
    losses = F.cross_entropy(logits, torch.where(valid, targets, 0).long(), reduction="none")
    losses = losses * valid
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def squared_error(outputs: Any, targets: Tensor) -> Tensor:
    """Half the squared error per example, averaged over the outputs."""
    outputs = logits_of(outputs)
    if outputs.numel() != targets.numel():
        raise InputError(
            "targets", str(tuple(targets.shape)), f"as many numbers as the model's outputs {tuple(outputs.shape)}",
            problem="is the shape of real-valued targets",
            cure="Class labels must be whole numbers (targets.long()); other losses go to fit(loss_fn=).",
        )  # fmt: skip
    difference = outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
    return 0.5 * difference.square().mean(1)


def default_loss(targets: Tensor) -> LossFunction:
    """Cross-entropy for whole numbers, squared error for real ones."""
    return squared_error if targets.is_floating_point() else cross_entropy


def check_targets(targets: Tensor, classes: int | None, loss_fn: LossFunction | None) -> None:
    """Refuse labels of the wrong type, or outside the declared classes."""
    if loss_fn is not None and loss_fn is not cross_entropy:
        return  # the user's own loss knows its own targets
    real = targets.is_floating_point()
    if real and classes is None:
        return
    if real or targets.dtype == torch.bool or targets.is_complex():
        raise InputError(
            "targets", str(targets.dtype), "whole numbers (int64), one a class",
            problem="is the type of the labels", cure="Convert them: targets.long().",
        )  # fmt: skip
    if classes is not None and not _within(targets, classes):
        cure = "Declare the right number of classes, or number the labels from zero."
        raise _foreign(f"outside 0 … {classes - 1}", f"0 to {classes - 1} for classes={classes}", cure)


def check_outputs(targets: Tensor, outputs: int) -> None:
    """Refuse labels for which the model has no output: rows with such labels would teach it nothing, unseen.

    Negative ones pass: by custom they leave a row out.
    """
    if targets.dim() == 1 and len(targets) and 0 < outputs <= int(targets.max()):
        own = f"0 to {outputs - 1}, because the model has {outputs} output{'s'[: outputs - 1]}"
        cure = "Give the model an output for each class, or number the labels from zero."
        raise _foreign(f"above {outputs - 1}", own, cure)


def _foreign(which: str, own: str, cure: str) -> InputError:
    return InputError(
        "targets", f"labels {which}", f"labels from {own}", problem="are in the data", cure=cure
    )


def _within(targets: Tensor, classes: int) -> bool:
    return bool(((targets >= 0) & (targets < classes)).all())
