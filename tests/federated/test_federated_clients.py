"""How rows are dealt out to clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from federated_helpers import small_rows

import saltflat as sf
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.federated import partition
from saltflat.federated.picture import draw_partition


def labelled(rows: int = 2000, classes: int = 10) -> Examples:
    return Examples(torch.zeros(rows, 1), torch.arange(rows) % classes, num_classes=classes)


@pytest.mark.parametrize("by", ["iid", "dirichlet"])
@pytest.mark.parametrize("clients", [1, 7, 100, 500])
def test_every_row_has_one_client_and_sizes_are_equal(by: str, clients: int) -> None:
    found = partition(labelled(), clients, by=by, alpha=0.1)
    assert len(found) == clients
    assert torch.equal(torch.cat(found.rows_of).sort().values, torch.arange(2000))
    sizes = [len(rows) for rows in found.rows_of]
    assert max(sizes) - min(sizes) <= 1


def test_the_same_seed_deals_the_same_rows() -> None:
    for by in ("iid", "dirichlet"):
        one, two, other = (partition(labelled(), 50, by=by, seed=seed) for seed in (3, 3, 4))
        assert all(torch.equal(a, b) for a, b in zip(one.rows_of, two.rows_of))
        assert not all(torch.equal(a, b) for a, b in zip(one.rows_of, other.rows_of))


def test_a_small_concentration_makes_clients_of_few_classes() -> None:
    """The mean share of the main class: near 1/10 for iid, higher the smaller alpha is."""
    purity = {}
    for name, settings in {
        "iid": {},
        "10": {"alpha": 10.0},
        "0.6": {"alpha": 0.6},
        "0.1": {"alpha": 0.1},
    }.items():
        found = partition(labelled(20_000), 100, by="dirichlet" if settings else "iid", **settings)
        counts = found.class_counts(10)
        purity[name] = float((counts.max(1) / counts.sum(1)).mean())
    assert purity["iid"] < 0.16
    assert purity["iid"] < purity["10"] < purity["0.6"] < purity["0.1"]
    # the largest of ten Dirichlet(.6) shares is .33 on average; what others left changes it a little
    assert 0.28 < purity["0.6"] < 0.42
    assert purity["0.1"] > 0.6


def test_a_column_names_the_clients() -> None:
    ids = np.array(["b", "a", "b", "c"] * 5)
    found = partition(small_rows(20), by="column", column=ids)
    assert [len(rows) for rows in found.rows_of] == [5, 10, 5]
    grouped = Examples(torch.zeros(4, 1), torch.zeros(4).long(), groups=torch.tensor([9, 9, 2, 9]))
    assert [rows.tolist() for rows in partition(grouped, by="column").rows_of] == [[2], [0, 1, 3]]


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"by": "random"}, "partition"),
        ({"clients": 0}, "clients"),
        ({"clients": 21}, "clients"),
        ({"clients": None}, "clients"),
        ({"by": "dirichlet", "alpha": 0.0}, "alpha"),
        ({"by": "column"}, "column"),
        ({"by": "column", "column": [1, 2]}, "column"),
        ({"column": list(range(20))}, "column"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_partitions_are_named(settings: dict[str, object], argument: str) -> None:
    with pytest.raises(InputError) as caught:
        partition(small_rows(20), **({"clients": 5} | settings))  # type: ignore[arg-type]
    assert caught.value.argument == argument


def test_regression_has_no_classes_to_mix() -> None:
    with pytest.raises(InputError, match="classes"):
        partition((torch.zeros(20, 2), torch.zeros(20)), 4, by="dirichlet")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_says_that_it_is_not_private(suffix: str, tmp_path: Path) -> None:
    digits = sf.data.load("digits")
    clients = partition(digits.train, 200, by="dirichlet")
    path = draw_partition(clients, digits.classes, tmp_path / f"mix.{suffix}")
    assert path.stat().st_size > 5_000
    if suffix == "svg":
        assert "not covered by" in path.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="picture="):
        draw_partition(clients, digits.classes, tmp_path / "mix.docx")
