"""The real data sets, where they lie beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saltflat import data

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def real(name: str) -> Path:
    if data.locate(name, SHARED) is None:
        pytest.skip(f"the real {name} is not in ../shared/data")
    return SHARED


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_published_facts_hold(name: str) -> None:
    loaded = data.load(name, data_dir=real(name), public_fraction=0.04)
    facts = data.describe(name, SHARED)
    assert loaded.test is not None
    assert loaded.public is not None
    assert len(loaded.train) + len(loaded.public) == facts.rows
    assert len(loaded.public) == 2400
    assert len(loaded.test) == facts.test_rows
    assert loaded.train.inputs.shape[1:] == facts.shape
    assert torch.bincount(loaded.public.targets).tolist() == [240] * 10
    mean = {"mnist": 0.1307, "fashion-mnist": 0.2860}[name]
    whole = torch.cat([loaded.train.inputs, loaded.public.inputs])
    assert float(whole.mean()) == pytest.approx(mean, abs=1e-4)


def test_fashion_mnist_has_the_checksums_of_the_catalogue(tmp_path: Path) -> None:
    mirror = real("fashion-mnist") / "fashion-mnist"
    files = data.fetch("fashion-mnist", tmp_path, mirror=mirror.as_uri())
    assert data.locate("fashion-mnist", tmp_path) == files


def test_the_jpeg_archive_is_found() -> None:
    """Decoding all of it takes too long here; the same layout, smaller, is read in test_data_cifar."""
    found = data.locate("cifar10", real("cifar10"))
    assert found is not None
    assert found[0].exists()
