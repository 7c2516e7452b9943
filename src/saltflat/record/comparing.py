"""What a certificate says, beside what it should say: field by field, and what differs in sentences."""

from __future__ import annotations

import importlib.metadata
import math
from typing import Any

from saltflat.record.canonical import DamagedError, same
from saltflat.record.certificate import SEALS

ROUNDING = 1e-6
"""How much a computed figure may differ between machines, relative to itself."""

OTHER_ACCOUNTANT = 0.05
"""How much it may differ between versions of the accountant. A claim that is too small fails on its own."""

COMPUTED = {"epsilon", "epsilon_replace_one", "epsilon_rdp", "epsilon_alone", "share", "grid"}
ELSEWHERE = {*SEALS, "files"}  # compared with the files themselves


def differences(stated: dict[str, Any], again: dict[str, Any]) -> list[str]:
    """What a certificate says, and would not say if it were made now.

    >>> differences({"delta": 1e-5, "unit": "person"}, {"delta": 1e-5, "unit": "example"})
    ["unit is 'person'; it should be 'example'."]
    """
    faults = [f"{key} is missing." for key in again if key not in stated]
    faults += [f"{str(key)[:60]} is unknown." for key in stated if key not in again]
    tolerance = OTHER_ACCOUNTANT
    if _version(stated) == importlib.metadata.version("dp-accounting"):
        tolerance = ROUNDING
    for key in again.keys() & stated.keys() - ELSEWHERE:
        known, value = again[key], stated[key]
        if key == "saltflat":
            if not isinstance(value, str) or not 0 < len(value) < 40:
                faults.append("saltflat is no version.")
            continue
        if key == "accountant" and _version(stated):
            known = known | {"version": _version(stated)}
        if not _agree(key, value, known, tolerance):
            faults.append(f"{key} is {short(value)}; it should be {short(known)}.")
    return sorted(faults)


def figure(value: Any) -> float:
    """A claimed ε; anything but a number or ``"inf"`` is a `DamagedError`."""
    if not is_figure(value):
        raise DamagedError(f"the certificate claims ε = {short(value)}, which is no number.")
    return math.inf if value == "inf" else float(value)


def is_figure(value: Any) -> bool:
    """Whether this can be the ε of a certificate."""
    return value == "inf" or (isinstance(value, float) and value >= 0 and math.isfinite(value))


def short(value: Any) -> str:
    """A value as it can be shown in a sentence."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _version(stated: dict[str, Any]) -> str | None:
    accountant = stated.get("accountant")
    version = accountant.get("version") if isinstance(accountant, dict) else None
    return version if isinstance(version, str) and 0 < len(version) < 40 else None


def _agree(key: str, a: Any, b: Any, tolerance: float) -> bool:
    """Equal in form and value, but for the last digits of what is computed."""
    if isinstance(a, float) and isinstance(b, float) and key in COMPUTED:
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_agree(name, a[name], b[name], tolerance) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_agree(key, x, y, tolerance) for x, y in zip(a, b))
    return same(a, b)
