"""What is released works by itself: built, installed elsewhere, and run without the repository.

Its dependencies are those of the environment; only saltflat comes from the wheel. What saltflat does not ask for,
the extras among it, is hidden where the test says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs_blocks import PAGES, ROOT, blocks, name_of

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """A folder with the installed wheel, and the wheel."""

    place: Path
    wheel: Path

    def run(
        self,
        *command: str,
        cwd: Path,
        before: str = "",
        timeout: int = 300,
        more: dict[str, str] | None = None,
    ) -> str:
        """What a command says that finds saltflat in that folder alone, and ends well."""
        path = os.pathsep.join([str(self.place / "bin"), os.environ["PATH"]])
        first = os.pathsep.join(filter(None, [before, str(self.place)]))
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment = own | {"PYTHONPATH": first, "PATH": path, "PYTHONIOENCODING": "utf-8"} | (more or {})
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8", check=False,
            timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`python -m build` makes a source distribution, and of that the wheel: so both are whole."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "dist").glob("saltflat-*.whl")
    install = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--target", str(folder / "installed"), str(wheel),
    ]  # fmt: skip
    subprocess.run(install, cwd=folder, check=True, timeout=300)
    return Installed(folder / "installed", wheel)


def test_the_wheel_holds_the_package_and_nothing_else(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"saltflat"}
    for file in (ROOT / "src" / "saltflat").rglob("*"):
        if file.is_file() and file.suffix != ".pyc":  # also what is not Python: loops in C, digits, py.typed
            assert file.relative_to(ROOT / "src").as_posix() in names


@pytest.mark.parametrize("half", [0, 1])
def test_every_page_runs(installed: Installed, half: int) -> None:
    """All Python, and what the shell is told to run, of half of the pages, as a reader of the wheel would."""
    here = Path(__file__).with_name("every_page.py")
    named = [f"{here}::test_blocks_run[{name_of(page)}]" for page in PAGES[half::2]]
    said = installed.run(
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *named, cwd=ROOT, timeout=900,
        more={"SALTFLAT_INSTALLED": str(installed.place), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert f"{len(named)} passed" in said


def test_readme_and_start_page_tell_the_shell_what_works(installed: Installed, tmp_path: Path) -> None:
    """The console script itself, where pages above call the same in one process."""
    pages = (ROOT / "README.md", ROOT / "docs" / "index.md")
    found = [block for page in pages for block in blocks(page) if block.runs and block.language == "sh"]
    assert {block.page for block in found} == set(pages)
    script = "\n".join(block.text for block in blocks(pages[1]) if block.runs and block.language == "python")
    (tmp_path / "page.py").write_text(script, encoding="utf-8")
    installed.run(sys.executable, "page.py", cwd=tmp_path)
    for block in found:
        installed.run("bash", "-euo", "pipefail", "-c", block.text, cwd=tmp_path)


HIDE = """
import sys
from importlib.machinery import PathFinder

class Fewer(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Fewer
"""


def asked_for(package: str, found: set[str]) -> set[str]:
    """The distributions that come with one when it is installed without extras."""
    name = canonicalize_name(package)
    if name in found:
        return found
    found.add(name)
    for line in metadata.requires(package) or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            try:
                asked_for(needed.name, found)
            except metadata.PackageNotFoundError:  # for another platform, or a build of its own
                continue
    return found


def test_quickstart_runs_as_it_is(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With its own settings, for one round, and nothing but what pip would bring: no extra is there.

    The methods learn, and one round is no victory.
    """
    tmp_path, before = tmp_path_factory.mktemp("user"), tmp_path_factory.mktemp("before")
    comes = asked_for("saltflat", set())
    hidden = {
        module for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & comes
    }  # fmt: skip
    assert {"matplotlib", "PIL", "flwr", "opacus", "pandas"} <= hidden
    (before / "sitecustomize.py").write_text(f"HIDDEN = {sorted(hidden)!r}\n{HIDE}", encoding="utf-8")
    check = "import importlib.util as u; print(u.find_spec('saltflat').origin); import matplotlib"
    with pytest.raises(AssertionError, match="No module named 'matplotlib'"):
        installed.run(sys.executable, "-c", check, cwd=tmp_path, before=str(before))
    assert "--seeds" in installed.run("saltflat", "quickstart", "--help", cwd=tmp_path, before=str(before))
    said = installed.run("saltflat", "quickstart", "--seeds", "1", "--json", cwd=tmp_path, before=str(before))
    found = json.loads(said)
    assert set(found["accuracy"]) == {"dp-sgd", "dp-sat", "sai", "dp-sgd+swa"}
    assert all(values[0] > 0.7 for values in found["accuracy"].values())
    assert (found["epsilon"], found["delta"], found["out"]) == (2.0, 1e-4, "saltflat-quickstart")
    assert found["verdict"]["won"] is False
    assert [path.name for path in tmp_path.iterdir()] == ["saltflat-quickstart"]
    assert (tmp_path / "saltflat-quickstart" / "report.html").exists()
