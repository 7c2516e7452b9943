"""The direction of imports: a chapter can be read alone, siblings do not know one another, one file assembles."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import saltflat
from saltflat.cli.app import COMMANDS

ROOT = Path(saltflat.__file__).parent

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"

VALUES = {"errors", "accounting", "plan"}
PARTS = VALUES | {"mechanism", "methods", "engine", "models", "record", "data", "plans", "ranks"}
# As narrow as the code: a chapter that needs another one says so here, where it can be asked whether it should.
MAY_IMPORT = {
    "errors": set(),
    "heap": set(),
    "theory": {"errors"},
    "accounting": {"errors"},
    "plan": {"errors", "accounting"},
    "plans": VALUES,
    "mechanism": VALUES,
    "methods": {"errors", "plan"},
    "engine": {"errors", "heap"},
    "record": VALUES,
    "data": {"errors"},
    "models": {"errors"},
    "ranks": {"errors"},
    "training": PARTS,
    "synthesis": {"errors", "data", "models", "record"},
    "recipes": VALUES | {"plans", "data", "models"},
    "estimators": VALUES | {"plans", "engine", "models", "record", "training"},
    "federated": PARTS - {"accounting"} | {"training"},
    "bench": {"errors", "heap", "plan", "plans", "mechanism", "engine", "models", "record", "training"},
    "audit": VALUES | {"mechanism", "engine", "record", "data", "training", "federated"},
    "report": VALUES | {"record"},
    "geometry": {"errors", "heap", "data", "engine", "training"},
    "public": PARTS - {"accounting", "mechanism", "ranks"} | {"training", "synthesis", "report"},
    "compat": VALUES | {"mechanism", "methods", "engine", "models", "ranks"},
    # nothing of the private side but through training
    "cli": PARTS - {"mechanism", "engine"}
    | {"training", "audit", "bench", "federated", "geometry", "public", "recipes", "report", "synthesis"},
    "__main__": {"cli"},
}
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def chapter_of(path: Path) -> str:
    """The folder under the package, or the file itself at its top."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def imported_chapters(path: Path) -> set[str]:
    """Every chapter that a file imports, also inside functions and for type checkers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parents = path.relative_to(ROOT.parent).parts[: -node.level]
                base = ".".join((*parents, node.module or "")).strip(".")
            else:
                base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and _called(node).endswith("import_module"):
            names = [_text(node.args[0])]
        else:
            continue
        parts = [name.split(".") for name in names]
        # The package itself holds no code but its version.
        found |= {p[1] for p in parts if p[0] == "saltflat" and len(p) > 1 and p[1] != "__version__"}
    return found


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _text(node: ast.expr) -> str:
    """A string, or the fixed beginning of an f-string."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    """Fails when `methods` imports `engine`, also inside a function (tried)."""
    chapter = chapter_of(path)
    assert chapter in MAY_IMPORT, f"say in MAY_IMPORT what the new chapter {chapter!r} may import"
    wrong = imported_chapters(path) - MAY_IMPORT[chapter] - {chapter}
    assert not wrong, f"{chapter} must not import {sorted(wrong)}"


@pytest.mark.parametrize("chapter", MAY_IMPORT)
def test_no_chapter_may_import_what_it_does_not(chapter: str) -> None:
    """A permission that nobody uses is a door left open. Fails when `compat` may import `training` (tried)."""
    used = set().union(*(imported_chapters(path) for path in SOURCES if chapter_of(path) == chapter))
    assert not MAY_IMPORT[chapter] - used


def test_every_form_of_import_is_seen(tmp_path: Path) -> None:
    """The check above is only as good as what it finds."""
    folder = ROOT / "methods"  # for relative imports; nothing is written there
    text = (
        "import saltflat.engine\n"
        "from saltflat.record import ledger\n"
        "from saltflat import data, __version__\n"
        "from ..models import build\n"
        "def late():\n"
        "    from saltflat.plans import sai\n"
        "    importlib.import_module('saltflat.training.fit')\n"
        "    importlib.import_module(f'saltflat.cli.{late}')\n"
    )

    class Written(type(folder)):  # type: ignore[misc]
        def read_text(self, *_: object, **__: object) -> str:
            return text

    found = imported_chapters(Written(folder / "imagined.py"))
    assert found == {"engine", "record", "data", "models", "plans", "training", "cli"}


def import_table() -> str:
    """What each chapter imports, as docs/architecture.md shows it: lower chapters first."""
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        graph.setdefault(chapter_of(path), set()).update(imported_chapters(path) - {chapter_of(path)})

    def height(chapter: str) -> int:
        return max((1 + height(below) for below in graph[chapter]), default=0)

    ordered = sorted(graph, key=lambda chapter: (height(chapter), chapter))
    rows = ["| chapter | imports, beside `errors` |", "|---|---|"]
    for chapter in ordered[1:]:
        below = [f"`{name}`" for name in ordered if name in graph[chapter] and name != "errors"]
        rows.append(f"| `{chapter}` | {', '.join(below) or '–'} |")
    return "\n".join(rows)


def test_the_page_shows_the_imports_as_they_are() -> None:
    """Fails when a chapter imports another one and the page does not say so (tried)."""
    shown = "python tests/test_imports.py prints the table for docs/architecture.md"
    assert import_table() in PAGE.read_text(encoding="utf-8"), shown


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_plans_and_accounting_load_no_torch() -> None:
    code = """
import sys
import saltflat, saltflat.plan, saltflat.plan.files, saltflat.plan.table, saltflat.accounting, saltflat.plans
saltflat.plans.dp_sgd(noise_multiplier=4.0, population=60_000, batch_size=2048, steps=10)
print("torch" in sys.modules)
"""
    assert run_python(code) == "False"


def test_help_loads_neither_torch_nor_the_accountant() -> None:
    """The help of every command, one after the other: the first that loads too much is named.

    Fails when a command imports `saltflat.data` at its top (tried).
    """
    code = f"""
import sys
from saltflat.cli import main
heavy = {{"torch", "dp_accounting", "numpy", "scipy", "sklearn", "matplotlib", "rich", "pyarrow", "safetensors"}}
for command in {["", *COMMANDS, "data list", "budget show"]!r}:
    sys.argv = ["saltflat", *command.split(), "--help"]
    try:
        main()
    except SystemExit:
        pass
    if heavy & set(sys.modules):
        break
print("loaded:", command, sorted(heavy & set(sys.modules)))
"""
    assert run_python(code).endswith("loaded: budget show []")


def test_help_of_the_top_loads_little() -> None:
    """A bound on what is imported, which a busy machine cannot blur: 0.07 s of processor time when it was set."""
    code = """
import sys
before = set(sys.modules)
sys.argv = ["saltflat", "--help"]
from saltflat.cli import main
try:
    main()
except SystemExit:
    pass
new = set(sys.modules) - before
print("loaded:", len(new), sorted(name for name in new if name.startswith("saltflat.")))
"""
    said = run_python(code).rpartition("loaded: ")[2]
    count, _, own = said.partition(" ")
    assert int(count) < 150
    assert (
        own
        == "['saltflat.cli', 'saltflat.cli.app', 'saltflat.cli.words', 'saltflat.errors', 'saltflat.heap']"
    )


def test_every_public_name_is_there() -> None:
    for name in saltflat.__all__:
        assert getattr(saltflat, name) is not None
    assert set(saltflat.__all__) <= set(dir(saltflat))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        saltflat.nothing_of_the_kind  # noqa: B018


if __name__ == "__main__":
    print(import_table())


def test_what_is_imported_is_declared() -> None:
    """A package that only comes with another one is gone when that one lets go of it."""
    declared = _declared_packages() | {"jax", "jax_privacy"}  # timed where somebody installed them
    own = {"saltflat", *sys.stdlib_module_names}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for package in {name.partition(".")[0] for name in names} - own:
                assert package in declared, (
                    f"{path.relative_to(ROOT)} imports {package}, which nothing declares"
                )


def _declared_packages() -> set[str]:
    """Names under which the dependencies and extras of pyproject.toml are imported."""
    project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(one for name in extras if name != "dev" for one in extras[name])]
    imported_as = {
        "dp-accounting": "dp_accounting",
        "scikit-learn": "sklearn",
        "pillow": "PIL",
        "tomli-w": "tomli_w",
    }
    names = {re.match(r"[\w.-]+", line).group() for line in asked}  # type: ignore[union-attr]
    return {imported_as.get(name, name) for name in names}
