"""The documentation is true: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from docs_blocks import ALL_PAGES, PAGES, ROOT, Block, blocks, commands, name_of
from docs_running import run_here, shown
from saltflat.cli.app import app

# --- blocks, which tests/wheel runs ------------------------------------------------------------------


def test_numbers_may_differ_only_where_a_page_says_so() -> None:
    exact, varies = (Block(PAGES[0], "text", words, 1, "") for words in ((), ("varies",)))
    assert shown("accuracy 87.36%\n", varies) == shown("accuracy 9%", varies) != shown("loss 9%", varies)
    assert shown("accuracy 87.36%\n", exact) != shown("accuracy 9%", exact)


def test_a_command_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="verify runs/none"):
        run_here(Block(PAGES[0], "sh", ("run",), 1, "saltflat verify runs/none"), monkeypatch)
    with pytest.raises(AssertionError, match="only calls of saltflat"):
        run_here(Block(PAGES[0], "sh", ("run",), 1, "cat README.md"), monkeypatch)


PATCHED = [page for page in PAGES if any(block.words == ("patched",) for block in blocks(page))]


def test_there_is_a_worked_diff() -> None:
    assert ROOT / "docs" / "how-to" / "extend.md" in PATCHED


@pytest.mark.slow
@pytest.mark.parametrize("page", PATCHED, ids=name_of)
def test_worked_diffs_apply_and_do_what_they_say(page: Path, tmp_path: Path) -> None:
    """On a copy of the code, in processes of their own."""
    for folder in ("src/saltflat", "tests/engine"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for number, block in enumerate(blocks(page)):
        if block.language == "diff":
            (tmp_path / "change.diff").write_text(block.text + "\n", encoding="utf-8")
            command = ["git", "apply", "change.diff"]
        elif block.words == ("patched",):
            script = tmp_path / f"block{number}.py"
            script.write_text(block.text, encoding="utf-8")
            command = [sys.executable, str(script)]
        else:
            continue
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        )  # fmt: skip
        assert done.returncode == 0, f"{name_of(page)}:{block.line}: {done.stderr}"


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_a_tutorial_fits_two_screens_and_runs(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 80
    assert {block.language for block in blocks(page) if block.runs} == {"python", "sh"}


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
    examples = list((ROOT / "examples").glob("*.py"))
    for path in [*PAGES[1:], *pictures, *examples]:
        assert path in linked, f"nothing links to {name_of(path)}"


# --- commands ---------------------------------------------------------------------------------------


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
