"""Plans as JSON and TOML. Every field is spelled as its Python argument; parts carry their ``kind``."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from typing import Any, Literal, get_args

from saltflat.errors import InputError, SaltflatError, nearest
from saltflat.plan import federation, parts
from saltflat.plan.ascents import ASCENTS
from saltflat.plan.averagings import AVERAGINGS
from saltflat.plan.budget import Budget
from saltflat.plan.phase import Phase
from saltflat.plan.plan import FORMAT, Plan
from saltflat.plan.sampling import Poisson, TruncatedPoisson
from saltflat.plan.survey import Survey

_KINDS: dict[str, dict[str, type]] = {
    "sampling": {c.kind: c for c in (Poisson, TruncatedPoisson)},
    "ascent": dict(ASCENTS),
    "averaging": dict(AVERAGINGS),
    "clipping": {c.kind: c for c in get_args(parts.Clipping)},
    "multiplicity": {parts.Multiplicity.kind: parts.Multiplicity},
    "public_gradient": {c.kind: c for c in get_args(parts.PublicGradient)},
    "mask": {c.kind: c for c in get_args(federation.Mask)},
    "placement": {c.kind: c for c in get_args(federation.Placement)},
}

_VALUES: dict[str, type] = {
    "budget": Budget,
    "optimizer": parts.Optimizer,
    "federation": federation.Federation,
    "survey": Survey,
}
"""Parts of a plan that have one kind; all but the budget may be absent."""


class PlanFileError(SaltflatError, ValueError):
    """A plan file that cannot be read; the message lists every fault that was found."""


def to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain data: dictionaries, lists, strings and finite numbers."""
    return {"saltflat_plan": FORMAT if _is_later(plan) else 1} | _table(plan)


def from_dict(data: Any) -> Plan:
    """The plan that `to_dict` wrote."""
    if not isinstance(data, dict):
        raise PlanFileError("A plan is a table of keys and values, and this is not one.")
    version = data.get("saltflat_plan")
    if not isinstance(version, int) or isinstance(version, bool):
        raise PlanFileError("This is not a plan: the key saltflat_plan (the format's version) is missing.")
    if version > FORMAT:
        raise PlanFileError(
            f"This plan has format {version}; this saltflat reads formats up to {FORMAT}. Update saltflat."
        )
    faults: list[str] = []
    fields = _fields(Plan, {k: v for k, v in data.items() if k != "saltflat_plan"}, "plan", faults)
    built: dict[str, Any] = {}
    for key, value in fields.items():
        if key == "phases":
            rows = value if isinstance(value, list) else [value]
            built[key] = tuple(_build(Phase, row, f"phases[{i}]", faults) for i, row in enumerate(rows))
        elif key in _KINDS:
            built[key] = _part(key, value, key, faults)
        elif key in _VALUES and (value is not None or key == "budget"):
            built[key] = _build(_VALUES[key], value, key, faults)
        elif key == "notes":
            built[key] = tuple(value) if isinstance(value, list) else (value,)
        else:
            built[key] = value
    if not faults:
        try:
            return Plan(**built)
        except (SaltflatError, TypeError, AttributeError) as error:
            faults.append(str(error))
    raise PlanFileError("This plan cannot be read:\n" + "\n".join(f"  - {fault}" for fault in faults))


def from_text(text: str, language: Literal["JSON", "TOML"]) -> Plan:
    """The plan that was written as JSON or as TOML."""
    try:
        return from_dict(json.loads(text) if language == "JSON" else tomllib.loads(text))
    except PlanFileError:
        raise
    except RecursionError as error:
        raise PlanFileError("This plan is nested too deeply to be one.") from error
    except ValueError as error:  # also a number of more digits than Python reads
        raise PlanFileError(f"This plan is not valid {language}: {error}") from error


def to_toml(plan: Plan) -> str:
    """The plan as TOML, which has no null: absent keys have their defaults."""
    import tomli_w

    return tomli_w.dumps(_without_none(to_dict(plan)))


def _table(value: Any) -> dict[str, Any]:
    """The fields of a value; those that older files do not have only where they say something."""
    return {
        f.name: _plain(getattr(value, f.name))
        for f in dataclasses.fields(value)
        if "later" not in f.metadata or _says_something(value, f)
    }


def _is_later(value: Any) -> bool:
    """Whether any part of a plan has a field that format 1 does not know."""
    return dataclasses.is_dataclass(value) and any(
        ("later" in f.metadata and _says_something(value, f)) or _is_later(getattr(value, f.name))
        for f in dataclasses.fields(value)
    )


def _says_something(value: Any, f: dataclasses.Field[Any]) -> bool:
    default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
    return bool(getattr(value, f.name) != default)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        return kind | _table(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _fields(cls: type, data: Any, where: str, faults: list[str]) -> dict[str, Any]:
    """The known keys of ``data``; every unknown or missing one becomes a fault."""
    if not isinstance(data, dict):
        faults.append(f"{where} should be a table of keys and values")
        return {}
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = [str(key) for key in data if key not in known]
    faults.extend(f"{where} has an unknown key {key!r}. {nearest(key, list(known))}" for key in unknown)
    for name, f in known.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in data:
            faults.append(f"{where} lacks the key {name!r}")
    return {key: math.inf if value == "inf" else value for key, value in data.items() if key in known}


def _build(cls: type, data: Any, where: str, faults: list[str]) -> Any:
    before = len(faults)
    fields = _fields(cls, data, where, faults)
    for family in ("ascent", "mask", "placement"):
        if family in fields:
            fields[family] = _part(family, fields[family], f"{where}.{family}", faults)
    if "local" in fields:
        fields["local"] = _build(federation.LocalTraining, fields["local"], f"{where}.local", faults)
    if len(faults) > before:
        return None
    try:
        return cls(**fields)
    except InputError as error:
        faults.append(f"{where}: {error}".replace("\n", "\n    "))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        faults.append(f"{where} holds a value of the wrong type: {error}")
    return None


def _part(family: str, data: Any, where: str, faults: list[str]) -> Any:
    kinds = _KINDS[family]
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        faults.append(f"{where} has kind {kind!r}. {nearest(str(kind), list(kinds))}")
        return None
    return _build(kinds[kind], {k: v for k, v in data.items() if k != "kind"}, where, faults)
