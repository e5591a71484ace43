"""The tasks of a container's slot, at each version of the run's job model.

A notice of a version only makes the slot read the current model again. So a version that arrives while another one is being adopted is no
special case. During a drain, running tasks are not changed; the slot reads the model again after the drain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from containers.agent.lifecycle import ExitReason
from containers.agent.task import AssignedTask, TaskContext
from containers.supervision.exit_report import EXIT_OK
from sluice import tracing
from sluice.client import Refused, Served
from sluice.core.errors import StaleRun, TaskNotYours, UnknownTask
from sluice.core.ids import Generation, ProcessorId, Ssp, TaskName
from sluice.core.jobmodels.model import ContainerModel, JobModel
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

RETRY_CHECK = timedelta(seconds=0.3)
"""The pause before a model that was changing is read again."""

REASSIGNED = (TaskNotYours.slug, UnknownTask.slug)
"""Errors of requests for a task that the model now assigns to another slot."""


class Slot:
    """Used on the agent's loop. `version`: the version in the answer to the registration."""

    def __init__(self, context: TaskContext, processor: ProcessorId, version: int) -> None:
        self._context = context
        self._processor = processor
        self._version = self._seen = version
        self._tasks: dict[TaskName, AssignedTask] = {}
        self._wanted: Mapping[TaskName, frozenset[Ssp]] = {}
        self._check_now = asyncio.Event()
        self._report_lost = False

    @property
    def owned(self) -> Mapping[TaskName, Generation]:
        return {task: run.generation for task, run in self._tasks.items() if run.generation is not None}

    def on_version(self, version: int) -> None:
        """Handle a notice that the run has this version."""
        if version > self._seen:
            self._check_now.set()

    def on_adopted(self, version: int) -> None:
        """Handle the version that the coordinator has recorded as adopted here. If it is older than the one that was reported, the database
        has lost the report, as after a restore of a copy."""
        if version < self._version:
            self._report_lost = True
            self._check_now.set()

    def check_again(self) -> None:
        """Read the model again, because what prevented its adoption has ended."""
        self._check_now.set()

    async def follow(self) -> None:
        """Acquire and run the slot's tasks, and adopt each version, until the container exits. Raises StaleRun, LeaseLost, StillActing,
        Refused."""
        while not self._context.lifecycle.exiting:
            self._check_now.clear()
            await self._check_model()
            await self._check_now.wait()

    async def _check_model(self) -> None:
        context = self._context
        served = await context.lifecycle.until_answered(lambda: context.coordinator.job_model(context.job.name, self._processor))
        run = await context.lifecycle.until_answered(lambda: context.coordinator.basic_run(context.run_id))
        if served is None or run is None:
            return
        if served.run_id != run.run_id:
            raise StaleRun(f"job {context.job.name} has a newer run, {served.run_id}")
        if run.job_model_version != served.version:
            self._check_soon()
            return
        try:
            await self._adopt(served, run)
        except Refused as refused:
            if refused.refused_as not in REASSIGNED:
                raise
            log.info("the job model is changing: %s", refused)
            self._check_soon()

    def _check_soon(self) -> None:
        asyncio.get_running_loop().call_later(RETRY_CHECK.total_seconds(), self._check_now.set)

    # --- adopting --------------------------------------------------------------------------------------------------

    async def _adopt(self, served: Served, run: wire_runs.BasicRun) -> None:
        plan = self._plan(served, run)
        if not plan.nothing or plan.beyond:
            log.info("%s", plan)
        for task in sorted(plan.acquire):
            self._begin(task)
        if self._context.drains.active:
            return
        if plan.slot_removed:
            self._context.lifecycle.exit(ExitReason(EXIT_OK, f"the slot no longer exists: the run has {run.containers} containers"))
            return
        if plan.nothing and served.version <= self._version and not self._report_lost:
            return
        subject = tracing.version_subject(self._context.run_id, served.version)
        with tracing.part_of(subject, "adopt", container=self._context.execution_id):
            await _all([*map(self._release, sorted(plan.release)), *(self._tasks[task].extend() for task in sorted(plan.extend))])
            if served.version > self._version or self._report_lost:
                await self._report(served.version)

    def _plan(self, served: Served, run: wire_runs.BasicRun) -> Adoption:
        mine = served.model.containers.get(self._processor)
        self._wanted = {task.name: task.ssps for task in mine.tasks.values()} if mine else {}
        self._seen = served.version
        runs = {task: self._tasks[task].reads for task in self.owned}
        waits = frozenset(self._tasks.keys() - runs.keys())
        return adoption(served.version, served.model, run.processors, self._processor, runs, waits)

    def _begin(self, task: TaskName) -> None:
        self._tasks[task] = run = AssignedTask(self._context, task, self._on_acquired)
        self._context.lifecycle.in_background(self._run(run), f"task {task}")

    async def _run(self, run: AssignedTask) -> None:
        try:
            await run.run()
        except Refused as refused:
            if refused.refused_as not in REASSIGNED or run.generation is not None:
                raise
            log.info("the job model is changing: %s", refused)
            if self._tasks.get(run.task) is run:
                del self._tasks[run.task]
            self._check_soon()

    def _on_acquired(self, task: TaskName) -> None:
        """Read the model again if the acquire was answered under an older version than the one that this slot has read since."""
        if self._wanted.get(task, frozenset()) - self._tasks[task].reads:
            self._check_now.set()

    async def _release(self, task: TaskName) -> None:
        await self._tasks[task].release()
        if not self._context.lifecycle.exiting:  # otherwise it may have to be repeated at the exit
            self._tasks.pop(task, None)

    async def _report(self, version: int) -> None:
        """Report that this slot runs the version."""
        context = self._context
        reply = await context.lifecycle.until_answered(
            lambda: context.coordinator.adopted(context.run_id, context.execution_id, context.epoch, version)
        )
        if reply is not None:
            self._version, self._report_lost = version, False
            everywhere = ", as in every container" if reply.all_on == version else ""
            log.info("version %d of the job model runs here%s", version, everywhere)
            self.on_version(reply.current)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Await all concurrently, each to its end. Then raise the first error."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a new version of the job model changes for a slot. `release`: tasks that the slot no longer has, whether it owns them or waits
    for them. `extend`: owned tasks with their new partitions. `keep`: tasks that stay as they are; those in `beyond` read more than the
    version says. `acquire`: tasks that are new to the slot. `slot_removed`: the run has fewer containers now, and this slot no longer
    exists."""

    version: int
    release: frozenset[TaskName] = frozenset()
    extend: Mapping[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    keep: frozenset[TaskName] = frozenset()
    acquire: frozenset[TaskName] = frozenset()
    beyond: Mapping[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    slot_removed: bool = False

    @property
    def nothing(self) -> bool:
        """Whether the version only has to be reported as adopted."""
        return not (self.release or self.extend or self.acquire or self.slot_removed)

    def __str__(self) -> str:
        parts = ["the slot no longer exists"] if self.slot_removed else []
        parts += [f"release {_names(self.release)}"] if self.release else []
        parts += [f"{task} also reads {_ssps(ssps)}" for task, ssps in sorted(self.extend.items())]
        parts += [f"acquire {_names(self.acquire)}"] if self.acquire else []
        parts += [f"{task} keeps reading {_ssps(ssps)}, which it cannot give up" for task, ssps in sorted(self.beyond.items())]
        return f"version {self.version}: {'; '.join(parts) or 'nothing changes here'}"


def adoption(
    version: int,
    model: JobModel,
    slots: Collection[ProcessorId],
    slot: ProcessorId,
    runs: Mapping[TaskName, frozenset[Ssp]],
    waits: frozenset[TaskName],
) -> Adoption:
    """What the container of `slot` must do to run this version, in a run with these `slots`. `runs`: the tasks that it owns, and what they
    read. `waits`: the tasks that it is acquiring; the acquire will give them the partitions of the model. A container without tasks keeps
    running, because tasks may be assigned to it again."""
    if slot not in slots:
        return Adoption(version, release=frozenset(runs) | waits, slot_removed=True)
    wanted = {task.name: task.ssps for task in model.containers.get(slot, ContainerModel(slot, {})).tasks.values()}
    kept = runs.keys() & wanted.keys()
    extend = {task: wanted[task] - runs[task] for task in kept if wanted[task] - runs[task]}
    return Adoption(
        version,
        release=frozenset((runs.keys() | waits) - wanted.keys()),
        extend=extend,
        keep=frozenset((kept - extend.keys()) | (waits & wanted.keys())),
        acquire=frozenset(wanted.keys() - runs.keys() - waits),
        beyond={task: runs[task] - wanted[task] for task in kept if runs[task] - wanted[task]},
    )


def _names(tasks: frozenset[TaskName]) -> str:
    return ", ".join(sorted(tasks))


def _ssps(ssps: frozenset[Ssp]) -> str:
    return ", ".join(map(str, sorted(ssps)))
