"""Results that are kept as they come: a bench that was cut off goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saltflat.errors import InputError
from saltflat.record.atomic import write_whole
from saltflat.training.resume import differences

VERSION = 1
NAME = "bench.json"

Numbers = dict[str, Any]


@dataclass
class Results:
    """What was measured so far, by section and key, in memory and in ``FOLDER/bench.json``.

    ``identity`` is all that a number depends on: sizes, machine, versions, code. Results of another identity
    are neither mixed in nor overwritten without being asked.
    """

    path: Path
    identity: Numbers
    sections: dict[str, dict[str, Numbers]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, identity: Numbers, *, fresh: bool = False) -> Results:
        """The results in a folder, to go on with; ``fresh`` starts anew."""
        path = folder / NAME
        identity = json.loads(json.dumps(identity))  # as a file gives it back: lists, not tuples
        results = cls(path, identity)
        if fresh or not path.exists():
            return results
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            version, found, sections = known["version"], known["identity"], known["sections"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                "out", str(folder), "a folder of earlier results, or a new one",
                problem=f"holds a {NAME} that cannot be read",
                cure="Give --fresh to measure everything again, or choose another --out.",
            ) from error  # fmt: skip
        if version != VERSION or found != identity:
            other = f"version {version}" if version != VERSION else "; ".join(differences(found, identity))
            raise InputError(
                "out", str(folder), "results of the same settings, machine and code",
                problem=f"holds results of other ones ({other})",
                cure="Give --fresh to measure everything again, or choose another --out.",
            )  # fmt: skip
        results.sections = sections
        return results

    def once(self, section: str, key: str, measure: Callable[[], Numbers]) -> Numbers:
        """What was kept under section and key; measured and kept now if there is nothing yet."""
        if (kept := self.kept(section, key)) is not None:
            return kept
        found: Numbers = json.loads(json.dumps(measure(), allow_nan=False))
        self.sections.setdefault(section, {})[key] = found
        self.save()
        return found

    def kept(self, section: str, key: str) -> Numbers | None:
        """What was measured earlier, if anything."""
        return self.sections.get(section, {}).get(key)

    def save(self, **beside: Any) -> None:
        """Write all of it, in one piece or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"version": VERSION, "identity": self.identity, "sections": self.sections, **beside}
        write_whole(self.path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
