"""Signatures of certificates: ed25519, by the package `cryptography`, which is optional.

The signature covers the bytes of ``certificate.json``, and these hold the hashes of everything else. It lies
beside it in ``signature.json``. It says that the holder of a key vouched for this certificate; who that is, the
reader must know from elsewhere, by having the public key.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saltflat.errors import InputError, MissingDependencyError, newer_format
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError, parsed, read_bounded, spelled

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FORMAT = 1
NAME = "signature.json"
_LARGEST_KEY = 64 * 2**10


@dataclass(frozen=True)
class Signature:
    """What ``signature.json`` holds: the public key that is said to have signed, and the signature, in hex."""

    public_key: str
    signature: str

    @property
    def key_fingerprint(self) -> str:
        """The first 16 digits of the SHA-256 of the public key."""
        return hashlib.sha256(bytes.fromhex(self.public_key)).hexdigest()[:16]

    def content(self) -> bytes:
        """The bytes of the file."""
        return spelled({"saltflat_signature": FORMAT, "algorithm": "ed25519", **self.__dict__})

    @staticmethod
    def read(content: bytes) -> Signature:
        """Read the file; anything that saltflat would not have written is a `DamagedError`."""
        data = parsed(content, NAME)
        version = data.get("saltflat_signature") if isinstance(data, dict) else None
        if type(version) is int and version > FORMAT:
            raise newer_format("signature", version, FORMAT)
        if (
            isinstance(data, dict)
            and _is_hex(data.get("public_key"), 64)
            and _is_hex(data.get("signature"), 128)
        ):
            found = Signature(data["public_key"], data["signature"])
            if found.content() == content:
                return found
        raise DamagedError(f"{NAME} was changed, or is not a signature of saltflat.")

    def is_by(self, key: Ed25519PublicKey, content: bytes) -> bool:
        """Whether this key signed these bytes."""
        from cryptography.exceptions import InvalidSignature

        if _raw(key) != self.public_key:
            return False
        try:
            key.verify(bytes.fromhex(self.signature), content)
        except InvalidSignature:
            return False
        return True


def signature_of(content: bytes, key: Ed25519PrivateKey) -> Signature:
    """Sign the bytes of a certificate."""
    return Signature(_raw(key.public_key()), key.sign(content).hex())


def sign_run(folder: str | Path, content: bytes, key: str | Path) -> Signature:
    """Sign the certificate of a run, whose bytes were verified, and write ``signature.json`` beside it."""
    signature = signature_of(content, read_private_key(key))
    write_whole(Path(folder) / NAME, signature.content())
    return signature


def make_keys(private: str | Path, public: str | Path) -> None:
    """Write a new pair of keys as PEM. The private one can be read by its owner only; no file is written over."""
    ed25519, serialization = _cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for path in map(Path, (private, public)):
        if path.exists():
            raise InputError("key", str(path), "the name of a new file", problem="is there already")
    _write_new(Path(private), pem, 0o600)
    shown = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write_new(Path(public), shown, 0o644)


def read_private_key(path: str | Path) -> Ed25519PrivateKey:
    """The private key in a PEM file."""
    ed25519, serialization = _cryptography()
    content = _pem("key", path)
    return _loaded(
        lambda: serialization.load_pem_private_key(content, password=None), ed25519.Ed25519PrivateKey,
        "key", path, "an ed25519 private key in PEM, without a password",
        cure="Make one with: saltflat keygen key.pem",
    )  # fmt: skip


def read_public_key(path: str | Path) -> Ed25519PublicKey:
    """The public key in a PEM file. A private key in its place is refused."""
    ed25519, serialization = _cryptography()
    content = _pem("public_key", path)
    if b"PRIVATE KEY" in content:
        raise InputError("public_key", str(path), "a public key", problem="is a private key, which nobody else "
                         "should see", cure="Pass the file that ends in .pub.")  # fmt: skip
    return _loaded(
        lambda: serialization.load_pem_public_key(content), ed25519.Ed25519PublicKey,
        "public_key", path, "an ed25519 public key in PEM",
    )  # fmt: skip


def _loaded(
    load: Callable[[], Any], kind: type, argument: str, path: str | Path, expected: str, cure: str = ""
) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        said = str(error).split("\n", maxsplit=1)[0][:120]
        raise InputError(
            argument, str(path), expected, problem=f"cannot be read ({said})", cure=cure
        ) from error
    if not isinstance(key, kind):
        raise InputError(argument, str(path), "an ed25519 key", problem="is a key of another kind", cure=cure)
    return key


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingDependencyError("cryptography", "signing, and checking signatures", "signing") from error
    return ed25519, serialization


def _raw(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


def _pem(argument: str, path: str | Path) -> bytes:
    try:
        return read_bounded(Path(path), _LARGEST_KEY)
    except DamagedError as error:
        raise InputError(
            argument, str(path), "a file with a key in PEM", problem=f"cannot be read: {error}"
        ) from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _is_hex(value: object, length: int) -> bool:
    return isinstance(value, str) and len(value) == length and set(value) <= set("0123456789abcdef")
