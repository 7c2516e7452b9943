"""Signatures: the right key vouches, and nothing else does."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from record_runs import a_plan, copied, forged, trained

import saltflat as sf
from saltflat.errors import InputError, MissingDependencyError
from saltflat.record.signing import NAME, Signature, make_keys, read_private_key, read_public_key, sign_run

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "key.pem", folder / "key.pem.pub")
    return folder / "key.pem", folder / "key.pem.pub"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> Path:
    folder = trained(tmp_path_factory.mktemp("runs") / "run")
    sign_run(folder, (folder / "certificate.json").read_bytes(), keys[0])
    return folder


@pytest.fixture
def run(signed: Path, tmp_path: Path) -> Path:
    return copied(signed, tmp_path / "run")


def test_a_signature_is_checked_with_the_key_and_named_without(run: Path, keys: tuple[Path, Path]) -> None:
    found = sf.verify(run, public_key=keys[1])
    assert found.passed, str(found)
    assert "signed by key" in str(found)
    assert "not checked" not in str(found)
    assert "not checked: pass the public key" in str(sf.verify(run))
    (run / NAME).unlink()
    assert sf.verify(run).passed
    assert "not signed" in str(sf.verify(run))
    assert sf.verify(run, public_key=keys[1]).failed == ["signature"]


def test_what_is_written_anew_as_a_whole_is_not_signed(run: Path, keys: tuple[Path, Path]) -> None:
    """Fails when the signature does not cover the certificate's bytes (tried)."""
    forged(run, a_plan(noise_multiplier=30.0))
    assert sf.verify(run).passed
    assert sf.verify(run, public_key=keys[1]).failed == ["signature"]


def test_another_key_does_not_vouch(run: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    make_keys(tmp_path / "other.pem", tmp_path / "other.pub")
    assert sf.verify(run, public_key=tmp_path / "other.pub").failed == ["signature"]
    # nor does a signature that only claims to be by the right key
    genuine = Signature.read((run / NAME).read_bytes())
    other = sign_run(run, (run / "certificate.json").read_bytes(), tmp_path / "other.pem")
    (run / NAME).write_bytes(Signature(genuine.public_key, other.signature).content())
    assert sf.verify(run, public_key=keys[1]).failed == ["signature"]


def test_every_changed_byte_of_a_signature_is_found(run: Path, keys: tuple[Path, Path]) -> None:
    content = (run / NAME).read_bytes()
    for place in range(0, len(content), 3):
        changed = bytearray(content)
        changed[place] ^= 1
        (run / NAME).write_bytes(changed)
        assert sf.verify(run, public_key=keys[1]).failed == ["signature"], place
    for hostile in (b"", b"[]", b"{}", b'{"saltflat_signature": 2}', b"[" * 100_000):
        (run / NAME).write_bytes(hostile)
        assert "signature" in sf.verify(run).failed


def test_a_run_that_goes_on_or_is_certified_again_loses_its_signature(run: Path) -> None:
    from saltflat.record.folder import RunFolder

    folder = RunFolder(run)
    folder.write_certificate(folder.read_certificate())
    assert not (run / NAME).exists()
    assert sf.verify(run).passed


def test_keys_are_written_once_and_the_private_one_for_its_owner(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    if os.name == "posix":
        assert stat.S_IMODE(keys[0].stat().st_mode) == 0o600
    before = keys[0].read_bytes()
    for names in ((keys[0], tmp_path / "x"), (tmp_path / "y", keys[1])):
        with pytest.raises(InputError, match="is there already"):
            make_keys(*names)
    assert keys[0].read_bytes() == before
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_keys_are_refused(keys: tuple[Path, Path], tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    with pytest.raises(InputError, match="is a private key"):
        read_public_key(keys[0])
    with pytest.raises(InputError, match="cannot be read"):
        read_private_key(keys[1])
    with pytest.raises(InputError, match="is missing"):
        read_public_key(tmp_path / "none")
    (tmp_path / "rubbish").write_bytes(os.urandom(100))
    (tmp_path / "huge").write_bytes(bytes(10**6))
    curve = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "curve").write_bytes(
        curve.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    )
    (tmp_path / "locked").write_bytes(
        read_private_key(keys[0]).private_bytes(
            s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")
        )
    )
    (tmp_path / "curve.pub").write_bytes(
        curve.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    )
    for name in ("rubbish", "huge", "curve", "locked"):
        with pytest.raises(InputError, match="key"):
            read_private_key(tmp_path / name)
    for name in ("rubbish", "huge", "curve.pub"):
        with pytest.raises(InputError, match="public_key"):
            read_public_key(tmp_path / name)


def test_without_the_package_the_error_says_what_to_install(
    run: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'saltflat\[signing\]'"):
        sf.verify(run, public_key=keys[1])
    with pytest.raises(MissingDependencyError, match="signing"):
        make_keys(tmp_path / "a", tmp_path / "b")
    found = sf.verify(run)  # a signature that nobody asks about needs no package
    assert found.passed
    json.dumps(found.to_dict())
