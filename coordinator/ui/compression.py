"""gzip for the pages and for the event stream (RFC 1951, RFC 1952).

Each event is compressed once for all browsers: a compressed part that ends at a byte boundary and does not refer to earlier data can be
inserted into any stream.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

LEVEL = 1
"""Events and pages are compressed on the event loop in less than a millisecond; higher levels save little of HTML that repeats itself."""

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


def part(data: bytes) -> bytes:
    """The data as blocks of a deflate stream, none of which is the last."""
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)


class Trailer:
    """The checksum and the length of what a stream has sent."""

    def __init__(self) -> None:
        self._checksum = 0
        self._length = 0

    def sent(self, data: bytes) -> None:
        self._checksum = zlib.crc32(data, self._checksum)
        self._length += len(data)

    def end(self) -> bytes:
        return _LAST_BLOCK + struct.pack("<II", self._checksum, self._length % 2**32)


def whole(data: bytes, level: int = LEVEL) -> bytes:
    """The data as a whole gzip stream. The same data always gives the same bytes."""
    deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    trailer = Trailer()
    trailer.sent(data)
    return HEADER + deflate.compress(data) + deflate.flush() + trailer.end().removeprefix(_LAST_BLOCK)


def accepted(headers: Sequence[str]) -> bool:
    """Whether the values of `Accept-Encoding` allow gzip."""
    for each in ",".join(headers).split(","):
        coding, _, quality = each.replace(" ", "").lower().partition(";q=")
        if coding in ("gzip", "*"):
            return quality not in ("0", "0.0", "0.00", "0.000")
    return False
