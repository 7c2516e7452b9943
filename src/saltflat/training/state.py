"""The state of a loop as tensors and JSON, and back: all that the rest of a run depends on.

Model, optimizer, what ascents remember and their automatic switch, average, clip norm that follows a quantile, the
second moment of public gradients, and the position in the plan. The learning rate, sampler and noise follow from
the position and the plan, batches of public rows from the position. Multiplicity has no state of its own.
A seeded test run also stores its generators; a private run draws afresh.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from saltflat.errors import InputError
from saltflat.methods.ascent import Plateau
from saltflat.record.canonical import DamagedError
from saltflat.record.packed import number_from, plain_number, under
from saltflat.training.step import Loop, Released

Tensors = dict[str, Tensor]
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, OverflowError)


def captured(loop: Loop) -> tuple[Tensors, dict[str, Any]]:
    """The state after the last step. Nothing in it was computed from private rows but through releases."""
    tensors: Tensors = {}
    for family, held in _families(loop).items():
        tensors |= {f"{family}/{name}": value for name, value in (held or {}).items()}
    facts = {
        "step": loop.position,
        "families": [family for family, held in _families(loop).items() if held is not None],
        "optimizer": {
            "groups": [_groups_settings(group) for group in loop.optimizer.param_groups],
            "state": [
                _stored(dict(loop.optimizer.state[weight]), f"optimizer/{number}", tensors, weight)
                if weight in loop.optimizer.state
                else None
                for number, weight in enumerate(loop.weights.values())
            ],
        },
        "average_count": loop.average.count,
        "switched_off": loop.ascent.switched_off,
        "plateau": {key: plain_number(value) for key, value in vars(loop.ascent.plateau).items()},
        "clip_scale": plain_number(loop.clip_norms.scale),
    }
    return tensors, facts


def restore(loop: Loop, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Put a captured state into a fresh loop of the same plan and model. Raises before it changes anything
    that lies outside the loop, or not at all; a state of another model is refused by name.
    """
    _check_model(loop, tensors)
    try:
        position = facts["step"]
        if not isinstance(position, int) or not 0 <= position <= loop.plan.steps:
            raise ValueError(f"step {position!r} of {loop.plan.steps}")
        families = {
            family: _family(loop, family, tensors) for family in facts["families"] if family != "model"
        }
        plateau = _plateau(facts["plateau"])
        scale, count = number_from(facts["clip_scale"]), facts["average_count"]
        if not isinstance(count, int) or not isinstance(facts["switched_off"], bool) or not scale >= 0:
            raise ValueError("a count, a switch or a scale is none")
        _restore_optimizer(loop, tensors, facts["optimizer"])
    except MALFORMED as error:
        raise DamagedError(
            f"checkpoint/state.safetensors does not hold the state of this run ({type(error).__name__}: {error})."
        ) from error
    loop.model.load_state_dict(under("model/", tensors))
    loop.position, loop.clip_norms.scale = position, scale
    loop.average.average, loop.average.count = families.pop("average", None), count
    moment = families.pop("moment", None)
    if loop.public_side is not None:
        loop.public_side.moment = moment
    for family, held in _kept(loop).items():
        held.update(families.pop(family, {}))
    loop.ascent.memory, loop.ascent.plateau = families, plateau  # what is left belongs to no other
    loop.ascent.switched_off = facts["switched_off"]


# --- a release, as the journal holds it -----------------------------------------------------------------


def release_to_journal(released: Released) -> tuple[Tensors, dict[str, Any]]:
    """A release as tensors and facts."""
    numbers = {"share": released.share, "sharpness": released.sharpness}
    facts = {key: None if value is None else plain_number(value) for key, value in numbers.items()}
    return {f"release/{name}": value for name, value in released.gradient.items()}, facts


def release_from_journal(loop: Loop, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Released:
    """What `release_to_journal` made; anything else is a `DamagedError`."""
    try:
        numbers = [None if facts[key] is None else number_from(facts[key]) for key in ("share", "sharpness")]
        return Released(_family(loop, "release", tensors), *numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"checkpoint/releases.journal holds a release of another model ({error})."
        ) from error


# --- generators of a seeded test run --------------------------------------------------------------------


def generators(loop: Loop) -> Tensors:
    """Where every generator stands, in a seeded test run; nothing in a private one."""
    randomness = loop.mechanism.randomness
    if not randomness.seeded:
        return {}
    held = {f"generator/{name}": state for name, state in randomness.state().items()}
    held["generator/torch"] = torch.get_rng_state()
    if loop.device.type == "cuda":
        held["generator/cuda"] = torch.cuda.get_rng_state(loop.device)
    return held


def restore_generators(loop: Loop, tensors: Mapping[str, Tensor]) -> None:
    """Go on drawing as a seeded test run would have."""
    if not loop.mechanism.randomness.seeded:
        return
    held = under("generator/", tensors)
    try:
        torch.set_rng_state(held.pop("torch"))
        if (cuda := held.pop("cuda", None)) is not None:
            torch.cuda.set_rng_state(cuda, loop.device)
        loop.mechanism.randomness.restore(held)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(
            f"The checkpoint does not hold the generators of a seeded run ({error})."
        ) from error


# --- parts ----------------------------------------------------------------------------------------------


def _families(loop: Loop) -> dict[str, Mapping[str, Tensor] | None]:
    return dict(  # a name that two of them have is an error here, and not one overwriting the other
        model=loop.model.state_dict(),
        average=loop.average.average,
        **loop.ascent.memory,
        moment=None if loop.public_side is None else loop.public_side.moment,
        **_kept(loop),
    )


def _kept(loop: Loop) -> dict[str, Tensors]:
    """What is remembered of releases by whoever makes them."""
    return {} if loop.asked is None else loop.asked.kept


def _family(loop: Loop, family: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """One tensor for each trainable weight, of its shape and type, on its device."""
    result = {}
    for name, weight in loop.weights.items():
        value = tensors[f"{family}/{name}"]
        if value.shape != weight.shape or value.dtype != weight.dtype:
            raise ValueError(f"{family} of {name}: {value.dtype} {tuple(value.shape)}")
        result[name] = value.to(weight.device)
    return result


def _plateau(stored: Mapping[str, Any]) -> Plateau:
    numbers: dict[str, Any] = {key: number_from(value) for key, value in stored.items()}
    counts = [field.name for field in dataclasses.fields(Plateau) if isinstance(field.default, int)]
    return Plateau(**numbers | {name: int(numbers[name]) for name in counts})


def _check_model(loop: Loop, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a model that is not the one of the run, by the first name that differs."""
    stored = {name: _form(value) for name, value in under("model/", tensors).items()}
    here = {name: _form(value) for name, value in loop.model.state_dict().items()}
    for name in sorted(stored.keys() | here.keys()):
        if stored.get(name) != here.get(name):
            raise InputError(
                "model", f"{name}: {here.get(name, 'not there')}",
                f"the model of the run, with {name}: {stored.get(name, 'not there')}",
                problem="differs from the model that was trained", cure="Build it as before.",
            )  # fmt: skip


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _groups_settings(group: Mapping[str, Any]) -> Any:
    none: Tensors = {}
    return _stored({key: value for key, value in group.items() if key != "params"}, "", none, None)


def _restore_optimizer(loop: Loop, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    optimizer, weights = loop.optimizer, list(loop.weights.values())
    if len(facts["groups"]) != len(optimizer.param_groups) or len(facts["state"]) != len(weights):
        raise ValueError("another number of weights or groups in the optimizer")
    for group, stored in zip(optimizer.param_groups, facts["groups"]):
        settings = _loaded(stored, tensors, None)
        if settings.keys() != group.keys() - {"params"}:
            raise ValueError("other settings in the optimizer")
        group.update(settings)
    for weight, stored in zip(weights, facts["state"]):
        if stored is not None:
            optimizer.state[weight] = _loaded(stored, tensors, weight)
    # What each optimizer keeps is its own affair. A step of a copy shows whether this is it.
    trial = copy.deepcopy(optimizer)
    for group in trial.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    trial.step()


def _stored(value: Any, name: str, tensors: Tensors, weight: Tensor | None) -> Any:
    """A tree of tensors and plain values as JSON; tensors go into ``tensors`` under names of their own."""
    if isinstance(value, Tensor) and weight is not None:
        tensors[name] = value
        return {"tensor": name, "beside_weight": value.device == weight.device}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"number": plain_number(value)}
    if isinstance(value, tuple | list):
        parts = [_stored(part, f"{name}/{i}", tensors, weight) for i, part in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"table": {k: _stored(part, f"{name}/{k}", tensors, weight) for k, part in value.items()}}
    raise InputError(
        "optimizer", type(value).__name__, "an optimizer that keeps tensors, numbers and text",
        problem="is held by the optimizer and cannot be stored in a checkpoint",
        cure="Use checkpoint_every=float('inf') for a run that cannot be resumed.",
    )  # fmt: skip


def _loaded(stored: Any, tensors: Mapping[str, Tensor], weight: Tensor | None) -> Any:
    if isinstance(stored, list):
        return [_loaded(part, tensors, weight) for part in stored]
    if not isinstance(stored, dict):
        return stored
    if "tensor" in stored:
        value = tensors[stored["tensor"]].clone()
        return value.to(weight.device) if weight is not None and stored["beside_weight"] else value
    if "number" in stored:
        return number_from(stored["number"])
    if "tuple" in stored:
        return tuple(_loaded(part, tensors, weight) for part in stored["tuple"])
    return {key: _loaded(part, tensors, weight) for key, part in stored["table"].items()}
