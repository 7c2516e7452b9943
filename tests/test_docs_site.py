"""The documentation as a site: `make docs` builds it without a warning, and every public name has its place there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import saltflat
from docs_blocks import ROOT


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "build" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load("reference")


def test_the_table_of_names_is_up_to_date() -> None:
    there = reference.PAGE.read_text(encoding="utf-8")
    assert there == reference.with_table(there), "make it again: python docs/build/reference.py"


def test_the_names_that_were_read_are_those_that_are_there() -> None:
    """Reading the source and importing it agree. Fails when `__all__` names one more (tried)."""
    chapters = reference.chapters()
    listed = {*chapters["saltflat"], *(name.removeprefix("saltflat.") for name in chapters)}
    assert listed - {"saltflat", "plan"} == set(saltflat.__all__) - {"__version__"}
    for chapter, names in chapters.items():
        module = importlib.import_module(chapter)
        assert all(hasattr(module, name) for name in names)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made as `make docs` makes it: a broken link or a page that is in no menu is an error."""
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def test_every_public_name_has_its_place(built: Path) -> None:
    for chapter, names in reference.chapters().items():
        page = (built / "reference" / f"{chapter}.html").read_text(encoding="utf-8")
        for name in names:
            assert f">{name}<" in page, f"{chapter}.{name} is not in the reference"


FETCHED = re.compile(
    r"""<(?:img|script|iframe|source|link(?=[^>]*\brel=["']?stylesheet))\b[^>]*?\s(?:src|href)=["']?(?:https?:)?//[^>]*>"""
)


def test_nothing_comes_from_elsewhere(built: Path) -> None:
    """Pages can be read without a network: no script, style or picture has another address.

    Fails when a page shows a picture of another site (tried).
    """
    for page in built.rglob("*.html"):
        found = FETCHED.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.relative_to(built)} fetches something: {found[0]}"


@pytest.mark.parametrize(
    ("tag", "fetches"),
    [
        ('<img alt="a" src="https://a.org/a.png" />', True),
        ('<img src="//a.org/a.png">', True),
        ('<script defer src="http://a.org/a.js"></script>', True),
        ('<link href="https://a.org/a.css" rel="stylesheet" />', True),
        ('<link rel="stylesheet" href="https://a.org/a.css">', True),
        ('<link href="https://a.org/" rel="canonical" />', False),
        ('<img alt="http://a.org" src="a.png" />', False),
        ('<a href="https://a.org"><img src="a.png"></a>', False),
    ],
)
def test_what_is_fetched_is_seen_wherever_its_address_stands(tag: str, fetches: bool) -> None:
    assert bool(FETCHED.search(tag)) is fetches


def test_blocks_and_tables_are_rendered(built: Path) -> None:
    """Words for the tests do not show, and no fence or row of a table is left as text."""
    for page in (built / "tutorials").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "```" not in text
        assert "no-run" not in text
    assert "<table>" in (built / "index.html").read_text(encoding="utf-8")
