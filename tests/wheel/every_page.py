"""Every block of every page runs: on the installed wheel in the tests, on the source where this file is named.

pytest tests/wheel/every_page.py -k estimators
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest

import saltflat
from docs_blocks import PAGES, blocks, name_of
from docs_running import run_here, shown

WORDS = {"python": {(), ("no-run",), ("patched",)}, "sh": {(), ("run",)}, "text": {(), ("varies",)}}

if place := os.environ.get("SALTFLAT_INSTALLED"):
    assert saltflat.__file__.startswith(place), saltflat.__file__


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, in order, in one folder and one namespace; ``python no-run`` must still be Python.

    What a block prints must be what the page says that it prints. Fails when a block is passed over: one that is
    indented, say (tried); and when a digit of an output is another (tried).
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before, printed = None, io.StringIO()
    namespace: dict[str, Any] = {"__name__": "documentation"}
    found = [block for block in blocks(page) if block.language in WORDS]
    fences = re.findall(
        r"^\s*```\s*(?:python|sh|text)\b", page.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(found) == len(fences), f"{name_of(page)}: a block is not seen"
    for block in found:
        assert block.words in WORDS[block.language], (
            f"{name_of(page)}:{block.line}: {block.words} means nothing"
        )
        if block.language == "python":
            padding = "\n" * block.line  # so that a traceback names the line of the page
            code = compile(padding + block.text, str(page), "exec")
            if block.runs:
                before, printed = block, io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(code, namespace)
        elif block.runs:
            run_here(block, monkeypatch)
        elif before is not None and block.is_output_of(before):
            assert shown(printed.getvalue(), block) == shown(block.text, block), (
                f"{name_of(page)}:{block.line}"
            )
