"""What an extra brings is asked for by name: a part that is not installed says which extra to install."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import saltflat as sf
from saltflat.errors import MissingDependencyError

ROOT = Path(__file__).parents[1]


def calibrate_plot(folder: Path) -> None:
    from saltflat.cli.accounting_options import draw
    from saltflat.plan.sampling import Poisson

    draw(str(folder / "b.png"), Poisson(population=100, batch_size=10), 1e-3, epsilon=1.0, steps=10)


def partition_picture(folder: Path) -> None:
    from saltflat.data.source import as_source
    from saltflat.federated.clients import Clients
    from saltflat.federated.picture import draw_partition

    rows = TensorDataset(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))
    draw_partition(Clients(as_source(rows), (torch.arange(4),)), ["no", "yes"], folder / "p.png")


def sample_grid(folder: Path) -> None:
    from saltflat.synthesis.pictures import grid

    grid(torch.zeros(4, 1, 8, 8), torch.tensor([0, 0, 1, 1]), folder / "g.png")


def sample_neighbours(folder: Path) -> None:
    from saltflat.synthesis.pictures import neighbours

    neighbours(torch.zeros(2, 1, 8, 8), torch.zeros(2, 3, 1, 8, 8), torch.zeros(2, 3), folder / "n.png")


def bench_pictures(folder: Path) -> None:
    from saltflat.bench.pictures import draw

    draw({}, folder)


def flatness_picture(folder: Path) -> None:
    from saltflat.geometry.pictures import draw_flatness

    draw_flatness({"history": [], "data": {}}, folder / "f.png")


def comparison_picture(folder: Path) -> None:
    from saltflat.cli.compare import _plot

    _plot({}, folder / "c.png")


def image_folder(folder: Path) -> None:
    (folder / "cats").mkdir()
    (folder / "cats" / "one.png").write_bytes(b"not looked at")
    sf.data.load(folder)


def parquet_table(folder: Path) -> None:
    (folder / "rows.parquet").write_bytes(b"not looked at")
    sf.data.load(folder / "rows.parquet", label="y")


def signing_keys(folder: Path) -> None:
    from saltflat.record.signing import make_keys

    make_keys(folder / "private.pem", folder / "public.pem")


def lora(folder: Path) -> None:
    from saltflat.models.parts import tune_only

    tune_only(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "lora", head="1", layers=["0"])


def encoder(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    sf.models.load_encoder(folder)


def flower(folder: Path) -> None:
    from saltflat.federated.flower.job import check_installed

    check_installed()


CASES: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("matplotlib", "plot", calibrate_plot),
    ("matplotlib", "plot", partition_picture),
    ("matplotlib", "plot", bench_pictures),
    ("matplotlib", "plot", flatness_picture),
    ("PIL", "images", sample_grid),
    ("PIL", "images", sample_neighbours),
    ("PIL", "images", image_folder),
    ("pyarrow", "tables", parquet_table),
    ("cryptography", "signing", signing_keys),
    ("peft", "transformers", lora),
    ("transformers", "transformers", encoder),
    ("flwr", "federated", flower),
]


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed: also for what was imported from it before, and for who only looks."""
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("package", "extra", "ask"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_missing_part_names_its_extra(
    package: str, extra: str, ask: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(package, monkeypatch)
    with pytest.raises(MissingDependencyError, match=re.escape(f"pip install 'saltflat[{extra}]'")) as caught:
        ask(tmp_path)
    assert {"PIL": "pillow"}.get(package, package) in str(caught.value)


def test_a_comparison_comes_without_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide("matplotlib", monkeypatch)
    comparison_picture(tmp_path)
    assert "pip install 'saltflat[plot]'" in capsys.readouterr().err


def test_every_place_that_can_miss_a_package_is_asked() -> None:
    """Should fail when a new file raises the error and no case above asks it; and when an extra does not exist."""
    pattern = re.compile(r"raise MissingDependencyError\(\s*\"(\S+)\",.*?\"(\w+)\"\s*\)", re.DOTALL)
    found = {
        (path.relative_to(ROOT).as_posix(), *pair)
        for path in (ROOT / "src" / "saltflat").rglob("*.py")
        for pair in pattern.findall(path.read_text())
    }
    packages = {({"PIL": "pillow"}.get(package, package), extra) for package, extra, _ in CASES}
    assert {(package, extra) for _, package, extra in found} == packages
    assert len(found) == 8, "a place was added or taken away: give it a case, and count again"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package, extra in packages:
        wanted = project["optional-dependencies"][extra]
        assert any(re.match(rf"{package}\b", requirement) for requirement in wanted), (package, extra)
