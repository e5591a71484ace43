"""What a container hears of drains of its run, and the one that it takes part in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from containers.backupplace import BackupPlace
from containers.draining import Draining
from containers.life import RETRY, Life
from sluice.client import Coordinator, Refused
from sluice.core.drain import Phase
from sluice.core.errors import OurTrouble
from sluice.core.ids import RunId
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)


class DrainNews:
    """`on_begin`: queries are to pause; `on_end`: a drain is over and the container goes on."""

    def __init__(
        self,
        life: Life,
        coordinator: Coordinator,
        run_id: RunId,
        place: BackupPlace,
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._life = life
        self._coordinator = coordinator
        self._run_id = run_id
        self._place = place
        self._on_begin = on_begin
        self._on_end = on_end
        self.current: Draining | None = None

    async def hear(self, told: Mapping[str, object]) -> None:
        """The first word of a drain pauses the queries. One that makes no sense, or is about another drain, changes nothing."""
        try:
            uuid, phase = str(told["uuid"]), Phase(str(told["phase"]))
        except (KeyError, ValueError):
            log.warning("a notice of a drain is not understood: %s", str(told)[:200])
            return
        if self.current is not None and self.current.uuid == uuid:
            await self.current.heard(phase)
        elif not phase.over:
            self._life.in_background(self._look_for(uuid), "drain")

    async def _look_for(self, uuid: str) -> None:
        """Take part in the drain if it is the run's."""
        while not self._life.over:
            try:
                drain = (await self._coordinator.run(self._run_id)).drain
                break
            except OurTrouble:
                await self._life.pause(RETRY)
            except Refused as refused:
                log.warning("a notice of drain %s is left alone: %s", uuid, refused)
                return
        else:
            return
        if drain is None or drain.uuid != uuid or drain.phase.over:
            return
        if self.current is not None and self.current.uuid == uuid:  # another look was quicker
            await self.current.heard(drain.phase)
            return
        self._begin(drain)

    def begin(self, drain: wire_runs.DrainOfRun | None) -> None:
        """Take part in the drain that the coordinator names, if it names one that is on and none is taken part in."""
        if drain is not None and not drain.phase.over and self.current is None:
            self._begin(drain)

    def _begin(self, drain: wire_runs.DrainOfRun) -> None:
        log.info("drain %s: %s", drain.uuid, drain.phase)
        self.current = Draining(self._coordinator, self._run_id, self._place, drain)
        self._on_begin()

    def end(self, draining: Draining) -> None:
        """It is over, and nothing was flushed."""
        if self.current is draining:
            log.info("drain %s is over before anything was flushed: the queries go on", draining.uuid)
            self.current = None
            self._on_end()
