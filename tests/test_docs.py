"""The documentation is true: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from saltflat.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, the words after it, where it starts, and its text."""

    page: Path
    language: str
    words: tuple[str, ...]
    line: int
    text: str


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


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- Python -----------------------------------------------------------------------------------------


SLOW = {"docs/methods.md"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=name_of(p), marks=[pytest.mark.slow] if name_of(p) in SLOW else []) for p in PAGES],
)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, in order, in one namespace; ``python no-run`` must still be Python.

    Fails when a block is passed over: one that is indented, say (tried).
    """
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "documentation"}
    found = [block for block in blocks(page) if block.language == "python"]
    fences = re.findall(r"^\s*```\s*python\b", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(found) == len(fences), f"{name_of(page)}: a block of Python is not seen"
    for block in found:
        padding = "\n" * block.line  # so that a traceback names the line of the page
        code = compile(padding + block.text, str(page), "exec")
        if "no-run" not in block.words:
            exec(code, namespace)


# --- links ------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """The page without its fenced blocks and inline code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(found), f"{name_of(page)} links to {target}: no such heading"


def test_every_page_and_picture_is_linked() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in ALL_PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    }
    pictures = [p for p in (ROOT / "docs" / "pictures").iterdir() if p.suffix in (".svg", ".png")]
    for path in [*PAGES[1:], *pictures]:
        assert path in linked, f"nothing links to {name_of(path)}"


# --- commands ---------------------------------------------------------------------------------------


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of every call of saltflat in a block, continuation lines joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue  # output
            line = line[2:]
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        for stop in ("|", ">", "&&", ";"):
            words = words[: words.index(stop)] if stop in words else words
        if words[:1] == ["saltflat"]:
            yield words[1:]


CALLS = [
    pytest.param(arguments, id=f"{name_of(page)}:{block.line} {' '.join(arguments[:2])}")
    for page in ALL_PAGES
    for block in blocks(page)
    if block.language in ("console", "sh")
    for arguments in commands(block)
]


def parse(command: click.Command, arguments: list[str], context: click.Context) -> click.Command:
    """Parse as click would, down through groups, without running anything; returns the command that would run."""
    _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    if isinstance(command, click.Group) and rest:
        name, child, rest = command.resolve_command(context, rest)
        assert child is not None
        return parse(child, rest, click.Context(child, info_name=name, parent=context))
    return command


@pytest.mark.parametrize("arguments", CALLS)
def test_commands_exist(arguments: list[str]) -> None:
    found = parse(app, arguments, click.Context(app))
    assert found is not app or not arguments or arguments[0].startswith("-")


def test_unknown_commands_and_options_are_noticed() -> None:
    for wrong in (["trane"], ["train", "--epsilonn", "1"], ["data", "lits"], ["calibrate", "--epsilon"]):
        with pytest.raises(click.UsageError):
            parse(app, wrong, click.Context(app))


def test_every_command_is_described() -> None:
    described = anchors(ROOT / "docs" / "cli.md")
    for name in app.list_commands(click.Context(app)):
        assert f"saltflat-{name}" in described, f"docs/cli.md has no section 'saltflat {name}'"
