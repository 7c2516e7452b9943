"""Every example runs, as a user would run it, and prints what it did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# What each must say; an example without a line here fails.
SAYS = {
    "accounting": "jointly 1.000",
    "compose": "same cost without it: True",
    "estimator": "histograms of 30 columns",
    "federated": "when one client is added or removed",
    "flatness": "wideness: dp-sat gains",
    "opacus_script": "spent ε = 3.0",
    "own_loop": "the plan's ε = 3.000",
    "own_model": "mixing         direct (derived weight)",
    "people": "when one person is added or removed",
    "spiral": "share of the sparse outside kept",
    "synthesis": "public rows among the private ones: 0",
    "text_encoder": "lora: 335,626 of",
    "verify": "after one bit was changed: files failed",
}
SLOW = {"compose", "federated", "own_model", "people", "spiral", "synthesis", "text_encoder"}
PICTURES = {"spiral": ["spiral.png"]}
SHORTER = {"text_encoder": ["--steps", "1"]}  # what takes minutes is run for one step


@pytest.mark.parametrize(
    "example",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in EXAMPLES],
)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    search = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(example), *SHORTER.get(example.stem, [])],
        cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SAYS[example.stem] in done.stdout
    for picture in PICTURES.get(example.stem, []):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG"), f"{picture} is a picture"
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 50, "an example fits on one screen"


def test_every_example_is_checked() -> None:
    assert {p.stem for p in EXAMPLES} == set(SAYS)
