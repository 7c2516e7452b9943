"""Reading what others wrote: JSON with one spelling only, files of bounded size, hashes of files.

JSON leaves room that a record must not have: white space, the order of repeated keys, NaN, numbers that no
float can hold. Here a file is read only if it is spelled as saltflat spells it. Then no byte can change without
a change of what is read. Nothing here executes code, and nothing imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from saltflat.errors import InputError, SaltflatError

LARGEST_JSON = 16 * 2**20
LARGEST_LEDGER = 512 * 2**20
LARGEST_WHOLE = 2**63


class DamagedError(SaltflatError):
    """A file of a run that was damaged or is none of saltflat's."""


def parsed(content: bytes, name: str) -> Any:
    """JSON without repeated keys, NaN, infinities and numbers out of range; anything else is a `DamagedError`.

    >>> parsed(b'{"a": 1, "a": 2}', "this")
    Traceback (most recent call last):
    saltflat.record.canonical.DamagedError: this is not valid JSON (the key 'a' is there twice).
    """
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise DamagedError(f"{name} is not valid JSON ({said}).") from error


def spelled(data: Any, *, indent: int | None = 2) -> bytes:
    """The one spelling of plain data in a file of a run; with ``indent=None``, in a line of a ledger."""
    return json.dumps(data, indent=indent, allow_nan=False).encode() + b"\n"


def plain_figure(value: float | None) -> float | str | None:
    """A figure as JSON holds it: infinite is a word."""
    return "inf" if value == math.inf else value


def fingerprint(data: Any) -> str:
    """The SHA-256 of plain data, whatever the order of its keys.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def same(a: Any, b: Any) -> bool:
    """Whether two pieces of plain data are the same also in type: ``True`` is not 1, and 1 is not 1.0."""
    return type(a) is type(b) and json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def read_bounded(path: Path, most: int = LARGEST_JSON) -> bytes:
    """The content of an ordinary file; a larger one is refused before it is read."""
    _check_ordinary(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise DamagedError(f"{path.name} has more than {most:,} bytes, which is none of saltflat's.")
    return content


def file_hash(path: Path) -> str:
    """The SHA-256 of an ordinary file's bytes, read in parts."""
    _check_ordinary(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_ordinary(path: Path) -> None:
    if not path.is_file():
        raise DamagedError(f"{path.name} is missing." if not path.exists() else f"{path.name} is no file.")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} is there twice")
        found[key] = value
    return found


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or not -LARGEST_WHOLE <= (value := int(text)) < LARGEST_WHOLE:
        raise ValueError(f"{text[:40]} is out of range")
    return value


def no_run(path: Path, argument: str = "folder") -> InputError:
    """The error of a folder that holds no run. It names the runs that lie in it, if there are any."""
    cure = "Without plan.json nothing was released yet: start the run again."
    inside = sorted(str(plan.parent) for plan in path.glob("*/plan.json")) if path.is_dir() else []
    if inside:
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        cure = f"It is a folder of runs. Name one of them: {', '.join(inside[:3])}{more}."
    return InputError(argument, str(path), "a folder that saltflat wrote", problem="holds no run", cure=cure)
