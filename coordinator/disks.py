"""Free space on the disks that the coordinator writes to, for `/readyz`, metrics and the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from sluice import disks
from sluice.disks import DiskSpace, Room, Thresholds

log = logging.getLogger(__name__)

Measure = Callable[[Mapping[str, Path]], Mapping[str, DiskSpace]]


class MeasureDisks:
    """Chore: measure the free space. `places`: paths on the disks, by display name. `found`: the last measurement."""

    name = "measure_disks"

    def __init__(
        self,
        places: Mapping[str, Path],
        thresholds: Thresholds,
        measure: Measure = disks.measure,
        every: timedelta = timedelta(seconds=10),
    ) -> None:
        self.places = places
        self.thresholds = thresholds
        self.every = every
        self.found: Mapping[str, DiskSpace] = {}
        self._measure = measure
        self._room: dict[str, Room] = {}

    async def run_once(self) -> Mapping[str, int]:
        for name, space in (await self.measure()).items():
            room = self.thresholds.judge(space)
            if room is not self._room.get(name, Room.ENOUGH):
                (log.info if room is Room.ENOUGH else log.error)("the disk of the %s is %s", name, self.text(name, space))
            self._room[name] = room
        return {}

    async def measure(self) -> Mapping[str, DiskSpace]:
        self.found = await asyncio.to_thread(self._measure, self.places)
        return self.found

    def text(self, name: str, space: DiskSpace) -> str:
        """The state as text, such as "low: 12.0 MiB free of 1.0 GiB (/var/lib/sluice)"."""
        match self.thresholds.judge(space):
            case Room.ENOUGH:
                return f"not low: {space} ({self.places[name]})"
            case Room.LOW:
                return f"low: {space} ({self.places[name]}); free some space before writes fail"
            case Room.FULL:
                return f"full: {space} ({self.places[name]}); writes fail until there is room"
