"""The HTTP client for the coordinator's API. Problem responses (RFC 9457) are raised as the errors of `sluice.core.errors`.

`CoordinatorClient` has what all clients share, and the calls that both agents and operators make. `sluice.client.agents` and
`sluice.client.operators` have the others. `until_answered` repeats a call until the coordinator can be reached.

**Several URLs** of one coordinator may be given. A request that cannot connect to one is sent to the next, and the client remembers which
one answers. Requests are sent to no other URL: redirects are not followed."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from sluice import tracing
from sluice.client.connection import (
    CONNECT_WITHIN,
    NO_RETRIES,
    NOT_CONNECTED,
    RETRY_DELAY,
    TIMEOUT,
    Addresses,
    Retries,
    proxy,
    through,
    urls_of,
)
from sluice.client.tls import TlsFiles
from sluice.clock import SystemClock
from sluice.core.access.credentials import without_credentials
from sluice.core.drain import Mode
from sluice.core.errors import BadSettings, ClientError, CoordinatorUnavailable, CoordinatorUnreachable, LeaseLost, SluiceError
from sluice.core.ids import RunId
from sluice.core.jobmodels.model import JobModel
from sluice.core.leases.lease import KnownTerm
from sluice.logins import token_for
from sluice.renewals.versions import FileVersion, version_of
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs
from sluice.wire import samza as wire_samza

log = logging.getLogger(__name__)

R = TypeVar("R", bound=BaseModel)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

IDLE_CONNECTION = timedelta(seconds=5)
"""How long the coordinator keeps an idle connection open. Also the default of httpx."""


TOKEN, TOKEN_FILE = "SLUICE_TOKEN", "SLUICE_TOKEN_FILE"
"""Variables with the token of this process, and with the name of a file that contains it."""


class EnvironmentToken:
    """The token of `SLUICE_TOKEN`, or of the file `SLUICE_TOKEN_FILE`, which is read again when it has changed, because platforms renew
    such files. If neither is set, that of `sluice login` for the coordinator at `url`, or for the first of several; "" if there is none."""

    def __init__(self, url: str = "") -> None:
        self._url = url
        self._version: FileVersion | None = None
        self._token = ""

    def __call__(self) -> str:
        """Raises BadSettings if the file cannot be read and could not be read before, and the errors of `logins.token_for`."""
        if TOKEN in os.environ:
            return os.environ[TOKEN].strip()
        if not os.environ.get(TOKEN_FILE):
            tokens = (token_for(each, SystemClock()) for each in (urls_of(self._url) if self._url else ()))
            return next((each for each in tokens if each), "")
        file = Path(os.environ[TOKEN_FILE])
        try:
            found = version_of(file)
            if found != self._version:
                self._token, self._version = file.read_text().strip(), found
        except (OSError, UnicodeDecodeError) as error:
            if self._version is None:
                raise BadSettings(f"{TOKEN_FILE}: {file} cannot be read: {error}") from error
            log.warning("%s: cannot read %s; using the former token", TOKEN_FILE, file)
        return self._token


def actor_headers() -> dict[str, str]:
    """The header with the user of this process."""
    return {wire_body.ACTOR_HEADER: user_name()}


def user_name() -> str:
    """The user of this process, in printable ASCII; "" if unknown."""
    try:
        return re.sub(r"[^\x20-\x7e]", "?", getpass.getuser())[:200].strip()
    except (OSError, KeyError):
        return ""


class Refused(ClientError):
    """The coordinator refused the request.

    `refused_as`: the slug of the problem."""

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

    def __init__(
        self,
        url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        token: Callable[[], str] | None = None,
        retries: Retries = NO_RETRIES,
    ) -> None:
        """`url`: one, or several separated by commas. `token` returns the token that requests carry, "" for none. Default: that of the
        environment."""
        urls = urls_of(url)
        self.url = ",".join(map(without_credentials, urls))
        """Without credentials, for messages."""
        self._token = token or EnvironmentToken(url)
        self._incarnation_token = ""
        self._retries = retries
        self._addresses = Addresses(len(urls))
        self._tls = TlsFiles()
        self._proxy = proxy()

        def connections(to: str) -> httpx.AsyncBaseTransport:
            return transport or httpx.AsyncHTTPTransport(verify=self._tls.verified(to), proxy=self._proxy)

        self._https = [httpx.AsyncClient(base_url=each, timeout=TIMEOUT.total_seconds(), transport=connections(each)) for each in urls]
        self._term = KnownTerm()
        self._beats_every = timedelta(0)

    def act_as(self, incarnation_token: str) -> None:
        """Send the token of a container's registration with all requests from now on."""
        self._incarnation_token = incarnation_token

    async def close(self) -> None:
        for each in self._https:
            await each.aclose()

    async def _request(self, method: str, path: str, body: BaseModel | None = None, **kwargs: Any) -> httpx.Response:
        answer = await self._send(method, path, body, **kwargs)
        if answer.status_code >= 400:
            raise _error(answer)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        headers: Mapping[str, str] = NO_HEADERS,
        repeatable: bool | None = None,
        **kwargs: Any,
    ) -> httpx.Response:
        """`repeatable`: whether the request may arrive twice. Default: those of GET and PUT."""
        content = body.model_dump_json(by_alias=True) if body is not None else None
        own = {"Content-Type": "application/json", **tracing.headers()} if body is not None else {}
        may_repeat = method in ("GET", "PUT") if repeatable is None else repeatable
        loop = asyncio.get_running_loop()
        pause = self._retries.pause.total_seconds()
        end = loop.time() + self._retries.within.total_seconds()
        while True:
            if self._term.highest:
                own[wire_body.TERM_HEADER] = str(self._term.highest)
            carried = {**own, **self._authorization(), **headers}
            try:
                answer = await self._exchange(method, path, content=content, headers=carried, **kwargs)
                if not may_repeat or answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or loop.time() + pause >= end:
                    return answer
            except CoordinatorUnreachable as error:
                if not (may_repeat or isinstance(error.__cause__, NOT_CONNECTED)) or loop.time() + pause >= end:
                    raise
            await asyncio.sleep(pause)

    async def _exchange(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """Send the request once, to the first URL that can be connected to."""
        if len(self._https) > 1:
            seconds = kwargs.pop("timeout", TIMEOUT.total_seconds())
            kwargs["timeout"] = httpx.Timeout(seconds, connect=min(seconds, CONNECT_WITHIN.total_seconds()))
        *others, last = self._addresses.in_turn()
        for number in others:
            try:
                return await self._ask(number, method, path, **kwargs)
            except CoordinatorUnreachable as error:
                if not isinstance(error.__cause__, NOT_CONNECTED):
                    raise
        return await self._ask(last, method, path, **kwargs)

    async def _ask(self, number: int, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """Send the request once, to the URL of that number."""
        http = self._https[number]
        self._tls.refresh()
        try:
            answer = await http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            self._addresses.failed(number)
            via = through(self._proxy)
            raise CoordinatorUnreachable(f"{self.url}{via}: {type(error).__name__} {without_credentials(str(error))}".rstrip()) from error
        except httpx.InvalidURL as error:
            raise Refused("bad-url", f"{self.url} is not a coordinator's URL: {error}") from error
        term = _term_of(answer)
        if answer.status_code >= 500:  # a proxy answers with 5xx and without a term
            self._addresses.failed(number)
        elif self._term.accepts(term):
            self._addresses.answered(number)
        else:
            self._addresses.failed(number)
            former = without_credentials(str(http.base_url)).rstrip("/")
            raise CoordinatorUnreachable(
                f"{former} was answered by a former coordinator with term {term}; one with term {self._term.highest} has replaced it"
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
        """Return if the coordinator answers."""
        await self._request("GET", "/livez")

    async def jobs(self) -> wire_runs.JobsReply:
        """All jobs, from all pages."""
        found: list[wire_runs.JobReply] = []
        page = await self._read(wire_runs.JobsReply, "GET", "/jobs")
        while page.next is not None:
            found += page.jobs
            page = await self._read(wire_runs.JobsReply, "GET", "/jobs", params={"after": page.next})
        return wire_runs.JobsReply(jobs=(*found, *page.jobs))

    async def runs(self, job: str, limit: int = 200, before: str | None = None) -> wire_runs.RunsReply:
        """Up to `limit` runs of the job, newest first; only those older than `before`."""
        query = {"job": job, "limit": limit} | ({"before": before} if before else {})
        return await self._read(wire_runs.RunsReply, "GET", "/runs", params=query)

    async def deploy(self, request: wire_runs.RunRequest, replaces: str | None = None) -> wire_runs.RunReply:
        """Deploy a run; with `replaces`, only if that is the job's current run; otherwise refused as `NotTheCurrentRun`."""
        headers = actor_headers() | ({} if replaces is None else {wire_body.REPLACES_HEADER: str(replaces)})
        return await self._read(wire_runs.RunReply, "POST", "/runs", request, headers=headers)

    async def plan_run(self, request: wire_runs.RunRequest, after: Mode = Mode.DEFAULT) -> wire_runs.RunPlanReply:
        """What deploying this would create, with the start "drained" `after` a drain of that mode. Changes nothing."""
        query = {} if after is Mode.DEFAULT else {"drainMode": after.value}
        return await self._read(wire_runs.RunPlanReply, "POST", "/runs/plan", request, params=query, repeatable=True)

    async def request_of(self, run_id: str) -> wire_runs.RunRequest:
        """The request that created a run."""
        return await self._read(wire_runs.RunRequest, "GET", f"/runs/{path_segment(run_id)}/request")

    async def run(self, run_id: str) -> wire_runs.RunDetail:
        """The run, with its containers and tasks, and what each task has committed."""
        return await self._read(wire_runs.RunDetail, "GET", f"/runs/{path_segment(run_id)}")

    async def basic_run(self, run_id: RunId) -> wire_runs.BasicRun:
        """The details of a run that a container needs."""
        query = {"view": wire_runs.RunView.BASIC.value}
        return await self._read(wire_runs.BasicRun, "GET", f"/runs/{path_segment(run_id)}", params=query)

    async def run_with_vacant_slots(self, run_id: RunId) -> wire_runs.BasicRun:
        """Like `basic_run`, with the slots that have no valid container."""
        query = {"view": wire_runs.RunView.SLOTS.value}
        return await self._read(wire_runs.BasicRun, "GET", f"/runs/{path_segment(run_id)}", params=query)

    async def containers(self, run: wire_runs.RunDetail) -> Sequence[wire_runs.ContainerReply]:
        """All recorded containers of the run."""
        found: list[wire_runs.ContainerReply] = []
        after: str | None = None
        while True:
            query = {"limit": 200} | ({"after": after} if after else {})
            page = await self._read(wire_runs.ContainersReply, "GET", f"/runs/{path_segment(run.run_id)}/containers", params=query)
            found += page.containers
            after = page.next
            if after is None:
                return found

    async def stop_run(self, run_id: str, reason: str, *, failed: bool = False) -> wire_runs.RunReply:
        """Stop all containers of the run between batches. `failed`: the run then ends as failed."""
        return await self._read(
            wire_runs.RunReply,
            "POST",
            f"/runs/{path_segment(run_id)}/stop",
            wire_runs.StopRequest(reason=sendable(reason), failed=failed),
            repeatable=True,
        )

    async def notices(self, run_id: str, after: int = 0, wait: timedelta = timedelta(0)) -> Sequence[wire_body.Notice]:
        """The notices of the run with numbers above `after`. The coordinator waits up to `wait` for one."""
        timeout = (wait + TIMEOUT).total_seconds()
        query = {"after": after, "wait": wait.total_seconds()}
        return (
            await self._read(wire_body.NoticesReply, "GET", f"/runs/{path_segment(run_id)}/notices", params=query, timeout=timeout)
        ).notices

    async def job_model(self, job: str, processor_id: str | None = None) -> Served:
        """The job's model, or the part of it that a slot needs."""
        query = {"job": job} | ({} if processor_id is None else {"processorId": processor_id})
        answer = await self._request("GET", "/jobModel", params=query)
        try:
            document: Mapping[str, Any] = answer.json()
            version = int(answer.headers[wire_body.MODEL_VERSION_HEADER])
            return Served(RunId(answer.headers[wire_body.RUN_HEADER]), version, wire_samza.parse_job_model(document))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("not-sluice", f"{self.url}/jobModel does not answer as a coordinator does: {error!r}") from error

    async def drain(self, uuid: str) -> wire_drains.DrainDetail:
        """One drain: its phases, its tasks, and what blocks it."""
        return await self._read(wire_drains.DrainDetail, "GET", f"/drain/{path_segment(uuid)}")

    async def drains(self, job: str, limit: int = 200) -> Sequence[wire_drains.DrainSummary]:
        """Up to `limit` drains of the job, newest first."""
        return (await self._read(wire_drains.DrainsReply, "GET", "/drains", params={"job": job, "limit": limit})).drains


def sendable(reason: str) -> str:
    """A reason in the form that the API accepts: messages of user code may contain any character and be of any length."""
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()[:10_000]


def path_segment(name: str) -> str:
    """The name as one segment of a URL's path."""
    return quote(name, safe="")


def _term_of(answer: httpx.Response) -> int:
    """The term in the answer; 0 if there is none."""
    found = answer.headers.get(wire_body.TERM_HEADER, "")
    return int(found) if found.isascii() and found.isdigit() and len(found) < 20 else 0


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


async def until_answered(request: Callable[[], Awaitable[T]], query: str) -> T:
    """Repeat the request until the coordinator answers, without a limit: if the lease expires, the container ends."""
    while True:
        try:
            return await request()
        except CoordinatorUnreachable as error:
            log.warning("%s waits for the coordinator: %s", query, error)
            await asyncio.sleep(RETRY_DELAY.total_seconds())
