"""The HTTP client for the coordinator's API. Problem responses (RFC 9457) are raised as the errors of `sluice.core.errors`.

`CoordinatorClient` has the calls of agents. Those that only people make are in `sluice.cli.client`. `until_answered` repeats a call until
the coordinator can be reached.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from sluice.core.errors import ClientError, CoordinatorUnreachable, LeaseLost, SluiceError
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, RunId, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.model import JobModel
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import runs as wire_runs
from sluice.wire import samza as wire_samza
from sluice.wire import snapshots as wire_snapshots

R = TypeVar("R", bound=BaseModel)

TIMEOUT = timedelta(seconds=10)

KEPT = timedelta(seconds=5)
"""How long the coordinator keeps a connection on which nothing comes (uvicorn's default, as httpx's)."""


def whoever() -> str:
    """The user of this process, as the header that says who asks takes him; "" where there is no telling."""
    try:
        return re.sub(r"[^\x20-\x7e]", "?", getpass.getuser())[:200].strip()
    except (OSError, KeyError):
        return ""


@dataclass(frozen=True, slots=True)
class Alive:
    lease: timedelta
    interval: timedelta
    model_version: int


@dataclass(frozen=True, slots=True)
class NotValid:
    """`ended`: the run is over, so this container goes in order; else another incarnation has its slot."""

    ended: RunState | None


class Refused(ClientError):
    """The coordinator refused."""

    slug = ClientError.slug

    def __init__(self, slug: str, detail: str) -> None:
        super().__init__(detail)
        self.refused_as = slug


@dataclass(frozen=True, slots=True)
class Served:
    """A job's current model, its version, and the run that it is for."""

    run_id: RunId
    version: int
    model: JobModel


class CoordinatorClient:
    """One HTTP client. Every method raises CoordinatorUnreachable when there was no answer, or 5xx; LeaseLost for a 409 `lease-lost`; and
    Refused for what the coordinator will not do."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT.total_seconds(), transport=transport)
        self._beats_every = timedelta(0)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: BaseModel | None = None, **kwargs: Any) -> httpx.Response:
        try:
            content = body.model_dump_json(by_alias=True) if body is not None else None
            headers = {"Content-Type": "application/json"} if body is not None else {}
            answer = await self._http.request(method, path, content=content, headers={**headers, **kwargs.pop("headers", {})}, **kwargs)
        except httpx.HTTPError as error:
            raise CoordinatorUnreachable(f"{self.url}: {type(error).__name__} {error}".rstrip()) from error
        except httpx.InvalidURL as error:
            raise Refused("bad-url", f"{self.url} is not a coordinator's URL: {error}") from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer

    async def _read(self, model: type[R], method: str, path: str, body: BaseModel | None = None, **kwargs: Any) -> R:
        answer = await self._ask(method, path, body, **kwargs)
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            raise Refused("not-sluice", f"{self.url}{path} does not answer as a coordinator does: {error.errors()[0]['msg']}") from error

    async def live(self) -> None:
        await self._ask("GET", "/livez")

    async def jobs(self) -> wire_runs.JobsReply:
        return await self._read(wire_runs.JobsReply, "GET", "/jobs")

    async def runs(self, job: JobName, limit: int, before: RunId | None = None) -> wire_runs.RunsReply:
        """Up to `limit` runs of the job, newest first; only those older than `before`."""
        query = {"job": job, "limit": limit} | ({"before": before} if before else {})
        return await self._read(wire_runs.RunsReply, "GET", "/runs", params=query)

    async def deploy(self, request: wire_runs.RunRequest, replaces: RunId | None = None) -> wire_runs.RunReply:
        """With `replaces`, only while that is the job's current run: else refused as `NotTheCurrentRun`."""
        headers = {wire_jobmodels.WHO_HEADER: whoever()} | ({} if replaces is None else {wire_body.REPLACES_HEADER: str(replaces)})
        return await self._read(wire_runs.RunReply, "POST", "/runs", request, headers=headers)

    async def plan_run(self, request: wire_runs.RunRequest) -> wire_runs.RunPlanReply:
        """What deploying this would make. Changes nothing."""
        return await self._read(wire_runs.RunPlanReply, "POST", "/runs/plan", request)

    async def request_of(self, run_id: RunId) -> wire_runs.RunRequest:
        """The request that made a run."""
        return await self._read(wire_runs.RunRequest, "GET", f"/runs/{path_segment(run_id)}/request")

    async def run(self, run_id: RunId) -> wire_runs.RunDetail:
        return await self._read(wire_runs.RunDetail, "GET", f"/runs/{path_segment(run_id)}")

    async def stop_run(self, run_id: RunId, reason: str, *, failed: bool = False) -> wire_runs.RunReply:
        return await self._read(
            wire_runs.RunReply, "POST", f"/runs/{path_segment(run_id)}/stop", wire_runs.StopRequest(reason=_sent(reason), failed=failed)
        )

    async def notices(self, run_id: RunId, after: int, wait: timedelta) -> Sequence[wire_body.Notice]:
        timeout = (wait + TIMEOUT).total_seconds()
        query = {"after": after, "wait": wait.total_seconds()}
        return (
            await self._read(wire_body.NoticesReply, "GET", f"/runs/{path_segment(run_id)}/notices", params=query, timeout=timeout)
        ).notices

    async def register(self, run_id: RunId, request: wire_agents.RegisterRequest) -> wire_agents.RegisterReply:
        return await self._read(wire_agents.RegisterReply, "POST", f"/runs/{path_segment(run_id)}/containers", request)

    async def exited(self, execution_id: ExecutionContainerId, exit_code: int, reason: str) -> None:
        body = wire_agents.ExitRequest(exit_code=exit_code, reason=_sent(reason))
        await self._ask("POST", f"/containers/{path_segment(execution_id)}/exit", body)

    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid:
        """Never raises Refused: whatever does not answer as a coordinator is not one, and therefore not reached. `within` is for the whole
        answer: the client's own time-out begins anew with every byte.

        A connection that would be given up before the next heartbeat is closed with the answer: the coordinator of a large fleet would
        hold thousands that nobody uses."""
        headers = {wire_body.EPOCH_HEADER: str(epoch)} | ({"Connection": "close"} if self._beats_every > KEPT else {})
        try:
            async with asyncio.timeout(within.total_seconds()):
                answer = await self._ask(
                    "GET",
                    "/containerHeartbeat",
                    params={"executionContainerId": execution_id},
                    headers=headers,
                )
            alive = wire_body.HeartbeatReply.model_validate_json(answer.content, strict=True).alive
            if not alive:
                state = answer.headers.get(wire_body.RUN_STATE_HEADER)
                return NotValid(RunState(state) if state else None)
            self._beats_every = timedelta(seconds=float(answer.headers[wire_body.NEXT_HEADER]))
            return Alive(
                lease=timedelta(seconds=float(answer.headers[wire_body.LEASE_HEADER])),
                interval=self._beats_every,
                model_version=int(answer.headers[wire_body.MODEL_VERSION_HEADER]),
            )
        except TimeoutError as error:
            raise CoordinatorUnreachable(f"{self.url} did not answer within {within.total_seconds():.3g} s") from error
        except (Refused, ValidationError, ValueError, KeyError) as error:
            raise CoordinatorUnreachable(f"{self.url} does not answer heartbeats as a coordinator does: {error}") from error

    async def job_model(self, job: str) -> Served:
        answer = await self._ask("GET", "/jobModel", params={"job": job})
        try:
            document: Mapping[str, Any] = answer.json()
            version = int(answer.headers[wire_body.MODEL_VERSION_HEADER])
            return Served(RunId(answer.headers[wire_body.RUN_HEADER]), version, wire_samza.parse_job_model(document))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("not-sluice", f"{self.url}/jobModel does not answer as a coordinator does: {error!r}") from error

    async def adopted(self, run_id: RunId, execution_id: ExecutionContainerId, epoch: Epoch, version: int) -> wire_jobmodels.AdoptedReply:
        """Tell that the container runs this version of its run's job model. May be told twice."""
        body = wire_jobmodels.AdoptedRequest(version=version, epoch=epoch)
        path = f"/runs/{path_segment(run_id)}/containers/{path_segment(execution_id)}/adopted"
        return await self._read(wire_jobmodels.AdoptedReply, "POST", path, body)

    async def standby(self, run_id: RunId, execution_id: ExecutionContainerId) -> wire_jobmodels.StandbyReply:
        """The snapshots that the container keeps copies of."""
        return await self._read(
            wire_jobmodels.StandbyReply, "GET", f"/runs/{path_segment(run_id)}/containers/{path_segment(execution_id)}/standby"
        )

    async def acquire(
        self, run_id: RunId, task: TaskName, execution_id: ExecutionContainerId, epoch: Epoch, wait: timedelta = timedelta(0)
    ) -> wire_agents.AcquireReply | wire_agents.WaitReply:
        """The task may still become free within `wait`."""
        body = wire_agents.AcquireRequest(execution_container_id=execution_id, epoch=epoch)
        timeout = (wait + TIMEOUT).total_seconds()
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/acquire"
        answer = await self._ask("POST", path, body, params={"wait": wait.total_seconds()}, timeout=timeout)
        model = wire_agents.WaitReply if answer.status_code == 202 else wire_agents.AcquireReply
        return model.model_validate_json(answer.content)

    async def progress(self, run_id: RunId, task: TaskName, body: wire_agents.ProgressRequest) -> None:
        await self._ask("POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/progress", body)

    async def pace(
        self, run_id: RunId, task: TaskName, generation: Generation, stage: str, event_time: datetime | None
    ) -> wire_agents.PaceReply:
        body = wire_agents.PaceRequest(generation=generation, stage=stage, event_time=event_time)
        return await self._read(wire_agents.PaceReply, "POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/pace", body)

    async def report_snapshot(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_snapshots.SnapshotRequest
    ) -> wire_snapshots.SnapshotAccepted:
        return await self._read(wire_snapshots.SnapshotAccepted, "POST", f"{_stage(run_id, task, stage)}/snapshots", body)

    async def new_lineage(
        self, run_id: RunId, task: TaskName, stage: StageName, generation: Generation, lineage: Lineage, why: str
    ) -> Lineage:
        """The stage's next one; asked again with the same `lineage`, the same."""
        body = wire_snapshots.LineageRequest(generation=generation, lineage=lineage, why=_sent(why))
        answer = await self._read(wire_snapshots.LineageReply, "POST", f"{_stage(run_id, task, stage)}/lineage", body)
        return Lineage(answer.lineage)

    async def drain(self, uuid: str) -> wire_drains.DrainDetail:
        return await self._read(wire_drains.DrainDetail, "GET", f"/drain/{path_segment(uuid)}")

    async def drain_step(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_drains.DrainStepRequest
    ) -> wire_drains.DrainStepReply:
        """Tell a step of a drain; the phase after it. Refused as `unknown-drain` when the run is under another drain or none, and as
        `drain-too-early` while the drain has not come to the step's phase."""
        return await self._read(wire_drains.DrainStepReply, "POST", f"{_stage(run_id, task, stage)}/drain", body)

    async def release(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        await self._ask(
            "POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/release", wire_agents.ReleaseRequest(generation=generation)
        )


def _stage(run_id: RunId, task: TaskName, stage: StageName) -> str:
    return f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/stages/{path_segment(stage)}"


def _sent(reason: str) -> str:
    """A reason as the wire takes it: errors of user code may hold anything."""
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()[:10_000]


def path_segment(name: str) -> str:
    """The name as one segment of a URL's path."""
    return quote(name, safe="")


def _error(answer: httpx.Response) -> SluiceError:
    try:
        told = wire_body.Problem.model_validate_json(answer.content)
        slug, detail = told.type.removeprefix("urn:sluice:"), told.detail
    except ValidationError:
        slug, detail = f"http-{answer.status_code}", answer.text[:200]
    if answer.status_code >= 500:
        return CoordinatorUnreachable(f"{answer.request.url}: {answer.status_code} {detail}")
    if slug == LeaseLost.slug:
        return LeaseLost(detail)
    return Refused(slug, detail)


log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN = timedelta(seconds=1)


async def until_answered(ask: Callable[[], Awaitable[T]], query: str) -> T:
    """Ask until the coordinator answers: nothing can be done without it, and the lease says when to give up."""
    while True:
        try:
            return await ask()
        except CoordinatorUnreachable as error:
            log.warning("%s waits for the coordinator: %s", query, error)
            await asyncio.sleep(AGAIN.total_seconds())
