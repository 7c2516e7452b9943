"""The version stands in several files, and is the same in all of them."""

from __future__ import annotations

import re
import tomllib

import saltflat
from docs_blocks import ROOT


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere() -> None:
    """Fails when CITATION.cff has another (tried)."""
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert saltflat.__version__ == version
    assert re.findall(r"^version: (.+)$", text("CITATION.cff"), flags=re.MULTILINE) == [version]
    assert re.search(rf"^## \[{re.escape(version)}\]", text("CHANGELOG.md"), flags=re.MULTILINE)
    for page in ("README.md", "docs/index.md"):
        assert set(re.findall(r"saltflat-([\d.]+)-py3", text(page))) == {version}, page


def test_every_extra_is_in_the_readme() -> None:
    """Fails when a row of the table is taken out (tried)."""
    table = text("README.md").partition("| extra | for |")[2].partition("\n\n")[0]
    named = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`([a-z]+)`", row.split("|")[1] if row else "")
    }
    assert named == set(tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"])
