"""Puts the benchmarks on the path, and makes small registries to try the runner on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "benchmarks") not in sys.path:
    sys.path.insert(0, str(ROOT / "benchmarks"))

from papers.registry import Registry, load  # noqa: E402 - found by the line above

PAPER = '[paper]\nshort = "A paper"\ntitle = "On tests"\nauthors = "Nobody, 2024"\n'
SMALL = "--data digits --model mlp --noise-multiplier 2 --delta 1e-4 --batch-size 64 --method dp-sgd"


def registry_of(folder: Path, tables: str, paper: str = PAPER) -> Registry:
    """A registry of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a-paper.toml").write_text(paper + tables, encoding="utf-8")
    return load(folder)


def table(name: str = "t", **changes: Any) -> str:
    """A table of one row and one column, as TOML."""
    lines = {
        "name": f'"{name}"', "of": '"Table 1"', "title": '"digits"', "setting": '"small"', "minutes": "0.1",
        "words": f'"{SMALL} --steps 3"', "rows": '[{ name = "r", label = "row", paper = ["50.0 ± 1.0"] }]',
        "columns": '[{ name = "c", label = "DP-SGD" }]',
    }  # fmt: skip
    lines |= changes
    return "[[table]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value is not None)
