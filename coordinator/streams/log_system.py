"""The embedded log as a stream system: the port's promises kept by `Log`, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from coordinator.streams.log import Log
from coordinator.streams.port import Offsets

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogSystem:
    """The log under `directory`."""

    def __init__(self, directory: Path) -> None:
        self.log = Log(directory)

    async def partitions(self, stream: str) -> int:
        return await asyncio.to_thread(self.log.partitions, stream)

    async def identity(self, stream: str) -> str | None:
        return await asyncio.to_thread(self.log.identity, stream)

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        """Every stream of the log is kept."""
        await asyncio.to_thread(self.log.create, stream, partitions)

    async def earliest(self, stream: str) -> Offsets:
        return await asyncio.to_thread(self.log.earliest, stream)

    async def latest(self, stream: str) -> Offsets:
        return await asyncio.to_thread(self.log.latest, stream)

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        return await asyncio.to_thread(self.log.at_time, stream, (when - _EPOCH) // timedelta(microseconds=1))

    async def trim(self, stream: str, before: Offsets) -> int:
        return await asyncio.to_thread(self.log.trim, stream, before)

    def connection(self) -> Mapping[str, str]:
        return {"type": "log", "path": str(self.log.directory)}

    async def close(self) -> None:
        """Nothing is held open between calls."""
