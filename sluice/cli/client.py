"""The HTTP client of the command line: the calls of agents, and those that only operators make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from sluice.client import TIMEOUT, CoordinatorClient, actor_headers, path_segment
from sluice.wire import access as wire_access
from sluice.wire import drains as wire_drains
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
    """Drains, versions of the job model, snapshots and garbage collection. Methods raise the errors of `CoordinatorClient`."""

    # --- drains ----------------------------------------------------------------------------------------------------

    async def request_drain(self, request: wire_drains.DrainRequest) -> wire_drains.DrainSummary:
        return await self._read(wire_drains.DrainSummary, "POST", "/drain", request)

    async def plan_drain(self, run_id: str) -> wire_drains.DrainPlanReply:
        return await self._read(wire_drains.DrainPlanReply, "POST", "/drain/plan", wire_drains.DrainPlanRequest(run_id=run_id))

    async def cancel_drain(self, uuid: str) -> wire_drains.DrainSummary:
        return await self._read(wire_drains.DrainSummary, "DELETE", f"/drain/{path_segment(uuid)}")

    async def drains(self, job: str, limit: int = 200) -> Sequence[wire_drains.DrainSummary]:
        """Up to `limit` drains of the job, newest first."""
        return (await self._read(wire_drains.DrainsReply, "GET", "/drains", params={"job": job, "limit": limit})).drains

    # --- jobs ------------------------------------------------------------------------------------------------------

    async def remove_job(self, job: str, *, dry_run: bool) -> wire_runs.JobRemovalReply:
        query = {"dryRun": "true"} if dry_run else {}
        path = f"/jobs/{path_segment(job)}"
        return await self._read(wire_runs.JobRemovalReply, "DELETE", path, params=query, headers=actor_headers())

    # --- tokens ----------------------------------------------------------------------------------------------------

    async def create_token(self, request: wire_access.TokenRequest) -> wire_access.NewTokenReply:
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
        return await self._read(wire_access.TokenReply, "DELETE", f"/tokens/{path_segment(token_id)}")

    async def end_sessions(self, principal: str) -> wire_access.SessionsEndedReply:
        return await self._read(wire_access.SessionsEndedReply, "DELETE", f"/sessions/{path_segment(principal)}")

    async def identity_providers(self) -> wire_access.IdentityProvidersReply:
        return await self._read(wire_access.IdentityProvidersReply, "GET", "/identity-providers")

    async def audit_log(self, before: int | None, limit: int, job: str | None = None) -> wire_access.AuditLogReply:
        return await self._read(wire_access.AuditLogReply, "GET", "/audit-log", params=_given(before=before, limit=limit, job=job))

    # --- versions of the job model ---------------------------------------------------------------------------------

    async def plan(self, request: wire_jobmodels.PlanRequest) -> wire_jobmodels.PlanReply:
        return await self._read(wire_jobmodels.PlanReply, "POST", "/jobModel/plan", request)

    async def change(self, run_id: str, request: wire_jobmodels.ChangeRequest, version: int | None) -> wire_jobmodels.ChangeReply:
        """Change the model; with `version`, only while that version is in force."""
        path = f"/runs/{path_segment(run_id)}"
        return await self._read(wire_jobmodels.ChangeReply, "PATCH", path, request, headers=_if_version(version))

    async def versions(self, job: str, before: int | None, limit: int) -> wire_jobmodels.VersionsReply:
        query = _given(limit=limit, before=before)
        return await self._read(wire_jobmodels.VersionsReply, "GET", f"/jobs/{path_segment(job)}/models", params=query)

    async def version(self, job: str, version: int) -> wire_jobmodels.VersionDetail:
        return await self._read(wire_jobmodels.VersionDetail, "GET", f"/jobs/{path_segment(job)}/models/{version}")

    async def difference(self, job: str, version: int, later: int) -> wire_jobmodels.DifferenceReply:
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
        query = _given(task=task, stage=stage, before=before, limit=limit)
        return await self._read(wire_snapshots.SnapshotsReply, "GET", f"/jobs/{path_segment(job)}/snapshots", params=query)

    async def snapshot(self, job: str, task: str, stage: str, checkpoint: str) -> wire_snapshots.SnapshotReply:
        """`checkpoint` may be `HEAD`."""
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
        return await self._read(wire_snapshots.PinReply, "POST", f"/jobs/{path_segment(job)}/pins", body)

    async def unpin(self, job: str, pin_id: str) -> None:
        await self._request("DELETE", f"/jobs/{path_segment(job)}/pins/{path_segment(pin_id)}")

    async def choose(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.RestoreReply:
        return await self._read(wire_snapshots.RestoreReply, "POST", f"{_snapshot(job, checkpoint)}/restore", body)

    async def verify(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.OperationReply:
        return await self._read(wire_snapshots.OperationReply, "POST", f"{_snapshot(job, checkpoint)}/verify", body)

    async def verify_job(self, job: str, body: wire_snapshots.VerifyRequest) -> wire_snapshots.OperationReply:
        return await self._read(wire_snapshots.OperationReply, "POST", f"/jobs/{path_segment(job)}/snapshots/verify", body)

    # --- garbage collection, operations ----------------------------------------------------------------------------

    async def collection(self, what: str) -> wire_snapshots.OperationReply:
        """`what`: plan, run or audit."""
        return await self._read(wire_snapshots.OperationReply, "POST", f"/gc/{what}")

    async def explain(self, blob: str) -> wire_snapshots.ExplainsReply:
        return await self._read(wire_snapshots.ExplainsReply, "GET", "/gc/explain", params={"blob": blob}, timeout=60)

    async def completed(
        self, operation: wire_snapshots.OperationReply, show: Callable[[wire_snapshots.OperationReply], None]
    ) -> wire_snapshots.OperationReply:
        """Wait for the end of a long-running operation. `show` is called with every intermediate state."""
        while operation.state == "RUNNING":
            name = path_segment(operation.operation)
            operation = await self._read(
                wire_snapshots.OperationReply,
                "GET",
                f"/operations/{name}",
                old_path=f"/errands/{name}",
                params={"wait": POLL.total_seconds()},
                timeout=(POLL + TIMEOUT).total_seconds(),
            )
            show(operation)
        return operation


def _if_version(version: int | None) -> Mapping[str, str]:
    return actor_headers() | ({} if version is None else {"If-Match": f'"{version}"'})


def _given(**query: str | int | None) -> Mapping[str, str | int]:
    return {name: value for name, value in query.items() if value is not None}


def _snapshot(job: str, checkpoint: str) -> str:
    return f"/jobs/{path_segment(job)}/snapshots/{path_segment(checkpoint)}"
