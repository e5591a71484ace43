"""The tasks of a container's slot, as the run's job model says, at each version of it.

Whoever hears of a version looks at what is served now, so that one that comes while another is adopted is simply the next look. Under a
drain nothing that runs is touched: what has begun is finished, and the look that comes when the drain is over finds the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from containers.agent.lifecycle import EXIT_OK, ExitReason
from containers.agent.task import AssignedTask, TaskContext
from sluice.client import Refused, Served
from sluice.core.errors import StaleRun, TaskNotYours, UnknownTask
from sluice.core.ids import Generation, ProcessorId, RunId, Ssp, TaskName
from sluice.core.model import ContainerModel, JobModel
from sluice.core.placement import slots
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

AGAIN = timedelta(seconds=0.3)
"""Before a look is repeated that found the model just changing."""

CHANGED = (TaskNotYours.slug, UnknownTask.slug)
"""How a task is refused that the model gives to another slot by now."""


class Slot:
    """On the agent's loop. `version`: the one that the container was told when it registered."""

    def __init__(self, place: TaskContext, processor: ProcessorId, version: int) -> None:
        self._place = place
        self._processor = processor
        self._version = self._seen = version
        self._tasks: dict[TaskName, AssignedTask] = {}
        self._wanted: Mapping[TaskName, frozenset[Ssp]] = {}
        self._news = asyncio.Event()

    @property
    def held(self) -> Mapping[TaskName, Generation]:
        return {task: run.generation for task, run in self._tasks.items() if run.generation is not None}

    def hear(self, version: int) -> None:
        """The run is at that version."""
        if version > self._seen:
            self._news.set()

    def look_again(self) -> None:
        """What kept a version from being adopted is over."""
        self._news.set()

    async def follow(self) -> None:
        """Acquire and run the slot's tasks, and go with each version, until the container ends. Raises StaleRun, LeaseLost, StillActing,
        Refused."""
        while not self._place.life.over:
            self._news.clear()
            await self._look()
            await self._news.wait()

    async def _look(self) -> None:
        place = self._place
        served = await place.life.until_told(lambda: place.coordinator.job_model(place.job.name))
        run = await place.life.until_told(lambda: place.coordinator.run(RunId(place.run.run_id)))
        if served is None or run is None:
            return
        if served.run_id != run.run_id:
            raise StaleRun(f"job {place.job.name} has a newer run, {served.run_id}")
        if run.job_model_version != served.version:
            self._look_soon()
            return
        try:
            await self._adopt(served, run)
        except Refused as refused:
            if refused.refused_as not in CHANGED:
                raise
            log.info("the job model changes: %s", refused)
            self._look_soon()

    def _look_soon(self) -> None:
        asyncio.get_running_loop().call_later(AGAIN.total_seconds(), self._news.set)

    # --- adopting --------------------------------------------------------------------------------------------------

    async def _adopt(self, served: Served, run: wire_runs.RunDetail) -> None:
        plan = self._plan(served, run)
        if not plan.nothing or plan.beyond:
            log.info("%s", plan)
        for task in sorted(plan.acquire):
            self._begin(task)
        if self._place.drains.current is not None:
            return
        if plan.slot_gone:
            self._place.life.end(ExitReason(EXIT_OK, f"the slot is no more: the run has {run.containers} containers"))
            return
        await _all([*map(self._release, sorted(plan.release)), *(self._tasks[task].extend() for task in sorted(plan.extend))])
        if served.version > self._version:
            await self._tell(served.version)

    def _plan(self, served: Served, run: wire_runs.RunDetail) -> Adoption:
        mine = served.model.containers.get(self._processor)
        self._wanted = {task.name: task.ssps for task in mine.tasks.values()} if mine else {}
        self._seen = served.version
        runs = {task: self._tasks[task].reads for task in self.held}
        waits = frozenset(self._tasks.keys() - runs.keys())
        return adoption(served.version, served.model, run.containers, self._processor, runs, waits)

    def _begin(self, task: TaskName) -> None:
        self._tasks[task] = run = AssignedTask(self._place, task, self._acquired)
        self._place.life.in_background(self._run(run), f"task {task}")

    async def _run(self, run: AssignedTask) -> None:
        try:
            await run.run()
        except Refused as refused:
            if refused.refused_as not in CHANGED or run.generation is not None:
                raise
            log.info("the job model changes: %s", refused)
            if self._tasks.get(run.task) is run:
                del self._tasks[run.task]
            self._look_soon()

    def _acquired(self, task: TaskName) -> None:
        """It may have been given out by an older version than the one that was looked at since."""
        if self._wanted.get(task, frozenset()) - self._tasks[task].reads:
            self._news.set()

    async def _release(self, task: TaskName) -> None:
        await self._tasks[task].leave()
        if not self._place.life.over:  # else the end may have to do it again
            self._tasks.pop(task, None)

    async def _tell(self, version: int) -> None:
        """Nothing runs here otherwise than the version says."""
        place, run_id = self._place, RunId(self._place.run.run_id)
        reply = await place.life.until_told(lambda: place.coordinator.adopted(run_id, place.execution_id, place.epoch, version))
        if reply is not None:
            self._version = version
            everywhere = ", as all do" if reply.all_on == version else ""
            log.info("version %d of the job model runs here%s", version, everywhere)
            self.hear(reply.current)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """At a time, each to its end; then the first error is raised."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True)
class Adoption:
    """In terms of tasks. `release`: those that the slot has no more, held or waited for; `extend`: held ones, with the partitions that
    are new; `leave`: those that stay as they are, of which `beyond` read more than the version says; `acquire`: those that are new to the
    slot. `slot_gone`: the run has so many containers that this one is none of them."""

    version: int
    release: frozenset[TaskName] = frozenset()
    extend: Mapping[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    leave: frozenset[TaskName] = frozenset()
    acquire: frozenset[TaskName] = frozenset()
    beyond: Mapping[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    slot_gone: bool = False

    @property
    def nothing(self) -> bool:
        """Nothing is to be done but to tell that the version is run."""
        return not (self.release or self.extend or self.acquire or self.slot_gone)

    def __str__(self) -> str:
        parts = ["the slot is no more"] if self.slot_gone else []
        parts += [f"release {_names(self.release)}"] if self.release else []
        parts += [f"{task} reads {_ssps(ssps)} too" for task, ssps in sorted(self.extend.items())]
        parts += [f"acquire {_names(self.acquire)}"] if self.acquire else []
        parts += [f"{task} goes on reading {_ssps(ssps)}, which it cannot give up" for task, ssps in sorted(self.beyond.items())]
        return f"version {self.version}: {'; '.join(parts) or 'nothing changes here'}"


def adoption(
    version: int, model: JobModel, containers: int, slot: ProcessorId, runs: Mapping[TaskName, frozenset[Ssp]], waits: frozenset[TaskName]
) -> Adoption:
    """What the container of `slot` has to do to run this version, of a run with so many containers. `runs`: the tasks that it holds, and
    what they read; `waits`: those that it has asked for and not got yet, which come as they are then. A slot without tasks stays: they
    may be given back to it."""
    if slot not in slots(containers):
        return Adoption(version, release=frozenset(runs) | waits, slot_gone=True)
    wanted = {task.name: task.ssps for task in model.containers.get(slot, ContainerModel(slot, {})).tasks.values()}
    kept = runs.keys() & wanted.keys()
    extend = {task: wanted[task] - runs[task] for task in kept if wanted[task] - runs[task]}
    return Adoption(
        version,
        release=frozenset((runs.keys() | waits) - wanted.keys()),
        extend=extend,
        leave=frozenset((kept - extend.keys()) | (waits & wanted.keys())),
        acquire=frozenset(wanted.keys() - runs.keys() - waits),
        beyond={task: runs[task] - wanted[task] for task in kept if runs[task] - wanted[task]},
    )


def _names(tasks: frozenset[TaskName]) -> str:
    return ", ".join(sorted(tasks))


def _ssps(ssps: frozenset[Ssp]) -> str:
    return ", ".join(map(str, sorted(ssps)))
