"""A system whose streams are all there, have two partitions, and are empty."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sluice.streams.port import Offsets


class TwoPartitions:
    async def partitions(self, stream: str) -> int:
        return 2

    async def identity(self, stream: str) -> str | None:
        return None

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        """It is there."""

    async def earliest(self, stream: str) -> Offsets:
        return {0: 0, 1: 0}

    async def latest(self, stream: str) -> Offsets:
        return {0: 0, 1: 0}

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        return {0: 0, 1: 0}

    async def trim(self, stream: str, before: Offsets) -> int:
        return 0

    def connection(self) -> Mapping[str, str]:
        return {}

    async def close(self) -> None:
        """Nothing is open."""
