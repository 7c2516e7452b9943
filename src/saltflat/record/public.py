"""What a run knew beside its private data: public rows, what they were used for, and on whose word they are public."""

from __future__ import annotations

from typing import Any

from saltflat.record.canonical import DamagedError

KEYS = {"used": str, "name": str, "provenance": str, "declared_by": str, "rows": int, "sha256": str}
NOT_COVERED = (
    "public data: rows that were declared public are not protected, nor is anyone whom they are about"
)


def public_data(about: Any) -> list[dict[str, Any]]:
    """The public data that ``run.json`` lists; anything else in its place is a `DamagedError`.

    >>> public_data({"seconds": 1.0})
    []
    """
    listed = about.get("public", []) if isinstance(about, dict) else []
    sound = isinstance(listed, list) and all(
        isinstance(entry, dict)
        and entry.keys() == KEYS.keys()
        and all(type(entry[key]) is kind for key, kind in KEYS.items())
        for entry in listed
    )
    if not sound:
        raise DamagedError("run.json: public does not list public data.")
    return list(listed)


def public_words(entry: dict[str, Any]) -> str:
    """One of them in words."""
    name = f"{entry['name']}, " if entry["name"] else ""
    kind = "synthetic from public data" if entry["provenance"] == "synthetic" else entry["provenance"]
    return (
        f"{entry['used']}: {name}{entry['rows']:,} rows, {kind}, on the word of {entry['declared_by']} "
        f"(SHA-256 {entry['sha256'][:16]}…)"
    )
