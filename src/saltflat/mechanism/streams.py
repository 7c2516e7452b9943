"""A cryptographic stream of random numbers, from the standard library alone.

SHAKE-128 (FIPS 202) is in `hashlib`, so the stream needs no further package. AES in counter mode would save
about ten nanoseconds a number, less than half of what a normal costs anyway.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from fractions import Fraction

import torch
from torch import Tensor

KEY_BYTES = 32
# Numbers are squeezed out this many at a time, so that memory does not grow with the model.
WORDS_AT_ONCE = 1 << 18
LEAST_WORD = -(2**63)


class CryptographicStream:
    """Random bits that nobody can predict, or reconstruct later, without the key.

    Every draw hashes the key into a new key and the bits that are handed out, and forgets the old one: who
    reads the memory of a run learns nothing of its earlier noise (fast key erasure, Bernstein 2017).

    >>> stream = CryptographicStream.from_seed(1, "noise")
    >>> stream.words(3).dtype, stream.normals(3).dtype
    (torch.int64, torch.float64)
    """

    device = torch.device("cpu")

    def __init__(self, key: bytes) -> None:
        self._key = key

    @staticmethod
    def fresh() -> CryptographicStream:
        """A stream whose key the operating system draws."""
        return CryptographicStream(secrets.token_bytes(KEY_BYTES))

    @staticmethod
    def from_seed(seed: int, purpose: str) -> CryptographicStream:
        """A repeatable stream, for tests; streams for different purposes have nothing in common."""
        return CryptographicStream(hashlib.sha256(f"saltflat {purpose} {seed}".encode()).digest())

    def renew(self) -> None:
        """Take a new key from the operating system."""
        self._key = secrets.token_bytes(KEY_BYTES)

    def get_state(self) -> Tensor:
        """The key. Only a seeded test run may store it."""
        return torch.tensor(list(self._key), dtype=torch.uint8)

    def set_state(self, state: Tensor) -> None:
        """Go on where `get_state` was called."""
        if state.dtype != torch.uint8 or state.shape != (KEY_BYTES,):
            raise ValueError(f"a key has {KEY_BYTES} bytes, this has {state.dtype} {tuple(state.shape)}")
        self._key = bytes(state.tolist())

    def words(self, count: int) -> Tensor:
        """``count`` times 64 random bits, as signed integers."""
        parts = []
        while count > 0:
            some = min(count, WORDS_AT_ONCE)
            block = hashlib.shake_128(self._key).digest(KEY_BYTES + 8 * some)
            self._key = block[:KEY_BYTES]
            parts.append(torch.frombuffer(bytearray(block[KEY_BYTES:]), dtype=torch.int64))
            count -= some
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)

    def word(self) -> int:
        """64 random bits as one number from 0 to 2⁶⁴ − 1."""
        return int(self.words(1)) % 2**64

    def chosen(self, count: int, probability: float) -> Tensor:
        """``count`` independent decisions, each true with ``probability``, never with more.

        Integers are compared, so the probability is met exactly down to the last of 64 bits, and rounded
        down there.
        """
        threshold = int(Fraction(probability) * 2**64)
        if threshold == 2**64:
            return torch.ones(count, dtype=torch.bool)
        # Flipping the sign bit makes signed order the order of unsigned numbers.
        return (self.words(count) ^ LEAST_WORD) < threshold + LEAST_WORD

    def normals(self, count: int) -> Tensor:
        """Standard normals in float64 by Box and Muller's method; none is longer than 8.57."""
        pairs = (count + 1) // 2
        uniform = ((self.words(2 * pairs) >> 11) & (2**53 - 1)).double().add_(1).mul_(2.0**-53)  # in (0, 1]
        length = uniform[:pairs].log_().mul_(-2).sqrt_()
        angle = uniform[pairs:].mul_(2 * math.pi)
        return torch.cat([length * angle.cos(), length * angle.sin()])[:count]
