"""The contents of each page. The address of a page is the part of its URL after `/ui/`, such as `jobs/orders?offset=100`."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from coordinator.api.access import ADMINISTER, Roles
from coordinator.api.deps import DrainParts, JobModelParts, Parts, SnapshotParts
from coordinator.api.drains import drain_detail
from coordinator.api.jobmodels import difference_reply, versions_reply
from coordinator.api.runs import describe_run
from coordinator.identity.audit_log import AuditLog
from coordinator.runs.timeline import EVENTS_KEPT, JobEvent, Kind
from coordinator.runs.transactions import HeldBack
from coordinator.snapshots.catalog import SnapshotDetails
from coordinator.store.fleet import ContainerState
from coordinator.store.snapshots import HeadRow
from coordinator.turns import free_in_turns, in_turns
from coordinator.ui import fleet
from coordinator.ui.actions import of_drain, of_garbage, of_job, of_snapshot, of_version
from coordinator.ui.graph import Drawing, Edge, Node, draw, stage_key, stream_key
from coordinator.ui.live import Render
from coordinator.ui.pieces import Fragment
from coordinator.ui.render import count, element_id, piece, rate, segment
from coordinator.ui.samples import Samples, sparkline
from sluice.core.drain import DrainId
from sluice.core.errors import SluiceError, UnknownPage, UnknownVersion
from sluice.core.ids import ExecutionContainerId, JobName, RunId, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.status import RunOverview, exit_line, lag_of, last_report, named, overview_steps, snapshot_age
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

ROWS_A_PAGE = 100
JOBS_A_PAGE = 25
CONTAINERS_OF_A_JOB = 50
"""Containers on the page of a job. The page of its containers has all of them."""
EVENTS_SHOWN = 50
"""Events on the page of a job. The page of its events has the newest EVENTS_KEPT of each kind."""
PER_TURN = 5
"""Number of rows that are rendered before the event loop processes other requests: less than two milliseconds."""
PER_TURN_OF_LEASES = 1000
DISKS_SHOWN = 20
RECOVERIES_SHOWN = 10

Crumbs = Sequence[tuple[str, str]]
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page:
    """A page and the function that renders its fragments. `key`: its URL below `/ui/`."""

    key: str
    title: str
    crumbs: Crumbs
    render: Render
    job: Callable[[], Awaitable[JobName]] | None = None
    """The job that a reader needs a role for; None: all jobs, unless the page omits other jobs itself (`lists_jobs`)."""
    lists_jobs: bool = False
    roles: Roles | None = None
    """One of the roles that its reader needs, if not any role is enough."""
    shared_by: tuple[str, ...] = ("*",)

    @property
    def rendering(self) -> str:
        """The key of the rendered page. It differs for readers who may see other jobs."""
        return self.key if self.shared_by == ("*",) else f"{self.key} {' '.join(self.shared_by)}"


@dataclass(frozen=True, slots=True)
class Query:
    """The filters of a list, and its first row. `offset`: the number of the first row, from 0. `before`: only rows with smaller numbers; 0
    for the newest. `find`: only rows with this text. `state`, `job`, `task`, `stage`: only rows of these; "" for all."""

    offset: int = 0
    before: int = 0
    find: str = ""
    state: str = ""
    job: str = ""
    task: str = ""
    stage: str = ""

    @staticmethod
    def parsed(text: str) -> Query:
        given = dict(parse_qsl(text))
        offset, before = (_digits(given.get(name, "")) for name in ("offset", "before"))
        texts = {name: given.get(name, "")[:600] for name in ("find", "state", "job", "task", "stage")}
        return Query(min(offset, 10**7), min(before, 2**63 - 1), **texts)

    def at(self, offset: int) -> str:
        return urlencode({"offset": offset, **{name: value for name, value in asdict(self).items() if value and name != "offset"}})

    def older(self, before: int) -> str:
        """The page of a list divided by numbers that follows this number; with 0 the newest page."""
        return urlencode({"before": before, **{name: value for name, value in asdict(self).items() if value and name != "before"}})


def _digits(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


@dataclass(frozen=True, slots=True)
class Pager:
    """The form above a list. `first`, `last`: the numbers of the rows that are shown, from 1; 0 if there are none. `previous`, `following`:
    queries of the neighbouring pages, "" at the ends. `states`: the choices of the filter by state; empty if there is no such filter."""

    first: int
    last: int
    total: int
    previous: str
    following: str
    find: str
    state: str
    states: Sequence[str]


def paged(rows: Sequence[Row], query: Query, limit: int, states: Sequence[str] = ()) -> tuple[Sequence[Row], Pager]:
    """At most `limit` of the rows, from the query's offset on."""
    shown = rows[query.offset : query.offset + limit]
    previous = query.at(max(0, query.offset - limit)) if query.offset else ""
    following = query.at(query.offset + limit) if query.offset + limit < len(rows) else ""
    first, last = (query.offset + 1, query.offset + len(shown)) if shown else (0, 0)
    return shown, Pager(first, last, len(rows), previous, following, query.find, query.state, states)


class Pages:
    """Finds pages by their addresses."""

    def __init__(
        self, parts: Parts, draining: DrainParts, backups: SnapshotParts, versioning: JobModelParts, samples: Samples, audit_log: AuditLog
    ) -> None:
        self._audit_log = audit_log
        self._parts = parts
        self._draining = draining
        self._backups = backups
        self._versioning = versioning
        self._samples = samples

    def find(self, path: str, query: str, jobs: Sequence[str] = ("*",)) -> Page:
        """The page at this path below `/ui/`. `jobs`: patterns of the jobs that its reader may see. Whether its job or drain exists is
        checked when it is rendered. Raises UnknownPage."""
        for pattern, make in self._patterns:
            match = re.fullmatch(pattern, path)
            if match is not None:
                found = Query.parsed(query)
                key = path if found == Query() else f"{path}?{found.at(found.offset)}"
                page = make(key, found, *map(unquote, match.groups()))
                return page if not page.lists_jobs or "*" in jobs else self._jobs(key, found, jobs)
        raise UnknownPage("start at /ui/, which lists all jobs")

    @property
    def _patterns(self) -> Sequence[tuple[str, Callable[..., Page]]]:
        return (
            ("", self._jobs),
            ("fleet", self._fleet),
            ("garbage", self._garbage),
            ("audit", self._audit),
            ("jobs/([^/]+)", self._job),
            ("jobs/([^/]+)/containers", self._containers),
            ("jobs/([^/]+)/events", self._events),
            ("jobs/([^/]+)/state", self._state),
            ("jobs/([^/]+)/versions/([0-9]{1,9})", self._version),
            ("drains/([^/]+)", self._drain),
        )

    # --- jobs -----------------------------------------------------------------------------------------------------------

    def _jobs(self, key: str, query: Query, visible: Sequence[str] = ("*",)) -> Page:
        async def render() -> Sequence[Fragment]:
            jobs = await self._parts.runs.jobs()
            seen = [each for each in jobs if any(fnmatchcase(each.job, pattern) for pattern in visible)]
            found = [each for each in seen if query.find.lower() in each.job.lower() and query.state in ("", each.state)]
            shown, found_pager = paged(found, query, JOBS_A_PAGE, list(RunState))
            rows = []
            for each in shown:
                try:
                    rows.append(self._job_row(await self._overview(each.current_run)))
                except SluiceError as error:
                    rows.append(piece("job_unread", f"job-{element_id(each.job)}", job=each.job, error=f"{error.title()} {error}"))
            checks = [each for each in self._parts.health.known() if not each.ok] if "*" in visible else []
            return [
                piece("coordinator", "coordinator", checks=checks),
                piece("jobs", "jobs", rows, any=bool(seen), since=self._samples.since, pager=found_pager),
            ]

        return Page(key, "Jobs", (), render, lists_jobs=True, shared_by=tuple(visible))

    async def _overview(self, run_id: RunId) -> RunOverview:
        run = await describe_run(self._parts, run_id)
        found = await in_turns(overview_steps(run, self._parts.runs.now()))
        tasks = list(run.tasks)
        del run
        await free_in_turns(tasks)
        return found

    def _job_row(self, run: RunOverview) -> Fragment:
        samples = self._samples.of_job(JobName(run.job))
        return piece(
            "job_row",
            f"job-{element_id(run.job)}",
            run=run,
            held_by=_holder(run.watermarks),
            rate=sum_known(each.rows_per_second for each in run.stages),
            lag=sum_known(each.lag for each in run.stages),
            watermark_lag=max((each.watermark_lag_seconds for each in run.stages if each.watermark_lag_seconds is not None), default=None),
            backup_age=max((each.snapshot_age_seconds for each in run.stages if each.snapshot_age_seconds is not None), default=None),
            rates=sparkline([each.rate for each in samples]),
            lags=sparkline([each.lag for each in samples]),
        )

    # --- a job -----------------------------------------------------------------------------------------------------------

    def _job(self, key: str, query: Query, job: str) -> Page:
        name = JobName(job)

        async def render() -> Sequence[Fragment]:
            current = await self._parts.runs.current(name)
            run = await describe_run(self._parts, current.run_id)
            found = await in_turns(overview_steps(run, self._parts.runs.now()))
            matching = [task for task in run.tasks if query.find.lower() in task.task.lower()]
            shown, tasks_pager = paged(matching, query, ROWS_A_PAGE)
            rows = await _in_turns(shown, _task_row)
            containers = await _in_turns(_sorted_containers(run)[:CONTAINERS_OF_A_JOB], self._container_row)
            newest = (await self._parts.timeline.of_job(name, EVENTS_SHOWN))[:EVENTS_SHOWN]
            events = await _in_turns(enumerate(newest), lambda each: _event_row(each, job, "../"))
            made = await self._pieces_of_job(run, found, (rows, tasks_pager), containers, events)
            tasks = list(run.tasks)
            del run, matching, shown
            await free_in_turns(tasks)
            return made

        return Page(key, job, (("Jobs", ""),), render, _known(name))

    async def _pieces_of_job(
        self,
        run: wire_runs.RunDetail,
        found: RunOverview,
        tasks: tuple[Sequence[Fragment], Pager],
        containers: Sequence[Fragment],
        events: Sequence[Fragment],
    ) -> Sequence[Fragment]:
        samples = self._samples.of_job(JobName(run.job))
        return await _one_by_one(
            partial(piece, "job_head", "head", run=found, detail=run, actions=of_job(run), drain=run.drain),
            lambda: _problems_of(found),
            lambda: piece("graph", "graph", drawing=drawing(run, found)),
            lambda: piece(
                "stages",
                "stages",
                stages=found.stages,
                rates=sparkline([each.rate for each in samples]),
                lags=sparkline([each.lag for each in samples]),
                since=self._samples.since,
            ),
            partial(piece, "watermarks", "watermarks", watermarks=run.watermarks, missing=run.missing_event_times),
            lambda: piece("transactions", "transactions", held=self._held_back(run)),
            partial(piece, "tasks", "tasks", tasks[0], pager=tasks[1]),
            partial(piece, "containers", "containers", containers, all=f"{segment(run.job)}/containers", run=run, pager=None),
            partial(piece, "timeline", "timeline", events, all=f"{segment(run.job)}/events", pager=None),
        )

    def _held_back(self, run: wire_runs.RunDetail) -> Sequence[HeldBack]:
        """The partitions of the run's streams whose readers are blocked by an open transaction, the longest first."""
        streams = {(each.system, each.stream) for each in run.streams}
        standing = [each for each in self._parts.transactions.standing if each.held_for]  # not those that are just being written
        found = [each for each in standing if (each.stream.system, each.stream.stream) in streams]
        return sorted(found, key=lambda each: each.held_for, reverse=True)

    def _containers(self, key: str, query: Query, job: str) -> Page:
        name = JobName(job)

        async def render() -> Sequence[Fragment]:
            run = await describe_run(self._parts, (await self._parts.runs.current(name)).run_id)
            found = [each for each in _sorted_containers(run) if _is_found(each, query)]
            shown, found_pager = paged(found, query, ROWS_A_PAGE, list(ContainerState))
            return [piece("containers", "containers", await _in_turns(shown, self._container_row), all="", run=run, pager=found_pager)]

        return Page(key, "Containers", _crumbs_of(job), render, _known(name))

    def _events(self, key: str, query: Query, job: str) -> Page:
        name = JobName(job)

        async def render() -> Sequence[Fragment]:
            events = await self._parts.timeline.of_job(name, EVENTS_KEPT)
            found = [each for each in events if query.find.lower() in f"{each.what} {each.detail} {each.actor}".lower()]
            shown, found_pager = paged(found, query, ROWS_A_PAGE)
            made = await _in_turns(enumerate(shown), lambda each: _event_row(each, job, "../../"))
            return [piece("timeline", "timeline", made, all="", pager=found_pager)]

        return Page(key, "Events", _crumbs_of(job), render, _known(name))

    def _container_row(self, container: wire_runs.ContainerReply) -> Fragment:
        lease = self._parts.leases.terms.lease.total_seconds()
        left = container.lease_seconds_left
        return piece(
            "container_row",
            f"container-{element_id(container.execution_container_id)}",
            container=container,
            level=None if left is None else fleet.level(left, lease) + 1,
            levels=fleet.LEVELS,
        )

    # --- versions, drains -----------------------------------------------------------------------------------------------

    def _version(self, key: str, query: Query, job: str, text: str) -> Page:
        name, version = JobName(job), int(text)

        async def render() -> Sequence[Fragment]:
            (head, *_), current = await self._versions(name, version)
            change = None
            if version > 1:
                try:
                    effect = await self._versioning.history.difference(name, version - 1, version)
                    change = difference_reply(job, version - 1, version, effect)
                except UnknownVersion:
                    change = None
            actions = of_version(job, version) if version != current else ()
            return [piece("version", "version", head=head, current=current, change=change, job=job, actions=actions)]

        return Page(key, f"Version {version}", _crumbs_of(job), render, _known(name))

    async def _versions(self, job: JobName, version: int) -> tuple[Sequence[object], int]:
        heads, current = await self._versioning.history.versions(job, version + 1, 1)
        found = versions_reply(job, heads, current, 1).models
        if not found or found[0].version != version:
            raise UnknownVersion(f"job {job} has no version {version} (it may have been pruned)")
        return found, current

    def _drain(self, key: str, query: Query, drain: str) -> Page:
        async def render() -> Sequence[Fragment]:
            found = drain_detail(await self._draining.drains.describe(DrainId(drain)))
            every = [(container, task) for container in found.containers for task in container.tasks]
            rows = [each for each in every if query.find.lower() in each[1].task.lower()]
            shown, tasks_pager = paged(rows, query, ROWS_A_PAGE)
            return [
                piece("drain", "drain", drain=found, actions=of_drain(found)),
                piece("drain_tasks", "tasks", await _in_turns(shown, _drain_row), pager=tasks_pager),
            ]

        async def job() -> JobName:
            return (await self._draining.drains.describe(DrainId(drain))).drain.job

        return Page(key, "Drain", (("Jobs", ""),), render, job)

    # --- state ------------------------------------------------------------------------------------------------------------

    def _state(self, key: str, query: Query, job: str) -> Page:
        name = JobName(job)

        async def render() -> Sequence[Fragment]:
            run = await describe_run(self._parts, (await self._parts.runs.current(name)).run_id)
            wanted = TaskName(query.task) if query.task else None, StageName(query.stage) if query.stage else None
            listed = await self._backups.catalog.snapshots(name, *wanted, query.before or None, ROWS_A_PAGE + 1)
            found = listed[:ROWS_A_PAGE]
            older = query.older(found[-1].row.seq) if len(listed) > ROWS_A_PAGE else ""
            pins = await self._backups.catalog.pins(name)
            heads = await self._backups.catalog.heads(name)
            at = self._parts.runs.now()
            stateful = {stage.name for stage in run.stages if stage.stateful}
            losses = [
                loss_of(task, stage, heads.get((TaskName(task.task), StageName(stage.stage))), snapshot_age(stage, at))
                for task in run.tasks
                for stage in task.stages
                if stage.stage in stateful and query.task in ("", task.task) and query.stage in ("", stage.stage)
            ]
            worst = sorted(losses, key=LossEstimate.severity, reverse=True)
            disks = sorted(losses_by_disk(losses), key=LossEstimate.severity, reverse=True)
            rows = await _in_turns(found, lambda each: piece("snapshot_row", _snapshot_id(each), snapshot=each, actions=of_snapshot(each)))
            reported = [each.row.reported_at for each in found]
            return [
                piece("filter", "filter", query=query, stages=[each.name for each in run.stages]),
                piece(
                    "losses",
                    "losses",
                    losses=worst[:ROWS_A_PAGE],
                    total=len(worst),
                    disks=disks[:DISKS_SHOWN],
                    all_disks=len(disks),
                    backup_to=run.backup_to,
                ),
                piece("axis", "axis", marks=axis(found), first=min(reported, default=None), last=max(reported, default=None)),
                piece("pins", "pins", pins=pins[:ROWS_A_PAGE], total=len(pins), job=job),
                piece("snapshots", "snapshots", rows, query=query, older=older, any=bool(found)),
            ]

        return Page(key, "State", _crumbs_of(job), render, _known(name))

    def _garbage(self, key: str, query: Query) -> Page:
        async def render() -> Sequence[Fragment]:
            collection = self._backups.collection
            grace, every = collection.grace.total_seconds(), collection.every.total_seconds()
            return [piece("garbage", "garbage", totals=collection.totals.items(), grace=grace, every=every, actions=of_garbage())]

        return Page(key, "Garbage", (), render)

    # --- the audit trail --------------------------------------------------------------------------------------------------

    def _audit(self, key: str, query: Query) -> Page:
        async def render() -> Sequence[Fragment]:
            found = await self._audit_log.page(query.before or None, ROWS_A_PAGE + 1, query.job or None)
            shown = found[:ROWS_A_PAGE]
            rows = await _in_turns(shown, lambda each: piece("audit_row", f"event-{each.seq}", event=each))
            older = query.older(shown[-1].seq) if len(found) > ROWS_A_PAGE else ""
            return [piece("audit", "audit", rows, any=bool(shown), older=older, query=query)]

        return Page(key, "Audit trail", (("Jobs", ""),), render, roles=ADMINISTER)

    # --- the fleet ------------------------------------------------------------------------------------------------------

    def _fleet(self, key: str, query: Query) -> Page:
        async def render() -> Sequence[Fragment]:
            leases = self._parts.leases
            left = []
            for number, each in enumerate(leases.known()):
                remaining = leases.left(ExecutionContainerId(each))
                if remaining is not None:
                    left.append(remaining.total_seconds())
                if number % PER_TURN_OF_LEASES == PER_TURN_OF_LEASES - 1:
                    await asyncio.sleep(0)
            cells = fleet.heat_map(left, leases.terms.lease.total_seconds())
            jobs = [each for each in self._parts.lag.jobs if each.slots and query.find.lower() in each.job.lower()]
            shown, jobs_pager = paged(jobs, query, ROWS_A_PAGE)
            return [
                piece("fleet", "fleet", valid=len(leases), ending=leases.ending, terms=leases.terms),
                piece("heat", "heat", cells=cells, levels=fleet.LEVELS),
                piece("fleet_jobs", "jobs", jobs=shown, pager=jobs_pager),
            ]

        return Page(key, "Fleet", (), render)


def _known(job: JobName) -> Callable[[], Awaitable[JobName]]:
    async def known() -> JobName:
        return job

    return known


def _crumbs_of(job: str) -> Crumbs:
    return (("Jobs", ""), (job, f"jobs/{segment(job)}"))


def _holder(watermarks: Iterable[wire_runs.StreamWatermark]) -> str:
    """The first stage of a task that holds the watermark furthest behind; "" if none is held."""
    held = [each for each in watermarks if each.held_by]
    if not held:
        return ""
    first = max(held, key=lambda each: each.held_seconds).held_by[0]
    return f"{first.task}/{first.stage}"


def _sorted_containers(run: wire_runs.RunDetail) -> Sequence[wire_runs.ContainerReply]:
    """The containers of the run: first those that have not ended, then the others; both by slot, newest first."""
    return sorted(run.incarnations, key=lambda each: (each.ended_at is not None, each.processor_id, -each.epoch))


def _is_found(container: wire_runs.ContainerReply, query: Query) -> bool:
    text = f"{container.execution_container_id} {container.processor_id} {container.host}"
    return query.find.lower() in text.lower() and query.state in ("", container.state)


def _event_row(numbered: tuple[int, JobEvent], job: str, root: str) -> Fragment:
    number, event = numbered
    link = {Kind.VERSION: f"jobs/{job}/versions/{event.subject}", Kind.DRAIN: f"drains/{event.subject}"}.get(event.kind, "")
    return piece("timeline_row", f"happened-{number}", event=event, link=link, root=root)


def _drain_row(found: tuple[wire_drains.DrainContainerReply, wire_drains.DrainTaskReply]) -> Fragment:
    container, task = found
    return piece("drain_row", f"task-{element_id(task.task)}", container=container, task=task)


def _task_row(task: wire_runs.TaskReply) -> Fragment:
    stages = [(each, lag_of(each), last_report(each)) for each in task.stages]
    return piece("task_row", f"task-{element_id(task.task)}", task=task, stages=stages)


def recoveries(run: RunOverview) -> Sequence[str]:
    """The failures of batches and containers after which the run works again, with their errors."""
    exits = [exit_line([each]) for each in run.exits if each.replaced]
    return [*(f"{each.error} (stage {each.stage} of {named(each.tasks)})" for each in run.restarted), *exits][:RECOVERIES_SHOWN]


def _problems_of(run: RunOverview) -> Fragment:
    problems = list(zip(run.problems, run.remedies, strict=True))
    return piece("problems", "problems", problems=problems, recovered=recoveries(run), run=run)


async def _one_by_one(*makes: Callable[[], Fragment]) -> Sequence[Fragment]:
    """Render the pieces; the event loop processes other requests between them."""
    found = []
    for make in makes:
        await asyncio.sleep(0)
        found.append(make())
    return found


async def _in_turns(rows: Iterable[object], make: Callable[..., Fragment]) -> list[Fragment]:
    """Render the rows; after every few rows the event loop processes other requests."""
    found = []
    for number, row in enumerate(rows):
        found.append(make(row))
        if number % PER_TURN == PER_TURN - 1:
            await asyncio.sleep(0)
    return found


def sum_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# --- the drawing of a job -----------------------------------------------------------------------------------------------


def drawing(run: wire_runs.RunDetail, found: RunOverview) -> Drawing:
    """Streams with their partitions, stages with their rates, and the lag at the edge from a stream to its reader."""
    failing = {each.stage for each in found.failing}
    by_stage = {each.stage: each for each in found.stages}
    nodes, edges = dict[str, Node](), []
    for stream in run.streams:
        nodes[stream_key(stream.name)] = Node(stream.name, stream.role, f"{stream.system}, {stream.partitions} partitions")
    for stage in run.stages:
        now = by_stage.get(stage.name)
        nodes[stage_key(stage.name)] = Node(stage.name, "stage", rate(now.rows_per_second if now else None), stage.name in failing)
        lag = f"lag {count(now.lag)}" if now is not None and now.lag is not None else ""
        edges += [Edge(stream_key(name), stage_key(stage.name), lag) for name in stage.reads]
        edges += [Edge(stage_key(stage.name), stream_key(name)) for name in stage.writes]
    return draw(nodes, edges)


# --- snapshots ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LossEstimate:
    """The effect of the loss of a disk now. Of a stage: `batches` since its snapshot `snapshot` ("": it has none) run again, which takes
    about `seconds`; `age`: of the snapshot, in seconds. Of a slot: the sum of the batches, and the longest time, because the queries of a
    container run at the same time. None: unknown."""

    slot: str
    task: str
    stage: str
    snapshot: str
    batches: int | None
    seconds: float | None
    age: float | None

    def severity(self) -> tuple[bool, int, float]:
        return self.snapshot == "", self.batches or 0, self.age or 0.0


def loss_of(task: wire_runs.TaskReply, stage: wire_runs.StageProgress, head: HeadRow | None, age: float | None) -> LossEstimate:
    """The batches are counted exactly, up to the last one that the container has reported: a lineage that begins with a snapshot continues
    its numbers. They are unknown if an operator chose a snapshot of another lineage. Each is taken to last as long as the last one."""
    last = -1 if stage.batch_id is None else stage.batch_id
    first = -1 if head is None or head.batch_id is None else head.batch_id
    batches = None if head is not None and head.chosen and not head.same_lineage else max(0, last - first)
    millis = stage.metrics.batch_millis if stage.metrics is not None else None
    seconds = 0.0 if batches == 0 else None if batches is None or millis is None else batches * millis / 1000
    return LossEstimate(task.processor_id, task.task, stage.stage, head.checkpoint if head else "", batches, seconds, age)


def losses_by_disk(losses: Iterable[LossEstimate]) -> Sequence[LossEstimate]:
    by_slot: defaultdict[str, list[LossEstimate]] = defaultdict(list)
    for each in losses:
        by_slot[each.slot].append(each)
    return [
        LossEstimate(
            slot,
            "",
            "",
            min(each.snapshot for each in found),
            sum_of_all([each.batches for each in found]),
            max_of_all([each.seconds for each in found]),
            max((each.age for each in found if each.age is not None), default=None),
        )
        for slot, found in by_slot.items()
    ]


def sum_of_all(values: Sequence[int | None]) -> int | None:
    """None if one of them is unknown."""
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None


def max_of_all(values: Sequence[float | None]) -> float | None:
    """None if one of them is unknown."""
    known = [each for each in values if each is not None]
    return max(known, default=None) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Mark:
    """A snapshot on the time axis. `x`: from 0, the oldest, to 1000, the newest. `height`: from 1 to 40 by its size."""

    x: float
    height: float
    label: str
    retained: bool


def axis(found: Sequence[SnapshotDetails]) -> Sequence[Mark]:
    if not found:
        return []
    times = [each.row.reported_at for each in found]
    first, span = min(times), max((max(times) - min(times)).total_seconds(), 1e-9)
    sizes = [max((marker.bytes for marker in each.row.markers.values()), default=0) for each in found]
    largest = max(*sizes, 1)
    return [
        Mark(
            round((each.row.reported_at - first).total_seconds() / span * 1000, 1),
            round(1 + 39 * bytes_ / largest, 1),
            f"{each.row.checkpoint} of {each.row.task}/{each.row.stage}, {each.row.reported_at:%Y-%m-%d %H:%M:%S} UTC",
            bool(each.why),
        )
        for each, bytes_ in zip(found, sizes, strict=True)
    ]


def _snapshot_id(found: SnapshotDetails) -> str:
    return f"snapshot-{element_id(f'{found.row.task}/{found.row.stage}/{found.row.checkpoint}')}"
