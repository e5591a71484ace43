"""The table of which role may send which request. `scripts/roles.py` writes docs/roles.md from it.

Every route is a `GuardedRoute`. It looks up its entry when the application is built, and raises KeyError if there is none. It applies the
entry before the request's body is validated. If the body names the job, the route itself checks the role, through `RequestGuard`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import State

from coordinator.api.bodies import MAX_FORM, check_size
from coordinator.api.text import check_url
from coordinator.identity.audit_log import AuditedRequest, AuditLog
from coordinator.identity.audited_state import AuditedState, state_of_job, state_of_tokens
from coordinator.identity.authentication import Authentication, Principal
from coordinator.identity.incarnations import Incarnation, Incarnations
from coordinator.store.sql import Store
from sluice.core.access.browsers import SAFE_METHODS
from sluice.core.access.certificates import PEER_CERTIFICATE
from sluice.core.access.networks import OpenNetworks
from sluice.core.access.roles import Role
from sluice.core.access.tokens import INCARNATION_PREFIX, Rights
from sluice.core.drain import DrainId
from sluice.core.errors import Forbidden, InvalidRequest, LeaseLost, NotAuthenticated, SluiceError, Unavailable
from sluice.core.ids import ExecutionContainerId, JobName, RunId, TaskName
from sluice.core.text import is_storable
from sluice.randomness import new_uuid
from sluice.wire.body import ACTOR_HEADER

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "Sluice-Request-Id"
"""On the answer to a change: the id of its event in the audit log."""

Roles = frozenset[Role]

READ: Roles = frozenset({Role.VIEWER, Role.OPERATOR, Role.DEPLOYER, Role.ADMIN})
OPERATE: Roles = frozenset({Role.OPERATOR, Role.ADMIN})
CHANGE: Roles = frozenset({Role.OPERATOR, Role.DEPLOYER, Role.ADMIN})
DEPLOY: Roles = frozenset({Role.DEPLOYER, Role.ADMIN})
ADMINISTER: Roles = frozenset({Role.ADMIN})
NO_ROLE: Roles = frozenset()
REGISTER: Roles = frozenset({Role.AGENT, Role.LAUNCHER})
START: Roles = frozenset({Role.AGENT}) | READ
LAUNCH: Roles = frozenset({Role.LAUNCHER, Role.ADMIN})
SCRAPE: Roles = READ | {Role.METRICS}


class JobSource(Enum):
    """Where a request names the job that the role must be for."""

    ALL = "none: the role must be for all jobs"
    ANY = "none: the role may be for any job"
    PATH = "the path"
    RUN = "the run in the path"
    QUERY = "the query; without it the role must be for all jobs"
    DRAIN = "the drain in the path"
    CONTAINER = "the container in the path"
    CONTAINER_QUERY = "the container in the query"
    BODY = "the body"


class ContainerAccess(Enum):
    """Which containers may send a request, with the tokens of their registration."""

    NONE = "none"
    RUN = "those of the run, or of the job"
    OWNER = "the owner of the task"
    ITSELF = "the container itself"
    FORMER = "the container itself, also when it has been replaced"


@dataclass(frozen=True, slots=True)
class Rule:
    """`unless_query`: the request needs a token only with this name in its query. `samza`: containers of Apache Samza send it, and need no
    token in the networks of the setting `samza_networks`."""

    roles: Roles
    job: JobSource
    containers: ContainerAccess = ContainerAccess.NONE
    unless_query: str = ""
    samza: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the request never needs a token."""
        return not self.roles and self.containers is ContainerAccess.NONE


OPEN = Rule(frozenset(), JobSource.ANY)

RULES: Mapping[str, Rule] = {
    # runs and jobs
    "POST /runs": Rule(DEPLOY, JobSource.BODY),
    "POST /runs/plan": Rule(READ, JobSource.BODY),
    "GET /runs": Rule(READ, JobSource.QUERY),
    "GET /runs/{runId}": Rule(START, JobSource.RUN, ContainerAccess.RUN),
    "GET /runs/{runId}/containers": Rule(READ, JobSource.RUN),
    "GET /runs/{runId}/request": Rule(READ, JobSource.RUN),
    "POST /runs/{runId}/stop": Rule(CHANGE, JobSource.RUN),
    "PATCH /runs/{runId}": Rule(CHANGE, JobSource.RUN),
    "PUT /runs/{runId}/backup": Rule(DEPLOY, JobSource.RUN),
    "GET /jobs": Rule(READ, JobSource.ANY),
    "DELETE /jobs/{job}": Rule(ADMINISTER, JobSource.PATH),
    "GET /jobs/{job}/events": Rule(READ, JobSource.PATH),
    # containers
    "GET /runs/{runId}/notices": Rule(READ, JobSource.RUN, ContainerAccess.RUN),
    "POST /runs/{runId}/containers": Rule(REGISTER, JobSource.RUN),
    "POST /containers/{executionContainerId:path}/exit": Rule(LAUNCH, JobSource.CONTAINER, ContainerAccess.FORMER),
    "POST /containers/{executionContainerId:path}/invalidate": Rule(LAUNCH, JobSource.CONTAINER),
    "GET /containerHeartbeat": Rule(NO_ROLE, JobSource.CONTAINER_QUERY, ContainerAccess.FORMER, samza=True),
    "POST /runs/{runId}/tasks/{task}/acquire": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.RUN),
    "GET /runs/{runId}/tasks/{task}/owner": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.RUN),
    "POST /runs/{runId}/tasks/{task}/progress": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "PUT /runs/{runId}/tasks/{task}/queries": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/tasks/{task}/release": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/watermarks": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.RUN),
    "PUT /runs/{runId}/tasks/{task}/stages/{stage}/checkpoint": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/tasks/{task}/stages/{stage}/failure": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/tasks/{task}/stages/{stage}/drain": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/tasks/{task}/stages/{stage}/snapshots": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "PUT /runs/{runId}/tasks/{task}/stages/{stage}/snapshots/{checkpointId}/index": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/tasks/{task}/stages/{stage}/lineage": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.OWNER),
    "POST /runs/{runId}/containers/{executionContainerId:path}/adopted": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.ITSELF),
    "GET /runs/{runId}/containers/{executionContainerId:path}/standby": Rule(READ, JobSource.RUN, ContainerAccess.ITSELF),
    "GET /runs/{runId}/blob-stores/{blobStore}/credentials": Rule(NO_ROLE, JobSource.RUN, ContainerAccess.RUN),
    # job models
    "GET /jobModel": Rule(READ, JobSource.QUERY, ContainerAccess.RUN, samza=True),
    "GET /locality": Rule(READ, JobSource.QUERY, ContainerAccess.RUN, samza=True),
    "POST /jobModel/plan": Rule(READ, JobSource.BODY),
    "GET /jobs/{job}/models": Rule(READ, JobSource.PATH),
    "GET /jobs/{job}/models/{version}": Rule(READ, JobSource.PATH),
    "GET /jobs/{job}/models/{version}/diff/{later}": Rule(READ, JobSource.PATH),
    "POST /jobs/{job}/models/{version}/rollback": Rule(CHANGE, JobSource.PATH),
    # clients of Apache Samza
    "GET /": Rule(READ, JobSource.ALL, ContainerAccess.RUN, samza=True),
    "GET /jobs/{job}/": Rule(READ, JobSource.PATH, ContainerAccess.RUN, samza=True),
    "GET /jobs/{job}/containerHeartbeat": Rule(NO_ROLE, JobSource.CONTAINER_QUERY, ContainerAccess.FORMER, samza=True),
    "GET /jobs/{job}/locality": Rule(READ, JobSource.PATH, ContainerAccess.RUN, samza=True),
    # drains
    "POST /drain": Rule(CHANGE, JobSource.BODY),
    "POST /drain/plan": Rule(READ, JobSource.BODY),
    "GET /drain/{uuid}": Rule(READ, JobSource.DRAIN, ContainerAccess.RUN),
    "DELETE /drain/{uuid}": Rule(CHANGE, JobSource.DRAIN),
    "GET /drains": Rule(READ, JobSource.QUERY, ContainerAccess.RUN),
    # snapshots and blob stores
    "GET /jobs/{job}/snapshots": Rule(READ, JobSource.PATH, ContainerAccess.RUN),
    "GET /jobs/{job}/snapshots/{checkpointId}": Rule(READ, JobSource.PATH),
    "POST /jobs/{job}/snapshots/verify": Rule(OPERATE, JobSource.PATH),
    "POST /jobs/{job}/snapshots/{checkpointId}/verify": Rule(OPERATE, JobSource.PATH),
    "POST /jobs/{job}/snapshots/{checkpointId}/restore": Rule(OPERATE, JobSource.PATH),
    "GET /jobs/{job}/pins": Rule(READ, JobSource.PATH),
    "POST /jobs/{job}/pins": Rule(CHANGE, JobSource.PATH),
    "DELETE /jobs/{job}/pins/{pinId}": Rule(CHANGE, JobSource.PATH),
    "POST /gc/plan": Rule(OPERATE, JobSource.ALL),
    "POST /gc/audit": Rule(OPERATE, JobSource.ALL),
    "POST /gc/run": Rule(ADMINISTER, JobSource.ALL),
    "GET /gc/explain": Rule(READ, JobSource.ALL),
    "GET /operations/{operation}": Rule(READ, JobSource.ANY),
    # tokens
    "POST /tokens": Rule(ADMINISTER, JobSource.ALL),
    "GET /tokens": Rule(ADMINISTER, JobSource.ALL),
    "DELETE /tokens/{tokenId}": Rule(ADMINISTER, JobSource.ALL),
    "DELETE /sessions/{principal}": Rule(ADMINISTER, JobSource.ALL),
    "GET /identity-providers": OPEN,
    "GET /audit-log": Rule(ADMINISTER, JobSource.ALL),
    # tools
    "GET /metrics": Rule(SCRAPE, JobSource.ALL),
    "HEAD /metrics": Rule(SCRAPE, JobSource.ALL),
    "GET /prometheus/targets": Rule(SCRAPE, JobSource.ALL),
    "GET /livez": OPEN,
    "HEAD /livez": OPEN,
    "GET /readyz": Rule(READ, JobSource.ANY, unless_query="verbose"),
    "HEAD /readyz": Rule(READ, JobSource.ANY, unless_query="verbose"),
    # the web pages; a page or an action of one job also needs a role for that job
    "GET /ui": OPEN,
    "GET /ui/static/{file}": OPEN,
    "POST /ui/login": OPEN,
    "GET /ui/login/{provider}": OPEN,
    "GET /ui/login/{provider}/callback": OPEN,
    "POST /ui/logout": OPEN,
    "GET /ui/events": Rule(READ, JobSource.ANY),
    "GET /ui/actions/{name}": Rule(READ, JobSource.ANY),
    "POST /ui/actions/{name}": Rule(CHANGE, JobSource.ANY),
    "GET /ui/{path:path}": Rule(READ, JobSource.ANY),
    # API documentation: contains no data of jobs
    "GET /docs": OPEN,
    "GET /docs/{file}": OPEN,
    "GET /openapi.json": OPEN,
}
"""Method and path of each route -> its rule."""


class Access:
    """Applies the table. The jobs of runs, drains and containers are read from `store`."""

    def __init__(
        self,
        authentication: Authentication,
        incarnations: Incarnations,
        audit_log: AuditLog,
        store: Store,
        samza_networks: OpenNetworks,
        only_job: Callable[[], JobName],
    ) -> None:
        self.authentication = authentication
        self.audit_log = audit_log
        self._samza_networks = samza_networks
        self._only_job = only_job
        self._incarnations = incarnations
        self._store = store
        self._jobs: dict[RunId, JobName] = {}
        self._bare: dict[str, JobName] = {}

    async def admit(self, request: Request, rule: Rule) -> None:
        """Check that the principal has one of the roles, or that the container may send the request. Set `principal` or `container` in the
        request's state. Raises NotAuthenticated, TooManyBadTokens, Forbidden, LeaseLost."""
        request.state.principal = request.state.container = None
        is_open = rule.is_open or (rule.unless_query != "" and rule.unless_query not in request.query_params)
        if not self.authentication.required or is_open:
            return
        address = request.client.host if request.client else ""
        authorization, session_id = request.headers.getlist("authorization"), session_of(request)
        if session_id and not authorization:
            await self._admit_principal(request, rule, self.authentication.of_session(session_id))
            return
        certificate = getattr(request.state, PEER_CERTIFICATE, None)
        if certificate is not None and not authorization:
            holder = self.authentication.of_certificate(certificate)
            if holder is not None:
                await self._admit_principal(request, rule, holder)
                return
        if rule.samza and not authorization and await self._is_of_samza(request, rule, address):
            return
        token = self.authentication.token_of(authorization, address)
        if token.startswith(INCARNATION_PREFIX):
            container = request.state.container = await self._incarnations.find(token)
            if container is None:
                raise self.authentication.refusal("", address)
            await self._admit_container(request, rule, container)
            return
        await self._admit_principal(request, rule, await self.authentication.identify(token, address))

    async def _is_of_samza(self, request: Request, rule: Rule, address: str) -> bool:
        """Whether the request may be that of a container of Apache Samza in a network that is open to its job. Heartbeats are admitted for
        bare containers only, and for containers that do not exist, because Samza's client expects an answer with status 200."""
        if not self._samza_networks.admit_any(address):
            return False
        if rule.job is not JobSource.CONTAINER_QUERY:
            job = await self._job(request, rule.job)
            if job is None and "job" not in request.query_params:
                job = self._only_job()
            return job is not None and self._samza_networks.admit(address, job)
        named = request.query_params.getlist("executionContainerId")
        if len(named) != 1:
            return False
        if named[0] not in self._bare:  # so that heartbeats are answered while the database is unavailable
            async with self._store.read() as tx:
                container = await tx.fleet.container(ExecutionContainerId(named[0]))
            if container is None or not container.bare:
                return container is None
            if len(self._bare) >= MAX_REMEMBERED:
                self._bare.clear()
            self._bare[named[0]] = container.job
        return self._samza_networks.admit(address, self._bare[named[0]])

    async def _admit_principal(self, request: Request, rule: Rule, principal: Principal) -> None:
        request.state.principal = principal
        rights = request.state.rights = principal.rights.of(rule.roles)
        if not rights.grants:
            needed = f"one of the roles {', '.join(sorted(rule.roles))}" if rule.roles else "the token of a registered container"
            raise Forbidden(f"{_shown(principal)}: {needed} is needed")
        if rule.job not in (JobSource.ANY, JobSource.BODY) and not rights.covers_all_jobs:
            check_job(principal, rights, await self._job(request, rule.job))

    async def _admit_container(self, request: Request, rule: Rule, container: Incarnation) -> None:
        if rule.containers is ContainerAccess.NONE:
            raise Forbidden(f"container {container.execution_id} has a container token, which is not accepted for this request")
        if rule.containers is not ContainerAccess.FORMER and not container.valid:
            raise LeaseLost(f"container {container.execution_id} was replaced or lost: another one may have its tasks")
        match rule.containers:
            case ContainerAccess.ITSELF | ContainerAccess.FORMER:
                path, query = request.path_params, request.query_params
                own = [path["executionContainerId"]] if "executionContainerId" in path else query.getlist("executionContainerId")
                if own != [container.execution_id]:
                    raise Forbidden(f"container {container.execution_id} may not act for another one")
            case _:
                await self._check_place(request, rule, container)
        if rule.containers is ContainerAccess.OWNER:
            await self._check_owner(container, TaskName(request.path_params["task"]))

    async def _check_place(self, request: Request, rule: Rule, container: Incarnation) -> None:
        if rule.job is JobSource.RUN:
            mine = request.path_params["runId"] == container.run_id
        else:
            mine = await self._job(request, rule.job) == container.job
        if not mine:
            raise Forbidden(f"container {container.execution_id} may act for its own run {container.run_id} only")

    async def _check_owner(self, container: Incarnation, task: TaskName) -> None:
        """The route also checks the generation, but another container could guess that number. Raises LeaseLost."""
        async with self._store.read() as tx:
            found = await tx.fleet.owner(container.job, task)
        if found is not None and found.owner.holder != container.execution_id:
            raise LeaseLost(f"task {task} of job {container.job} is not owned by container {container.execution_id}")

    def still_valid(self, request: Request) -> None:
        """Check the token again when the answer to a read is ready. Raises NotAuthenticated if it was revoked in the meantime."""
        principal: Principal | None = request.state.principal
        if principal is not None and request.method == "GET" and not self.authentication.is_valid(principal):
            raise NotAuthenticated("the token was revoked while the request waited")

    async def _job(self, request: Request, job: JobSource) -> JobName | None:
        """The job that the request names. None if it names no job, or an object that does not exist."""
        path, query = request.path_params, request.query_params
        match job:
            case JobSource.PATH:
                return JobName(path["job"])
            case JobSource.QUERY:
                return JobName(query["job"]) if len(query.getlist("job")) == 1 else None
            case JobSource.RUN:
                return await self.job_of_run(RunId(path["runId"]))
            case JobSource.CONTAINER:
                return await self._job_of_container(path["executionContainerId"])
            case JobSource.CONTAINER_QUERY:
                named = query.getlist("executionContainerId")
                return await self._job_of_container(named[0]) if len(named) == 1 else None
            case JobSource.DRAIN:
                async with self._store.read() as tx:
                    drain = await tx.drains.get(DrainId(path["uuid"]))
                return None if drain is None else drain.job
            case _:
                return None

    async def job_named(self, request: Request, rule: Rule) -> str:
        """The job that the request names outside its body, for the audit log; "" if none."""
        return _stored_job(await self._job(request, rule.job) or "")

    async def job_in_body(self, request: Request) -> str:
        """The job that a JSON body or a form names with `job` or `runId`, for the audit log; "" if none. The body is not validated."""
        fields = _fields_of(await request.body())
        if fields.get("job"):
            return _stored_job(fields["job"])
        run_id = fields.get("runId") or fields.get("run_id") or fields.get("run") or ""
        return _stored_job(await self.job_of_run(RunId(run_id)) or "") if run_id and is_storable(run_id) else ""

    async def audited_state(self, attempt: AuditedRequest, job: str) -> AuditedState:
        """The state of what the request may change. Raises StoreUnavailable."""
        if attempt.action.endswith("/tokens") or "/tokens/" in attempt.action:
            return state_of_tokens(self.authentication.tokens.all())
        if not job:
            return {}
        async with self._store.read() as tx:
            return await state_of_job(tx, JobName(job), with_snapshots=not attempt.action.startswith("POST /containers/"))

    async def job_of_run(self, run_id: RunId) -> JobName | None:
        if run_id not in self._jobs:
            async with self._store.read() as tx:
                run = await tx.runs.get(run_id)
            if run is None:
                return None
            if len(self._jobs) >= MAX_REMEMBERED:
                self._jobs.clear()
            self._jobs[run_id] = run.job
        return self._jobs[run_id]

    async def _job_of_container(self, execution_id: str) -> JobName | None:
        async with self._store.read() as tx:
            container = await tx.fleet.container(ExecutionContainerId(execution_id))
        return None if container is None else container.job


def check_job(principal: Principal, rights: Rights, job: JobName | None) -> None:
    """`rights`: those of the principal that allow the request. Raises Forbidden."""
    if job is None:
        raise Forbidden(f"{_shown(principal)}: the request names no known job, so a role for all jobs is needed")
    if not rights.covers(job):
        raise Forbidden(f"{_shown(principal)}: a role for the job {job} is needed")


COOKIE = "sluice_session"


def session_of(request: Request) -> str:
    """The session id that a browser was given by `POST /ui/login`, for the web pages only; "" without one."""
    return request.cookies.get(COOKIE, "") if request.scope["path"].startswith("/ui/") else ""


def _printable(path: str) -> str:
    """The path with unprintable characters percent-encoded. NUL cannot be stored, and a line break would start a new line in the log."""
    return "".join(each if each.isprintable() else quote(each, errors="backslashreplace") for each in path)


MAX_REMEMBERED = 10_000
"""Maximum number of runs whose job is cached."""


def _shown(principal: Principal) -> str:
    grants = [f"the roles {', '.join(sorted(each.roles))} for the jobs {', '.join(each.jobs)}" for each in principal.rights.grants]
    return f"{principal.name} has {', and '.join(grants) or 'no role'}"


class GuardedRoute(APIRoute):
    """A route that applies its entry of the table. Raises KeyError if it has none."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        [method] = sorted(self.methods or ())
        route = f"{method} {self.path}"
        rule = RULES[route]
        recorded = method not in SAFE_METHODS and bool(rule.roles) and route not in NOT_RECORDED

        async def guarded(request: Request) -> Response:
            access: Access = request.app.state.access
            request.state.named_job = ""
            check_url(request)
            try:
                await access.admit(request, rule)
            except Forbidden as refusal:
                job = await access.job_named(request, rule)
                await access.audit_log.refused(attempt_of(request, route, job), refusal.status, str(refusal))
                raise
            await check_size(request)
            if recorded:
                named = await access.job_named(request, rule) or await access.job_in_body(request)
                return await recorded_answer(access, attempt_of(request, route, named), answer, request)
            answered = await answer(request)
            access.still_valid(request)
            return answered

        return guarded


NOT_RECORDED = frozenset({"POST /runs/plan", "POST /jobModel/plan", "POST /drain/plan", "POST /runs/{runId}/containers"})
"""Routes that are not in the audit log: those that change nothing, and registrations, which the list of containers shows."""


async def recorded_answer(
    access: Access, attempt: AuditedRequest, answer: Callable[[Request], Coroutine[Any, Any, Response]], request: Request
) -> Response:
    """Answer a request for a change, and record it before and after. Raises StoreUnavailable or AuditUnavailable if the first record cannot
    be written."""
    began = await access.audit_log.begin(attempt, await access.audited_state(attempt, attempt.job))
    status, reason = 500, "bug"
    try:
        answered = await answer(request)
        status, reason = answered.status_code, ""
        answered.headers[REQUEST_ID_HEADER] = attempt.request_id
        return answered
    except SluiceError as error:
        status, reason = error.status, error.slug
        raise
    except RequestValidationError:
        status, reason = InvalidRequest.status, InvalidRequest.slug
        raise
    except HTTPException as error:
        status, reason = error.status_code, ""
        raise
    finally:
        job = _stored_job(request.state.named_job) or attempt.job
        try:
            await access.audit_log.end(began, status, reason, job, await access.audited_state(attempt, job))
        except Unavailable as error:
            log.error("cannot record status %d of event %d in the audit log: %s", status, began.seq, error)


def _stored_job(job: str) -> str:
    """The name of a job as it is stored; "" for text that cannot be one."""
    return job if job.isprintable() and len(job) <= 300 else ""


def _fields_of(body: bytes) -> Mapping[str, str]:
    """The text fields of a JSON object or of a form; none of any other body."""
    if body[:1] != b"{" and len(body) > MAX_FORM:
        return {}
    try:
        found = json.loads(body) if body[:1] == b"{" else dict(parse_qsl(body.decode()))
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str) and is_storable(value)}


def attempt_of(request: Request, route: str, job: str = "") -> AuditedRequest:
    principal: Principal | None = request.state.principal
    container: Incarnation | None = request.state.container
    if container is not None:
        actor = f"container {container.execution_id}"
    else:
        actor = principal.name if principal is not None else request.headers.get(ACTOR_HEADER, "")[:200]
    known = principal is not None or container is not None
    source = request.client.host if request.client else ""
    return AuditedRequest(actor, known, source, route, _printable(request.scope["path"]), new_uuid().hex, job)


async def get_access(request: Request) -> Access:
    access: Access = request.app.state.access
    return access


class RequestGuard:
    """Checks that a route makes itself, because the body names the job. Without authentication every check succeeds. `rights`: those of the
    principal that allow the request."""

    def __init__(self, access: Access, state: State) -> None:
        self._access = access
        self._state = state
        self._principal: Principal | None = getattr(state, "principal", None)
        self._rights: Rights = getattr(state, "rights", Rights(()))
        self._container: Incarnation | None = getattr(state, "container", None)

    @property
    def name(self) -> str:
        """The name of the principal; "" without authentication."""
        return "" if self._principal is None else self._principal.name

    @property
    def container(self) -> ExecutionContainerId | None:
        """The container that sends the request; None if it is not authenticated as one."""
        return None if self._container is None else self._container.execution_id

    @property
    def by_principal(self) -> bool:
        """Whether an authenticated principal sends the request: not a container, and not a client without authentication."""
        return self._principal is not None

    def is_admin(self, job: str) -> bool:
        """Whether the principal has the role admin for the job."""
        return self._principal is None or self._principal.rights.of(ADMINISTER).covers(JobName(job))

    async def job(self, job: str) -> None:
        """Raises Forbidden if the principal has no role for the job. The event of the request in the audit log names the job."""
        self._state.named_job = job
        if self._principal is not None and not self._rights.covers_all_jobs:
            check_job(self._principal, self._rights, JobName(job))

    @property
    def jobs(self) -> tuple[str, ...]:
        """The patterns of the jobs that the principal may see."""
        return ("*",) if self._principal is None or self._rights.covers_all_jobs else self._rights.jobs

    async def all_jobs(self) -> None:
        if self._principal is not None and not self._rights.covers_all_jobs:
            raise Forbidden(f"{_shown(self._principal)}: a role for all jobs is needed")

    def needing(self, roles: Roles) -> RequestGuard:
        """The guard of an operation that needs one of the roles. Raises Forbidden if the principal has none of them."""
        if self._principal is None:
            return self
        narrowed = RequestGuard(self._access, self._state)
        narrowed._rights = self._principal.rights.of(roles)
        if not narrowed._rights.grants:
            raise Forbidden(f"{_shown(self._principal)}: one of the roles {', '.join(sorted(roles))} is needed")
        return narrowed

    def valid(self) -> bool:
        """Whether the principal's token and session are still valid."""
        return self._principal is None or self._access.authentication.is_valid(self._principal)

    async def run(self, run_id: str) -> None:
        """Raises Forbidden if the principal has no role for the job of the run. The event of the request in the audit log names the job."""
        job = await self._access.job_of_run(RunId(run_id))
        self._state.named_job = job or ""
        if self._principal is not None and not self._rights.covers_all_jobs:
            check_job(self._principal, self._rights, job)

    def shows(self, job: str) -> bool:
        """Whether the job is listed for the principal."""
        return self._principal is None or self._rights.covers(JobName(job))

    async def launcher(self, run_id: str) -> None:
        """Raises Forbidden if the principal is not a launcher of the run's job."""
        if self._principal is None:
            return
        launching = self._principal.rights.of(LAUNCH)
        if not launching.grants:
            raise Forbidden(f"{_shown(self._principal)}: only a launcher registers bare containers")
        if not launching.covers_all_jobs:
            check_job(self._principal, launching, await self._access.job_of_run(RunId(run_id)))

    def itself(self, execution_id: str) -> None:
        """Raises Forbidden if the container that sends the request is another one."""
        if self._container is not None and self._container.execution_id != execution_id:
            raise Forbidden(f"container {self._container.execution_id} may not act for another one")


async def get_request_guard(request: Request) -> RequestGuard:
    return RequestGuard(request.app.state.access, request.state)


AccessDep = Annotated[Access, Depends(get_access)]
RequestGuardDep = Annotated[RequestGuard, Depends(get_request_guard)]
