"""Chore: report which stages delay a drain, and fail the drain at its hard deadline."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from coordinator.drains.drains import Drains, stages_at
from coordinator.store.drains import DrainRow
from coordinator.store.sql import Store
from coordinator.transitions import shape_of
from coordinator.waits import Waits
from sluice.clock import Clock
from sluice.core.drain import Blocker, DrainId, Phase, Step, blockers, is_late

log = logging.getLogger(__name__)

MAX_NAMED = 10
"""Maximum number of blockers in a log message."""

AFTER_RESTART = timedelta(minutes=1)
"""After the coordinator has started, and the leases of containers that were lost before have ended, a drain has at least this much time
left, or its hard deadline if that is shorter. Containers could not report before the start, tasks of a lost container can be acquired only
after its lease, and the wall clock may have jumped."""


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """A drain in progress at the last run of the chore, with the number of stages at each step. `waited`: time since STOPPING
    began; zero before that. `in_phase`: time since the current phase began."""

    drain: DrainRow
    waited: timedelta
    in_phase: timedelta
    late: bool
    steps: Mapping[Step, int]


@dataclass(slots=True)
class DrainDeadlines:
    """`longest_lease`: after this long every lease that was granted before the start has ended, with its grace period. While
    `catalog_incomplete` is true no drain fails: its stages would return to their pinned snapshots, and some of them then to newer ones that
    are being added. `active` and `outcomes` are for the metrics. Blockers are computed only when they are reported, because that is slow
    for a large job."""

    store: Store
    drains: Drains
    clock: Clock
    longest_lease: Callable[[], timedelta]
    catalog_incomplete: Callable[[], bool] = lambda: False
    every: timedelta = timedelta(seconds=1)
    name: str = "watch_drains"
    active: Sequence[DrainProgress] = ()
    outcomes: Counter[Phase] = field(default_factory=Counter)
    _recorded: Mapping[Phase, int] = field(default_factory=dict)
    _reported: set[tuple[DrainId, Phase]] = field(default_factory=set)
    _waits: Waits[tuple[DrainId, Phase | None]] = field(init=False)

    def __post_init__(self) -> None:
        self._waits = Waits(self.clock)

    async def run_once(self) -> Mapping[str, int]:
        async with self.store.read() as tx:
            self._count({phase: count for phase, count in (await tx.drains.outcomes()).items() if phase.over})
            progress = [self._progress(each, await tx.drains.step_counts(each.drain_id)) for each in await tx.drains.active()]
        self.active = progress
        begun = [each.drain.drain_id for each in progress if each.drain.stopping_at is not None]
        self._waits.end_round({*((each.drain.drain_id, each.drain.phase) for each in progress), *((drain, None) for drain in begun)})
        self._reported &= {(each.drain.drain_id, phase) for each in progress for phase in Phase}
        done: Counter[str] = Counter()
        for each in progress:
            drain = each.drain
            if drain.stopping_at is not None and each.waited >= drain.hard and not self.catalog_incomplete():
                await self.drains.expire(drain, f"its hard deadline has passed; {await self._blockers(drain)}")
                done["failed"] += 1
            elif each.late and (drain.drain_id, drain.phase) not in self._reported:
                self._reported.add((drain.drain_id, drain.phase))
                log.warning("drain %s of run %s is late in %s: %s", drain.drain_id, drain.run_id, drain.phase, await self._blockers(drain))
                done["late"] += 1
        return done

    def _count(self, recorded: Mapping[Phase, int]) -> None:
        """Counters never decrease, although old drains are deleted from the database."""
        for phase, count in recorded.items():
            self.outcomes[phase] += max(0, count - self._recorded.get(phase, 0))
        self._recorded = recorded

    def _progress(self, drain: DrainRow, steps: Mapping[Step, int]) -> DrainProgress:
        """Measured with the monotonic clock: a jump of the wall clock must not fail a drain whose state is half flushed."""
        at_most = max(timedelta(0), drain.hard - AFTER_RESTART - self.longest_lease())
        began, waited = drain.stopping_at, timedelta(0)
        if began is not None:  # `Waits` keeps the begin that it was first given, which would be the request
            waited = self._waits.waited((drain.drain_id, None), began, at_most)
        in_phase = self._waits.waited((drain.drain_id, drain.phase), drain.entered_at, at_most if began is None else waited)
        now = self.clock.now()
        late = began is not None and is_late(drain.times, drain.phase, now - waited, now - in_phase, now)
        return DrainProgress(drain, waited, in_phase, late, steps)

    async def _blockers(self, drain: DrainRow) -> str:
        found = await self.drains.describe(drain.drain_id)
        shape = shape_of(found.run, found.model, found.containers, found.holds)
        return describe_blockers(blockers(found.drain.phase, stages_at(found.stages), shape))


def describe_blockers(found: Sequence[Blocker]) -> str:
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"it waits for {'; '.join(str(each) for each in found[:MAX_NAMED])}{more}" if found else "nothing blocks it"
