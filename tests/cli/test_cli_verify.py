"""``saltflat verify``, ``sign`` and ``keygen``: exit codes, words and JSON, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import SMALL, Inside, saltflat


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(monkeypatch, capsys)


def test_a_run_from_training_to_a_checked_signature(run: Inside, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    folder, key = str(tmp_path / "a run"), str(tmp_path / "key.pem")
    assert run("train", *SMALL, "--out", folder, "--quiet")[0] == 0
    code, out, err = run("verify", folder)
    assert (code, err) == (0, "")
    assert "Verified: ε = " in out
    assert out.count("passed") == 11
    assert run("keygen", key)[0] == 0
    assert run("keygen", key)[0] == 2
    code, out, _ = run("sign", folder, "--key", key)
    assert code == 0
    assert "signed" in out
    found = run.answer("verify", folder, "--public-key", f"{key}.pub", "--json")
    assert found["passed"]
    assert found["epsilon"] == found["epsilon_claimed"]
    assert {check["status"] for check in found["checks"]} == {"passed"}
    assert run("verify", folder, "--head", found["ledger_head"])[0] == 0
    assert run("verify", folder, "--head", "0" * 64)[0] == 1
    assert run("verify", folder, "--public-key", key)[0] == 2

    page = tmp_path / "a run" / "certificate.html"
    page.write_text(page.read_text().replace("ε = ", "ε ≈ "))
    code, out, err = run("verify", folder)
    assert (code, err) == (1, "")
    assert "FAILED    page" in out
    assert "NOT VERIFIED: 1 check failed (page)." in out
    code, out, _ = run("sign", folder, "--key", key)
    assert code == 1
    assert "Not signed" in out


def test_a_test_run_is_not_verified_unless_accepted(run: Inside, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run("train", *SMALL, "--out", folder, "--quiet", "--seed", "1")
    code, out, _ = run("verify", folder, "--json")
    assert code == 1
    assert [check["name"] for check in json.loads(out)["checks"] if check["status"] == "failed"] == [
        "private"
    ]
    code, out, _ = run("verify", folder, "--accept", "not-private")
    assert code == 0
    assert "NOT PRIVATE" in out


def test_through_the_real_command(run: Inside, tmp_path: Path) -> None:
    """As a process of its own where all is well; damaged folders by the same entry point."""
    folder = tmp_path / "run"
    assert run("train", *SMALL, "--out", str(folder), "--quiet")[0] == 0
    assert saltflat("verify", str(folder)).returncode == 0
    for name, place in (("ledger.jsonl", 900), ("weights.safetensors", -5), ("plan.json", 60)):
        content = bytearray((folder / name).read_bytes())
        content[place] ^= 1
        (folder / name).write_bytes(content)
        code, out, err = run("verify", str(folder), "--json")
        assert code == 1
        assert "Traceback" not in err
        assert "files" in [c["name"] for c in json.loads(out)["checks"] if c["status"] == "failed"]
        content[place] ^= 1
        (folder / name).write_bytes(content)


def test_bad_input_is_two(run: Inside, tmp_path: Path) -> None:
    assert run("verify", str(tmp_path / "none"))[0] == 2
    assert "holds no run" in run.refused("verify", str(tmp_path))
    assert run("verify", str(tmp_path), "--accept", "anything")[0] == 2


def test_verifying_loads_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, saltflat; saltflat.verify; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
