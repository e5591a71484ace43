"""The calls of operators: `OperatorClient` for the command line, and `AsyncClient` for programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Self

import httpx

from sluice.client.connection import LOCAL, TIMEOUT, URL, Retries
from sluice.client.coordinator import CoordinatorClient, actor_headers, path_segment
from sluice.wire import access as wire_access
from sluice.wire import drains as wire_drains
from sluice.wire import events as wire_events
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import runs as wire_runs
from sluice.wire import snapshots as wire_snapshots

POLL = timedelta(seconds=0.5)
"""Duration of one long poll of an operation, and therefore the update interval of its progress bar."""

PAGE = 200
"""Entries of a page of a list that is read whole."""

HEAD = "head"
"""Stands for the id of the snapshot that the stage continues from."""


class OperatorClient(CoordinatorClient):
    """The calls of operators, without repetitions. Methods raise the errors of `CoordinatorClient`."""

    # --- runs ------------------------------------------------------------------------------------------------------

    async def set_backup(self, run_id: str, request: wire_snapshots.BackupRequest) -> wire_snapshots.BackupReply:
        """Set the blob stores that the run backs up to and restores from."""
        return await self._read(wire_snapshots.BackupReply, "PUT", f"/runs/{path_segment(run_id)}/backup", request)

    # --- drains ----------------------------------------------------------------------------------------------------

    async def request_drain(self, request: wire_drains.DrainRequest) -> wire_drains.DrainSummary:
        """Drain a run. A repeated request is answered with the drain that the first one started."""
        return await self._read(wire_drains.DrainSummary, "POST", "/drain", request, repeatable=True)

    async def plan_drain(self, run_id: str) -> wire_drains.DrainPlanReply:
        """What a drain of the run would wait for, and what it would leave. Changes nothing."""
        request = wire_drains.DrainPlanRequest(run_id=run_id)
        return await self._read(wire_drains.DrainPlanReply, "POST", "/drain/plan", request, repeatable=True)

    async def cancel_drain(self, uuid: str) -> wire_drains.DrainSummary:
        """Cancel a drain. The run continues as before."""
        return await self._read(wire_drains.DrainSummary, "DELETE", f"/drain/{path_segment(uuid)}", repeatable=True)

    # --- jobs ------------------------------------------------------------------------------------------------------

    async def remove_job(self, job: str, *, dry_run: bool) -> wire_runs.JobRemovalReply:
        """Remove a job whose run has ended, with its records; with `dry_run`, only say what would be deleted."""
        query = {"dryRun": "true"} if dry_run else {}
        path = f"/jobs/{path_segment(job)}"
        return await self._read(wire_runs.JobRemovalReply, "DELETE", path, params=query, headers=actor_headers())

    async def job_events(
        self, job: str, limit: int = PAGE, *, before: str | None = None, after: str | None = None
    ) -> wire_events.JobEventsReply:
        """Up to `limit` events of the job, newest first; only those older than the event `before` and newer than the event `after`."""
        path = f"/jobs/{path_segment(job)}/events"
        return await self._read(wire_events.JobEventsReply, "GET", path, params=_given(limit=limit, before=before, after=after))

    # --- tokens ----------------------------------------------------------------------------------------------------

    async def create_token(self, request: wire_access.TokenRequest) -> wire_access.NewTokenReply:
        """Create a token. Only this answer contains it."""
        return await self._read(wire_access.NewTokenReply, "POST", "/tokens", request)

    async def tokens(self) -> wire_access.TokensReply:
        """All, page by page."""
        found: tuple[wire_access.TokenReply, ...] = ()
        after: str | None = None
        while True:
            page = await self._read(wire_access.TokensReply, "GET", "/tokens", params=_given(after=after, limit=PAGE))
            found, after = (*found, *page.tokens), page.next
            if after is None:
                return wire_access.TokensReply(tokens=found)

    async def revoke_token(self, token_id: str) -> wire_access.TokenReply:
        """Revoke the token with that id."""
        return await self._read(wire_access.TokenReply, "DELETE", f"/tokens/{path_segment(token_id)}", repeatable=True)

    async def end_sessions(self, principal: str) -> wire_access.SessionsEndedReply:
        """End all sessions of a user on the web pages."""
        return await self._read(wire_access.SessionsEndedReply, "DELETE", f"/sessions/{path_segment(principal)}")

    async def identity_providers(self) -> wire_access.IdentityProvidersReply:
        """The identity providers with which users log in."""
        return await self._read(wire_access.IdentityProvidersReply, "GET", "/identity-providers")

    async def audit_log(self, before: int | None, limit: int, job: str | None = None) -> wire_access.AuditLogReply:
        """Up to `limit` events of the audit log, newest first; only those before the number `before`, and only those of `job`."""
        return await self._read(wire_access.AuditLogReply, "GET", "/audit-log", params=_given(before=before, limit=limit, job=job))

    # --- versions of the job model ---------------------------------------------------------------------------------

    async def plan(self, request: wire_jobmodels.PlanRequest) -> wire_jobmodels.PlanReply:
        """What a change of the job model would do. Changes nothing."""
        return await self._read(wire_jobmodels.PlanReply, "POST", "/jobModel/plan", request, repeatable=True)

    async def change(self, run_id: str, request: wire_jobmodels.ChangeRequest, version: int | None) -> wire_jobmodels.ChangeReply:
        """Change the model; with `version`, only while that version is in force."""
        path = f"/runs/{path_segment(run_id)}"
        return await self._read(wire_jobmodels.ChangeReply, "PATCH", path, request, headers=_if_version(version))

    async def versions(self, job: str, before: int | None, limit: int) -> wire_jobmodels.VersionsReply:
        """Up to `limit` versions of the job model, newest first; only those before the version `before`."""
        query = _given(limit=limit, before=before)
        return await self._read(wire_jobmodels.VersionsReply, "GET", f"/jobs/{path_segment(job)}/models", params=query)

    async def version(self, job: str, version: int) -> wire_jobmodels.VersionDetail:
        """One version of the job model."""
        return await self._read(wire_jobmodels.VersionDetail, "GET", f"/jobs/{path_segment(job)}/models/{version}")

    async def difference(self, job: str, version: int, later: int) -> wire_jobmodels.DifferenceReply:
        """What differs between two versions of the job model."""
        return await self._read(wire_jobmodels.DifferenceReply, "GET", f"/jobs/{path_segment(job)}/models/{version}/diff/{later}")

    async def roll_back(
        self, job: str, version: int, request: wire_jobmodels.RollbackRequest, current: int | None
    ) -> wire_jobmodels.ChangeReply:
        """Roll back; with `current`, only while that version is in force."""
        path = f"/jobs/{path_segment(job)}/models/{version}/rollback"
        return await self._read(wire_jobmodels.ChangeReply, "POST", path, request, headers=_if_version(current))

    # --- snapshots -------------------------------------------------------------------------------------------------

    async def snapshots(
        self, job: str, task: str | None, stage: str | None, before: int | None, limit: int
    ) -> wire_snapshots.SnapshotsReply:
        """Up to `limit` retained snapshots, newest first; only those of `task` and `stage`, and only those before the number `before`."""
        query = _given(task=task, stage=stage, before=before, limit=limit)
        return await self._read(wire_snapshots.SnapshotsReply, "GET", f"/jobs/{path_segment(job)}/snapshots", params=query)

    async def snapshot(self, job: str, task: str, stage: str, checkpoint: str) -> wire_snapshots.SnapshotReply:
        """One snapshot. `checkpoint`: its id, or `HEAD` for the one that the stage continues from."""
        if checkpoint == HEAD:
            found = (await self.snapshots(job, task, stage, None, 200)).snapshots
            checkpoint = next((each.checkpoint_id for each in found if each.head), HEAD)
        query = {"task": task, "stage": stage}
        return await self._read(wire_snapshots.SnapshotReply, "GET", _snapshot(job, checkpoint), params=query)

    async def pins(self, job: str) -> wire_snapshots.PinsReply:
        """All, page by page."""
        found: tuple[wire_snapshots.PinReply, ...] = ()
        path, after = f"/jobs/{path_segment(job)}/pins", None
        while True:
            page = await self._read(wire_snapshots.PinsReply, "GET", path, params=_given(after=after, limit=PAGE))
            found, after = (*found, *page.pins), page.next
            if after is None:
                return wire_snapshots.PinsReply(pins=found)

    async def pin(self, job: str, body: wire_snapshots.PinRequest) -> wire_snapshots.PinReply:
        """Retain snapshots until the pin is deleted or expires."""
        return await self._read(wire_snapshots.PinReply, "POST", f"/jobs/{path_segment(job)}/pins", body)

    async def unpin(self, job: str, pin_id: str) -> None:
        """Delete a pin."""
        await self._request("DELETE", f"/jobs/{path_segment(job)}/pins/{path_segment(pin_id)}")

    async def choose(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.RestoreReply:
        """Let the task's next owner restore this snapshot. Refused while a container owns the task."""
        return await self._read(wire_snapshots.RestoreReply, "POST", f"{_snapshot(job, checkpoint)}/restore", body)

    async def verify(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.OperationReply:
        """Begin to compare a snapshot with its recorded sizes and hashes; see `completed`."""
        return await self._read(wire_snapshots.OperationReply, "POST", f"{_snapshot(job, checkpoint)}/verify", body)

    async def verify_job(self, job: str, body: wire_snapshots.VerifyRequest) -> wire_snapshots.OperationReply:
        """Begin to compare all snapshots of a job with their recorded sizes and hashes; see `completed`."""
        return await self._read(wire_snapshots.OperationReply, "POST", f"/jobs/{path_segment(job)}/snapshots/verify", body)

    # --- garbage collection, operations ----------------------------------------------------------------------------

    async def collection(self, what: str) -> wire_snapshots.OperationReply:
        """Begin a garbage collection; see `completed`. `what`: plan, run or audit."""
        return await self._read(wire_snapshots.OperationReply, "POST", f"/gc/{what}")

    async def explain(self, blob: str) -> wire_snapshots.ExplainsReply:
        """Why a blob is kept or deleted, in each blob store."""
        return await self._read(wire_snapshots.ExplainsReply, "GET", "/gc/explain", params={"blob": blob}, timeout=60)

    async def completed(
        self, operation: wire_snapshots.OperationReply, show: Callable[[wire_snapshots.OperationReply], None]
    ) -> wire_snapshots.OperationReply:
        """Wait for the end of a long-running operation. `show` is called with every intermediate state."""
        while operation.state == "RUNNING":
            operation = await self.operation(operation.operation, POLL)
            show(operation)
        return operation

    async def operation(self, name: str, wait: timedelta = timedelta(0)) -> wire_snapshots.OperationReply:
        """The state of a long-running operation. The coordinator waits up to `wait` for its end."""
        return await self._read(
            wire_snapshots.OperationReply,
            "GET",
            f"/operations/{path_segment(name)}",
            params={"wait": wait.total_seconds()},
            timeout=(wait + TIMEOUT).total_seconds(),
        )


PATIENCE = Retries(timedelta(seconds=10))
"""Longer than a coordinator needs to start again."""


class AsyncClient(OperatorClient):
    """A client for programs. It repeats requests, as `Retries` says. Methods raise the errors of `CoordinatorClient`.

    `async with AsyncClient() as client` closes it at the end."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        retries: Retries = PATIENCE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url`: of the coordinator, or several separated by commas; default: SLUICE_COORDINATOR_URL, or `LOCAL`. `token`: "" for none;
        default: that of SLUICE_TOKEN, SLUICE_TOKEN_FILE or `sluice login`. `transport`: default: HTTP, with the certificates of
        SLUICE_CA_FILE and SLUICE_CLIENT_CERTIFICATE. Raises BadSettings if a certificate cannot be read."""
        super().__init__(url or os.environ.get(URL) or LOCAL, transport, None if token is None else lambda: token, retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _if_version(version: int | None) -> Mapping[str, str]:
    return actor_headers() | ({} if version is None else {"If-Match": f'"{version}"'})


def _given(**query: str | int | None) -> Mapping[str, str | int]:
    return {name: value for name, value in query.items() if value is not None}


def _snapshot(job: str, checkpoint: str) -> str:
    return f"/jobs/{path_segment(job)}/snapshots/{path_segment(checkpoint)}"
