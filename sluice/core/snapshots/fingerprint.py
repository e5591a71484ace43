"""Fingerprints of contents: CRC-32, which Samza's indexes contain, and SHA-256."""

from __future__ import annotations

import hashlib
import zlib
from typing import NamedTuple


class Fingerprint(NamedTuple):
    """CRC-32 and SHA-256 (hex) of a file's contents."""

    checksum: int
    digest: str


class Hashes:
    """Computes the fingerprint of contents that are written in parts. A sink for `sluice.blobs` that keeps no bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._checksum = 0
        self._digest = hashlib.sha256()

    def write(self, part: bytes | memoryview, /) -> None:
        self.size += len(part)
        self._checksum = zlib.crc32(part, self._checksum)
        self._digest.update(part)

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self._checksum, self._digest.hexdigest())


def fingerprint(part: bytes | memoryview) -> Fingerprint:
    return Fingerprint(zlib.crc32(part), hashlib.sha256(part).hexdigest())
