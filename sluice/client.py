"""The HTTP client for the coordinator's API. Problem responses (RFC 9457) are raised as the errors of `sluice.core.errors`.

`CoordinatorClient` has the calls of agents. The calls of operators are in `sluice.cli.client`. `until_answered` repeats a call until the
coordinator can be reached.

**Coordinators of the previous release** support only the old names of renamed routes, headers and fields (`sluice.core.deprecations`).
Three rules make the client work with them:

* A request uses the new names. If it is refused because of them (404 without a route, 422 `invalid-request`), it is sent again with the old
  names. If that succeeds, the client continues to use the old names.
* A coordinator that supports the new names answers the old ones with a `Deprecation` header. The client then uses the new names again.
* The header with the user's name is sent under both names, because an unknown header is ignored and not refused.

Answers are read with either name (`sluice.wire.body.RenamedReply`).
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from sluice.clock import SystemClock
from sluice.core.access.credentials import without_credentials
from sluice.core.drain import Mode
from sluice.core.errors import BadSettings, ClientError, CoordinatorUnavailable, CoordinatorUnreachable, LeaseLost, SluiceError
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, StageName, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.leases.lease import KnownTerm
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import CommitId
from sluice.logins import token_for
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import runs as wire_runs
from sluice.wire import samza as wire_samza
from sluice.wire import snapshots as wire_snapshots

log = logging.getLogger(__name__)

R = TypeVar("R", bound=BaseModel)

TIMEOUT = timedelta(seconds=10)

DEPRECATION_HEADER = "Deprecation"
"""RFC 9745."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

IDLE_CONNECTION = timedelta(seconds=5)
"""How long the coordinator keeps an idle connection open. Also the default of httpx."""


TOKEN, TOKEN_FILE = "SLUICE_TOKEN", "SLUICE_TOKEN_FILE"
"""Variables with the token of this process, and with the name of a file that contains it."""


CA_FILE = "SLUICE_CA_FILE"
"""Variable with the name of a PEM file of certificate authorities for the coordinator's certificate. It replaces those of the system."""


CLIENT_CERTIFICATE, CLIENT_KEY = "SLUICE_CLIENT_CERTIFICATE", "SLUICE_CLIENT_KEY"
"""Variables with the names of PEM files: this process's client certificate with its chain, and its key, unless the first file has it."""


def verification() -> ssl.SSLContext | bool:
    """How httpx verifies the coordinator's certificate, with the client certificate of this process. Raises BadSettings."""
    file, certificate = os.environ.get(CA_FILE), os.environ.get(CLIENT_CERTIFICATE)
    if not file and not certificate:
        return True
    try:
        context = ssl.create_default_context(cafile=file or None)
    except OSError as error:
        raise BadSettings(f"{CA_FILE}: {file} cannot be read as certificates: {error}") from error
    if certificate:
        try:
            context.load_cert_chain(certificate, os.environ.get(CLIENT_KEY) or None)
        except OSError as error:
            raise BadSettings(f"{CLIENT_CERTIFICATE}, {CLIENT_KEY}: {certificate} cannot be read with its key: {error}") from error
    return context


class EnvironmentToken:
    """The token of `SLUICE_TOKEN`, or of the file `SLUICE_TOKEN_FILE`, which is read again when it has changed, because platforms renew
    such files. If neither is set, that of `sluice login` for the coordinator at `url`; "" if there is none."""

    def __init__(self, url: str = "") -> None:
        self._url = url
        self._version: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        """Raises BadSettings if the file cannot be read and could not be read before, and the errors of `logins.token_for`."""
        if TOKEN in os.environ:
            return os.environ[TOKEN].strip()
        if not os.environ.get(TOKEN_FILE):
            return token_for(self._url, SystemClock()) if self._url else ""
        file = Path(os.environ[TOKEN_FILE])
        try:
            found = file.stat()
            if (found.st_mtime_ns, found.st_ino) != self._version:
                self._token = file.read_text().strip()
                self._version = found.st_mtime_ns, found.st_ino
        except (OSError, UnicodeDecodeError) as error:
            if self._version is None:
                raise BadSettings(f"{TOKEN_FILE}: {file} cannot be read: {error}") from error
            log.warning("%s: cannot read %s; using the former token", TOKEN_FILE, file)
        return self._token


def actor_headers() -> dict[str, str]:
    """The headers with the user of this process, under the new and the old name."""
    return dict.fromkeys((wire_body.ACTOR_HEADER, wire_body.OLD_ACTOR_HEADER), user_name())


def user_name() -> str:
    """The user of this process, in printable ASCII; "" if unknown."""
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
    """`ended`: the final state of the run, after which this container exits normally; None if another incarnation has its slot."""

    ended: RunState | None


class Refused(ClientError):
    """The coordinator refused the request. `refused_as` is the problem's slug."""

    slug = ClientError.slug

    def __init__(self, slug: str, detail: str) -> None:
        super().__init__(detail)
        self.refused_as = slug


@dataclass(frozen=True, slots=True)
class Served:
    """A job's current model, its version, and the run that it belongs to."""

    run_id: RunId
    version: int
    model: JobModel


class CoordinatorClient:
    """One HTTP client. Every method raises CoordinatorUnreachable if there was no answer, its subclass CoordinatorUnavailable for a 5xx,
    LeaseLost for a 409 `lease-lost`, and Refused for any other refusal. An answer of a coordinator that was replaced by another one is
    treated as no answer (`sluice.core.leases.lease.KnownTerm`)."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None, token: Callable[[], str] | None = None) -> None:
        """`token` returns the token that requests carry, "" for none. Default: that of the environment."""
        self.url = without_credentials(url)
        """Without credentials, for messages."""
        self._token = token or EnvironmentToken(url)
        self._incarnation_token = ""
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT.total_seconds(), transport=transport, verify=verification())
        self._term = KnownTerm()
        self._beats_every = timedelta(0)
        self._old_names = False
        """Whether requests are sent with the names of the previous release."""

    def act_as(self, incarnation_token: str) -> None:
        """Send the token of a container's registration with all requests from now on."""
        self._incarnation_token = incarnation_token

    async def close(self) -> None:
        await self._http.aclose()

    async def _request(
        self, method: str, path: str, body: BaseModel | None = None, *, old_path: str | None = None, **kwargs: Any
    ) -> httpx.Response:
        """`old_path`: the deprecated name of the route, if it has one."""
        renamed = old_path is not None or isinstance(body, wire_body.RenamedBody)
        if not renamed:
            answer = await self._send(method, path, body, None, **kwargs)
        elif self._old_names:
            answer = await self._send(method, old_path or path, body, wire_body.OLD_NAMES, **kwargs)
            self._old_names = DEPRECATION_HEADER not in answer.headers
        else:
            answer = await self._send(method, path, body, None, **kwargs)
            if _may_be_refused_for_names(answer):
                with_old_names = await self._send(method, old_path or path, body, wire_body.OLD_NAMES, **kwargs)
                if not _may_be_refused_for_names(with_old_names):
                    answer, self._old_names = with_old_names, DEPRECATION_HEADER not in with_old_names.headers
        if answer.status_code >= 400:
            raise _error(answer)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        names: Mapping[str, str] | None,
        headers: Mapping[str, str] = NO_HEADERS,
        **kwargs: Any,
    ) -> httpx.Response:
        content = body.model_dump_json(by_alias=True, context=names) if body is not None else None
        own = {"Content-Type": "application/json"} if body is not None else {}
        if self._term.highest:
            own[wire_body.TERM_HEADER] = str(self._term.highest)
        try:
            answer = await self._http.request(method, path, content=content, headers={**own, **self._authorization(), **headers}, **kwargs)
        except httpx.HTTPError as error:
            raise CoordinatorUnreachable(f"{self.url}: {type(error).__name__} {without_credentials(str(error))}".rstrip()) from error
        except httpx.InvalidURL as error:
            raise Refused("bad-url", f"{self.url} is not a coordinator's URL: {error}") from error
        term = _term_of(answer)
        if answer.status_code < 500 and not self._term.accepts(term):  # a proxy answers with 5xx and without a term
            raise CoordinatorUnreachable(
                f"{self.url} was answered by a former coordinator with term {term}; one with term {self._term.highest} has replaced it"
            )
        return answer

    def _authorization(self) -> dict[str, str]:
        """Raises BadSettings, without the token, if a header cannot contain it."""
        token = self._incarnation_token or self._token()
        if not token.isascii() or not token.isprintable():
            raise BadSettings(f"the token in {TOKEN} or {TOKEN_FILE} has invalid characters")
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _read(self, model: type[R], method: str, path: str, body: BaseModel | None = None, **kwargs: Any) -> R:
        answer = await self._request(method, path, body, **kwargs)
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            raise Refused("not-sluice", f"{self.url}{path} does not answer as a coordinator does: {error.errors()[0]['msg']}") from error

    async def live(self) -> None:
        await self._request("GET", "/livez")

    async def jobs(self) -> wire_runs.JobsReply:
        """All jobs, from all pages."""
        found: list[wire_runs.JobReply] = []
        page = await self._read(wire_runs.JobsReply, "GET", "/jobs")
        while page.next is not None:
            found += page.jobs
            page = await self._read(wire_runs.JobsReply, "GET", "/jobs", params={"after": page.next})
        return wire_runs.JobsReply(jobs=(*found, *page.jobs))

    async def runs(self, job: JobName, limit: int, before: RunId | None = None) -> wire_runs.RunsReply:
        """Up to `limit` runs of the job, newest first; only those older than `before`."""
        query = {"job": job, "limit": limit} | ({"before": before} if before else {})
        return await self._read(wire_runs.RunsReply, "GET", "/runs", params=query)

    async def deploy(self, request: wire_runs.RunRequest, replaces: RunId | None = None) -> wire_runs.RunReply:
        """Deploy a run; with `replaces`, only if that is the job's current run; otherwise refused as `NotTheCurrentRun`."""
        headers = actor_headers() | ({} if replaces is None else {wire_body.REPLACES_HEADER: str(replaces)})
        return await self._read(wire_runs.RunReply, "POST", "/runs", request, headers=headers)

    async def plan_run(self, request: wire_runs.RunRequest, after: Mode = Mode.DEFAULT) -> wire_runs.RunPlanReply:
        """What deploying this would create, with the start "drained" `after` a drain of that mode. Changes nothing."""
        query = {} if after is Mode.DEFAULT else {"drainMode": after.value}
        return await self._read(wire_runs.RunPlanReply, "POST", "/runs/plan", request, params=query)

    async def request_of(self, run_id: RunId) -> wire_runs.RunRequest:
        """The request that created a run."""
        return await self._read(wire_runs.RunRequest, "GET", f"/runs/{path_segment(run_id)}/request")

    async def run(self, run_id: RunId) -> wire_runs.RunDetail:
        return await self._read(wire_runs.RunDetail, "GET", f"/runs/{path_segment(run_id)}")

    async def basic_run(self, run_id: RunId) -> wire_runs.BasicRun:
        """The details of a run that a container needs. A coordinator of release 0.1 answers with the whole run."""
        query = {"view": wire_runs.RunView.BASIC.value}
        return await self._read(wire_runs.BasicRun, "GET", f"/runs/{path_segment(run_id)}", params=query)

    async def containers(self, run: wire_runs.RunDetail) -> Sequence[wire_runs.ContainerReply]:
        """All recorded containers of the run. A coordinator of release 0.1 has them in the details of the run."""
        found: list[wire_runs.ContainerReply] = []
        after: str | None = None
        try:
            while True:
                query = {"limit": 200} | ({"after": after} if after else {})
                page = await self._read(wire_runs.ContainersReply, "GET", f"/runs/{path_segment(run.run_id)}/containers", params=query)
                found += page.containers
                after = page.next
                if after is None:
                    return found
        except Refused as refused:
            if refused.refused_as not in ("http-404", "http-405"):
                raise
            return run.incarnations

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
        await self._request("POST", f"/containers/{path_segment(execution_id)}/exit", body)

    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid:
        """Never raises Refused: an answer that is not a coordinator's counts as CoordinatorUnreachable. `within` limits the whole request,
        because httpx's timeout restarts with every byte.

        If the connection would be closed as idle before the next heartbeat, it is closed right after the answer. Otherwise the coordinator
        of a large fleet would hold thousands of idle connections."""
        headers = {wire_body.EPOCH_HEADER: str(epoch)} | ({"Connection": "close"} if self._beats_every > IDLE_CONNECTION else {})
        try:
            async with asyncio.timeout(within.total_seconds()):
                answer = await self._request(
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

    async def job_model(self, job: str, processor_id: ProcessorId | None = None) -> Served:
        """The job's model, or the part of it that a slot needs; a coordinator of release 0.1 answers with the whole model."""
        query = {"job": job} | ({} if processor_id is None else {"processorId": processor_id})
        answer = await self._request("GET", "/jobModel", params=query)
        try:
            document: Mapping[str, Any] = answer.json()
            version = int(answer.headers[wire_body.MODEL_VERSION_HEADER])
            return Served(RunId(answer.headers[wire_body.RUN_HEADER]), version, wire_samza.parse_job_model(document))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("not-sluice", f"{self.url}/jobModel does not answer as a coordinator does: {error!r}") from error

    async def adopted(self, run_id: RunId, execution_id: ExecutionContainerId, epoch: Epoch, version: int) -> wire_jobmodels.AdoptedReply:
        """Report that the container runs this version of its run's job model. Idempotent."""
        body = wire_jobmodels.AdoptedRequest(version=version, epoch=epoch)
        path = f"/runs/{path_segment(run_id)}/containers/{path_segment(execution_id)}/adopted"
        return await self._read(wire_jobmodels.AdoptedReply, "POST", path, body)

    async def standby(self, run_id: RunId, execution_id: ExecutionContainerId) -> wire_jobmodels.StandbyReply:
        """The snapshots of which the container keeps standby copies."""
        return await self._read(
            wire_jobmodels.StandbyReply, "GET", f"/runs/{path_segment(run_id)}/containers/{path_segment(execution_id)}/standby"
        )

    async def acquire(
        self, run_id: RunId, task: TaskName, execution_id: ExecutionContainerId, epoch: Epoch, wait: timedelta = timedelta(0)
    ) -> wire_agents.AcquireReply | wire_agents.WaitReply:
        """Acquire a task. The coordinator waits up to `wait` for it to become free. Returns WaitReply if it does not."""
        body = wire_agents.AcquireRequest(execution_container_id=execution_id, epoch=epoch)
        timeout = (wait + TIMEOUT).total_seconds()
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/acquire"
        answer = await self._request("POST", path, body, params={"wait": wait.total_seconds()}, timeout=timeout)
        model = wire_agents.WaitReply if answer.status_code == 202 else wire_agents.AcquireReply
        return model.model_validate_json(answer.content)

    async def confirm_owner(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        """Returns if the task is still owned under that generation."""
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/owner"
        await self._request("GET", path, params={"generation": generation})

    async def progress(self, run_id: RunId, task: TaskName, body: wire_agents.ProgressRequest) -> None:
        await self._request("POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/progress", body)

    async def report_queries(self, run_id: RunId, task: TaskName, body: wire_agents.QueriesRequest) -> wire_agents.QueriesReply:
        """Report the queries of an attached job."""
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/queries"
        return await self._read(wire_agents.QueriesReply, "PUT", path, body)

    async def stage_failed(
        self,
        run_id: RunId,
        task: TaskName,
        stage: StageName,
        generation: Generation,
        error: str,
        failures: int,
        retry_seconds: float | None,
        log_place: str,
    ) -> None:
        """Report a failure of a stage; see `FailureRequest`."""
        body = wire_agents.FailureRequest(
            generation=generation,
            error=_sent(error)[:2_000],
            failures=failures,
            retry_seconds=retry_seconds,
            log=_sent(log_place)[:1_000],
        )
        await self._request("POST", f"{_stage(run_id, task, stage)}/failure", body)

    async def report_event_time(
        self, run_id: RunId, task: TaskName, generation: Generation, stage: str, event_time: datetime | None
    ) -> wire_agents.EventTimeReply:
        body = wire_agents.EventTimeRequest(generation=generation, stage=stage, event_time=event_time)
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}"
        return await self._read(wire_agents.EventTimeReply, "POST", f"{path}/event-time", body, old_path=f"{path}/pace")

    async def report_watermarks(self, run_id: RunId, body: wire_agents.WatermarksRequest) -> wire_agents.WatermarksReply | None:
        """Report watermarks. Returns None for a coordinator of the previous release, which does not support them."""
        try:
            return await self._read(wire_agents.WatermarksReply, "POST", f"/runs/{path_segment(run_id)}/watermarks", body)
        except Refused as refused:
            if refused.refused_as == "http-404":
                return None
            raise

    async def report_snapshot(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_snapshots.SnapshotRequest
    ) -> wire_snapshots.SnapshotAccepted:
        return await self._read(wire_snapshots.SnapshotAccepted, "POST", f"{_stage(run_id, task, stage)}/snapshots", body)

    async def replace_index(
        self, run_id: RunId, task: TaskName, stage: StageName, checkpoint: CommitId, body: wire_snapshots.IndexReplacement
    ) -> None:
        """Refused as `unknown-snapshot` if the snapshot is not retained any more, as `snapshot-conflict` if it has neither of the two
        indexes. A repeated request changes nothing."""
        path = f"{_stage(run_id, task, stage)}/snapshots/{path_segment(checkpoint)}/index"
        await self._read(wire_snapshots.SnapshotAccepted, "PUT", path, body)

    async def snapshots_of(self, job: JobName, task: TaskName, stage: StageName) -> wire_snapshots.SnapshotsReply:
        """The newest 200 retained snapshots of a stage, newest first."""
        query = {"task": task, "stage": stage, "limit": "200"}
        return await self._read(wire_snapshots.SnapshotsReply, "GET", f"/jobs/{path_segment(job)}/snapshots", params=query)

    async def new_lineage(
        self,
        run_id: RunId,
        task: TaskName,
        stage: StageName,
        generation: Generation,
        lineage: Lineage,
        why: str,
        checkpoint: CommitId | None = None,
    ) -> Lineage:
        """Begin the stage's next lineage, at the snapshot `checkpoint` (None: the newest). Idempotent: a repeated call with the same
        `lineage` returns the same new one."""
        body = wire_snapshots.LineageRequest(generation=generation, lineage=lineage, why=_sent(why), checkpoint_id=checkpoint)
        answer = await self._read(wire_snapshots.LineageReply, "POST", f"{_stage(run_id, task, stage)}/lineage", body)
        return Lineage(answer.lineage)

    async def drain(self, uuid: str) -> wire_drains.DrainDetail:
        return await self._read(wire_drains.DrainDetail, "GET", f"/drain/{path_segment(uuid)}")

    async def drain_step(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_drains.DrainStepRequest
    ) -> wire_drains.DrainStepReply:
        """Report a step of a drain. Refused as `unknown-drain` if the run is under another drain or none, and as `drain-too-early` if the
        drain has not reached the step's phase."""
        return await self._read(wire_drains.DrainStepReply, "POST", f"{_stage(run_id, task, stage)}/drain", body)

    async def release(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        await self._request(
            "POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/release", wire_agents.ReleaseRequest(generation=generation)
        )


def _stage(run_id: RunId, task: TaskName, stage: StageName) -> str:
    return f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/stages/{path_segment(stage)}"


def _sent(reason: str) -> str:
    """A reason in the form that the API accepts: messages of user code may contain any character and be of any length."""
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()[:10_000]


def path_segment(name: str) -> str:
    """The name as one segment of a URL's path."""
    return quote(name, safe="")


def _term_of(answer: httpx.Response) -> int:
    """The term in the answer; 0 if there is none."""
    found = answer.headers.get(wire_body.TERM_HEADER, "")
    return int(found) if found.isascii() and found.isdigit() and len(found) < 20 else 0


def _may_be_refused_for_names(answer: httpx.Response) -> bool:
    """Whether the answer is that to an unknown path or an unknown field."""
    return answer.status_code in (404, 422) and _problem(answer)[0] in ("http-404", "invalid-request")


def _error(answer: httpx.Response) -> SluiceError:
    slug, detail = _problem(answer)
    if answer.status_code >= 500:
        return CoordinatorUnavailable(f"{without_credentials(str(answer.request.url))}: {answer.status_code} {detail}")
    if slug == LeaseLost.slug:
        return LeaseLost(detail)
    return Refused(slug, detail)


def _problem(answer: httpx.Response) -> tuple[str, str]:
    """The problem's slug and detail."""
    try:
        found = wire_body.Problem.model_validate_json(answer.content)
        return found.type.removeprefix("urn:sluice:"), found.detail
    except ValidationError:
        return f"http-{answer.status_code}", answer.text[:200]


T = TypeVar("T")

RETRY_DELAY = timedelta(seconds=1)


async def until_answered(request: Callable[[], Awaitable[T]], query: str) -> T:
    """Repeat the request until the coordinator answers, without a limit: if the lease expires, the container ends."""
    while True:
        try:
            return await request()
        except CoordinatorUnreachable as error:
            log.warning("%s waits for the coordinator: %s", query, error)
            await asyncio.sleep(RETRY_DELAY.total_seconds())
