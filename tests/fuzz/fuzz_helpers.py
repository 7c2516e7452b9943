"""Damaging files on purpose: bytes, and values inside JSON. More of it with SALTFLAT_FUZZ=20."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EFFORT = int(os.environ.get("SALTFLAT_FUZZ", "1"))


def cases(count: int) -> settings:
    """So many cases, the same ones each time; with SALTFLAT_FUZZ=n, n times as many, others each time."""
    return settings(
        max_examples=count * EFFORT,
        derandomize=EFFORT == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --- bytes ----------------------------------------------------------------------------------------------

place = st.floats(0.0, 1.0)
splinters = st.sampled_from(
    [b"\0", b"\xff", b'"', b"{", b"}", b"[", b"\n", b"\r\n", b"-", b"e", b"9" * 30, b"9" * 5000, b"NaN", b"null",
     b"\xed\xa0\x80", b"[" * 3000, b"{}" * 50, "é".encode(), b"\xef\xbb\xbf", b" = ", b"\x1b[31m"]
) | st.binary(min_size=1, max_size=8)  # fmt: skip


def _flip(where: float, what: bytes, content: bytes) -> bytes:
    at = min(int(where * len(content)), len(content) - 1)
    return content[:at] + bytes([content[at] ^ (1 << what[0] % 8)]) + content[at + 1 :]


def _cut(where: float, what: bytes, content: bytes) -> bytes:
    return content[: int(where * len(content))]


def _insert(where: float, what: bytes, content: bytes) -> bytes:
    at = int(where * len(content))
    return content[:at] + what + content[at:]


def _overwrite(where: float, what: bytes, content: bytes) -> bytes:
    at = int(where * len(content))
    return content[:at] + what + content[at + len(what) :]


def _remove(where: float, what: bytes, content: bytes) -> bytes:
    at = int(where * len(content))
    return content[:at] + content[at + len(what) :]


def _repeat(where: float, what: bytes, content: bytes) -> bytes:
    at = int(where * len(content))
    return content[:at] + content[max(0, at - 40 * len(what)) :]


def _empty(where: float, what: bytes, content: bytes) -> bytes:
    return b""


def _other(where: float, what: bytes, content: bytes) -> bytes:
    return what


BYTE_DAMAGE = (_flip, _cut, _insert, _overwrite, _remove, _repeat, _flip, _cut, _insert, _empty, _other)
byte_damages = st.lists(st.tuples(st.sampled_from(BYTE_DAMAGE), place, splinters), min_size=1, max_size=3)


def damaged(content: bytes, damages: list[tuple[Callable[..., bytes], float, bytes]]) -> bytes:
    for damage, where, what in damages:
        content = damage(where, what, content) if content else what
    return content


# --- values ---------------------------------------------------------------------------------------------

DEEP: Any = 0
for _ in range(60):
    DEEP = [DEEP]

hostile = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 2**31, 2**63, 2**70, 10**400, -(2**63), 0.0, -0.0, 0.5, 1e308, 1e-320, -1.5,
     float("nan"), float("inf"), "", "inf", "nan", "0", "é\u202e", "\ud800", "x" * 5000, "\0", "../../etc", [], {},
     [[]], [1, "a"], {"a": {}}, {"kind": "x"}, {"hash": 1}, DEEP]
) | st.text(max_size=5) | st.integers() | st.floats()  # fmt: skip
ways = st.sampled_from(["swap", "swap", "swap", "drop", "rename", "add", "copy"])
value_damages = st.lists(st.tuples(ways, st.integers(0, 10**6), hostile), min_size=1, max_size=3)


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index, in order."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        found.extend(places_in(value[key]))
    return found


def twisted(value: Any, damages: list[tuple[str, int, Any]]) -> Any:
    """A copy of plain data with some of its values exchanged, dropped, renamed or added."""
    value = copy.deepcopy(value)
    for how, which, what in damages:
        places = places_in(value)
        if not places:
            return what
        container, key = places[which % len(places)]
        what = copy.deepcopy(what)
        if how == "swap":
            container[key] = what
        elif how == "copy":
            other, from_key = places[(which // 7) % len(places)]
            container[key] = copy.deepcopy(
                other.get(from_key) if isinstance(other, dict) else other[from_key]
            )
        elif how == "drop":
            del container[key]
        elif isinstance(container, dict):
            container[str(what)[:20] if how == "rename" else "added"] = (
                container.pop(key) if how == "rename" else what
            )
        else:
            container.append(what)
    return value


def as_json(value: Any) -> bytes:
    """JSON as a careless program writes it: NaN, Infinity and lone surrogates are let through."""
    return json.dumps(value).encode()


def snapshot(folder: Path) -> dict[Path, bytes]:
    """Every file under a folder, with what it holds."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def still_there(before: dict[Path, bytes]) -> None:
    """Nothing that was there before is gone or changed."""
    for path, content in before.items():
        assert path.exists(), f"{path.name} is gone"
        assert path.read_bytes() == content, f"{path.name} was changed"
