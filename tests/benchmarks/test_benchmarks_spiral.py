"""The toy of the public-data paper: few public points, and what becomes of the sparse outside."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def _spiral() -> Any:
    spec = importlib.util.spec_from_file_location("spiral_toy", ROOT / "benchmarks" / "public" / "spiral.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["spiral_toy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_points_are_public_and_thin_out() -> None:
    """Fails when the density is even along the arms (tried)."""
    toy = _spiral()
    rows = toy.spiral(5000)
    assert rows.provenance == "public"
    assert rows.targets.bincount().tolist() == [2500, 2500]
    inside, outside = toy.share_along(rows.inputs, 2).tolist()
    assert inside == pytest.approx(0.75, abs=0.03)
    assert inside + outside == pytest.approx(1.0)


def test_it_draws_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    _spiral().draw(steps=20)
    assert capsys.readouterr().out.count("share of the sparse outside kept") == 3
    assert (tmp_path / "spiral.png").read_bytes().startswith(b"\x89PNG")
    assert torch.equal(before, torch.get_rng_state())
