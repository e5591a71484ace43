"""The only module that draws random numbers and makes random ids, as `sluice.clock` is the only one that reads a clock.

The source is the operating system's. `drawn_from` replaces it, so that a simulation can be repeated exactly from its seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random, SystemRandom
from uuid import UUID

_source: ContextVar[Random] = ContextVar("randomness", default=SystemRandom())  # noqa: B039 - it has no state


def new_uuid() -> UUID:
    """A random UUID (RFC 9562, version 4)."""
    return UUID(int=_source.get().getrandbits(128), version=4)


def token_hex(size: int) -> str:
    """`size` random bytes as hexadecimal digits, for names that must be unique."""
    return _source.get().randbytes(size).hex()


def random_bytes(size: int) -> bytes:
    """Random bytes for secrets. The operating system's source is suitable for them."""
    return _source.get().randbytes(size)


def fraction() -> float:
    """At least 0 and below 1, uniformly distributed."""
    return _source.get().random()


def below(bound: int) -> int:
    """At least 0 and below `bound`, uniformly distributed."""
    return _source.get().randrange(bound)


@contextmanager
def drawn_from(source: Random) -> Iterator[None]:
    """Use this source in the block, and in the asyncio tasks that are created in it."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)
