"""The public names, read from the source without importing it: a table in ``docs/reference.md``, and a page a chapter.

    python docs/build/reference.py    writes the table anew

Public is what ``__all__`` lists; a chapter without one hands out its functions and classes.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "saltflat"
PAGE = ROOT / "docs" / "reference.md"
BEGIN, END = "<!-- names: begin -->", "<!-- names: end -->"


def public_names(path: Path) -> list[str]:
    """What a file hands out, in the order of its ``__all__``."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in defined if not name.startswith("_")]


def chapters() -> dict[str, list[str]]:
    """``saltflat`` with its own names, the chapters that it hands out, and the values that plans are made of."""
    own = public_names(PACKAGE / "__init__.py")
    homes = {name: home for name in sorted({*own, "plan"}) if (home := _home(name)) is not None}
    top = [name for name in own if name not in homes or name == "report"]  # report can be called
    return {"saltflat": top} | {f"saltflat.{name}": public_names(home) for name, home in homes.items()}


def _home(name: str) -> Path | None:
    return next((p for p in (PACKAGE / name / "__init__.py", PACKAGE / f"{name}.py") if p.exists()), None)


def table() -> str:
    lines = ["| chapter | names |", "|---|---|"]
    lines += [
        f"| `{chapter}` | {', '.join(f'`{n}`' for n in names)} |" for chapter, names in chapters().items()
    ]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table of today between its marks."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def chapter_page(chapter: str) -> str:
    """A page of which mkdocstrings makes the reference of a chapter."""
    parts = [
        f"# {chapter}",
        f"::: {chapter}\n    options:\n      members: false\n      show_root_heading: false",
    ]
    for name in chapters()[chapter]:
        # `report` is a chapter that can be called: its function has the same name
        target = (
            f"{chapter}.report.report" if (chapter, name) == ("saltflat", "report") else f"{chapter}.{name}"
        )
        parts.append(f"::: {target}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
