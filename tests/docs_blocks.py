"""The fenced blocks of the documentation's pages: which there are, and which of them run.

- ``python`` runs; ``python no-run`` must be Python; ``python patched`` runs on a copy of the code that was patched by
  the page's diffs.
- ``sh run`` runs; other shell blocks must name commands and options that exist.
- ``text`` right after a ``python`` block that runs is what that block prints; with ``text varies`` numbers may differ.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "speed" / "README.md",
]
ALL_PAGES = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, the words after it, where it starts, and its text."""

    page: Path
    language: str
    words: tuple[str, ...]
    line: int
    text: str

    @property
    def runs(self) -> bool:
        if self.language == "python":
            return not self.words
        return self.language == "sh" and self.words == ("run",)

    def is_output_of(self, before: Block) -> bool:
        """Whether this is what ``before`` prints: nothing but an empty line lies between them."""
        end = before.line + len(before.text.splitlines()) + 1
        return (
            self.language == "text" and before.language == "python" and before.runs and self.line == end + 2
        )


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        language, *words = lines[start][3:].split() or [""]
        yield Block(page, language, tuple(words), start + 1, "\n".join(lines[start + 1 : number]))
        start = None
    assert start is None, f"{page.name}: the block that starts in line {start} does not end"


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of every call of saltflat in a block, continuation lines joined."""
    for words in lines_of(block):
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        for stop in ("|", ">", "&&", ";"):
            words = words[: words.index(stop)] if stop in words else words
        if words[:1] == ["saltflat"]:
            yield words[1:]


def lines_of(block: Block) -> Iterator[list[str]]:
    """The words of each line that a shell would run."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue  # output
            line = line[2:]
        if words := shlex.split(line, comments=True):
            yield words


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
