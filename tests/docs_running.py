"""How a block of the documentation is run, and how what it prints is compared."""

from __future__ import annotations

import re
import sys
import warnings

import pytest

from docs_blocks import Block, commands, lines_of, name_of
from saltflat.cli import main


def shown(text: str, block: Block) -> list[str]:
    """The lines of an output without what may differ: spaces at the end, and numbers where the page says so."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return [re.sub(r"\d+(\.\d+)?", "N", line) for line in lines] if block.words == ("varies",) else lines


def run_here(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of a shell block in this process, where torch is loaded already; it must end well."""
    assert len(list(lines_of(block))) == len(list(commands(block))), "only calls of saltflat are run"
    for arguments in commands(block):
        monkeypatch.setattr(sys, "argv", ["saltflat", *arguments])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main exchanges it
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, f"{name_of(block.page)}:{block.line}: saltflat {' '.join(arguments)}"
