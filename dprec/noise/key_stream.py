"""Random bits: AES in counter mode. No known attack distinguishes them from fair coins without the key."""

from __future__ import annotations

import hashlib
from operator import index
from typing import Any

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

AT_ONCE = 1 << 16  # numbers of 64 bits: 512 KiB stay in the second-level cache
BLOCK = 16  # bytes of AES
ZEROS = memoryview(bytes(8 * AT_ONCE))  # the text that AES encrypts


def key_of(*given: int) -> int:
    """Return 128 bits of a hash of whole numbers; a number with 256 bits of entropy cannot be recovered from it.

    >>> key_of(1, 23) == key_of(12, 3)
    False
    """
    digest = hashlib.sha256(":".join(str(index(each)) for each in given).encode()).digest()
    return int.from_bytes(digest[:BLOCK], "little")


class KeyStream:
    """The stream of bits that a 128-bit key generates, for one thread.

    >>> stream = KeyStream(7)
    >>> first = stream.words(3).tolist()
    >>> stream.words(3).tolist() == first, KeyStream(7).words(3).tolist() == first
    (False, True)
    """

    def __init__(self, key: int, taken: int = 0) -> None:
        self._words = torch.empty(AT_ONCE + BLOCK // 8, dtype=torch.int64, device="cpu")  # a block more than is used
        self._bytes = self._words.numpy().data.cast("B")
        self.begin(key, taken)

    def begin(self, key: int, taken: int = 0) -> None:
        """Continue with another key, after its first `taken` bytes."""
        self._key, self._taken = key, taken
        counter = (taken // BLOCK).to_bytes(BLOCK, "big")
        self._cipher = Cipher(algorithms.AES(key.to_bytes(BLOCK, "little")), modes.CTR(counter)).encryptor()
        self._cipher.update(bytes(taken % BLOCK))

    def words(self, count: int) -> Tensor:
        """Return `count` 64-bit integers, at most `AT_ONCE`, in memory that the next call overwrites."""
        if count > AT_ONCE:
            raise ValueError(f"{count} words are more than {AT_ONCE} at once")
        size = 8 * count
        self._cipher.update_into(ZEROS[:size], self._bytes[: size + BLOCK])
        self._taken += size
        return self._words[:count]

    def uniforms(self, count: int) -> Tensor:
        """Return float64 numbers of 53 bits in [0, 1)."""
        found = torch.empty(count, dtype=torch.float64, device="cpu")
        for part in found.split(AT_ONCE):
            part.copy_(self.words(len(part)).bitwise_and_((1 << 53) - 1)).mul_(2.0**-53)
        return found

    def __reduce__(self) -> Any:
        return KeyStream, (self._key, self._taken)
