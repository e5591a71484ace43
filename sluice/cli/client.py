"""The requests that people make and agents do not: drains, versions of the job model, snapshots and garbage collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from urllib.parse import quote

from sluice.client import TIMEOUT, CoordinatorClient, whoever
from sluice.wire import drains as wire_drains
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import snapshots as wire_snapshots


class DrainClient(CoordinatorClient):
    async def request_drain(self, request: wire_drains.DrainRequest) -> wire_drains.DrainSummary:
        return await self._read(wire_drains.DrainSummary, "POST", "/drain", request)

    async def plan_drain(self, run_id: str) -> wire_drains.DrainPlanReply:
        return await self._read(wire_drains.DrainPlanReply, "POST", "/drain/plan", wire_drains.DrainPlanRequest(run_id=run_id))

    async def drain(self, uuid: str) -> wire_drains.DrainDetail:
        return await self._read(wire_drains.DrainDetail, "GET", f"/drain/{quote(uuid, safe='')}")

    async def cancel_drain(self, uuid: str) -> wire_drains.DrainSummary:
        return await self._read(wire_drains.DrainSummary, "DELETE", f"/drain/{quote(uuid, safe='')}")

    async def newest_drain(self, job: str) -> wire_drains.DrainSummary | None:
        found = await self.drains(job, 1)
        return found[0] if found else None

    async def drains(self, job: str, limit: int = 200) -> Sequence[wire_drains.DrainSummary]:
        """The job's newest ones, newest first."""
        return (await self._read(wire_drains.DrainsReply, "GET", "/drains", params={"job": job, "limit": limit})).drains


def _headers(version: int | None) -> Mapping[str, str]:
    """`version`: only while that is in force."""
    return {wire_jobmodels.WHO_HEADER: whoever()} | ({} if version is None else {"If-Match": f'"{version}"'})


class VersionClient(CoordinatorClient):
    async def plan(self, request: wire_jobmodels.PlanRequest) -> wire_jobmodels.PlanReply:
        return await self._read(wire_jobmodels.PlanReply, "POST", "/jobModel/plan", request)

    async def change(self, run_id: str, request: wire_jobmodels.ChangeRequest, version: int | None) -> wire_jobmodels.ChangeReply:
        return await self._read(wire_jobmodels.ChangeReply, "PATCH", f"/runs/{_part(run_id)}", request, headers=_headers(version))

    async def versions(self, job: str, before: int | None, limit: int) -> wire_jobmodels.VersionsReply:
        query = {"limit": limit} | ({} if before is None else {"before": before})
        return await self._read(wire_jobmodels.VersionsReply, "GET", f"/jobs/{_part(job)}/models", params=query)

    async def version(self, job: str, version: int) -> wire_jobmodels.VersionDetail:
        return await self._read(wire_jobmodels.VersionDetail, "GET", f"/jobs/{_part(job)}/models/{version}")

    async def difference(self, job: str, version: int, later: int) -> wire_jobmodels.DifferenceReply:
        return await self._read(wire_jobmodels.DifferenceReply, "GET", f"/jobs/{_part(job)}/models/{version}/diff/{later}")

    async def roll_back(
        self, job: str, version: int, request: wire_jobmodels.RollbackRequest, current: int | None
    ) -> wire_jobmodels.ChangeReply:
        path = f"/jobs/{_part(job)}/models/{version}/rollback"
        return await self._read(wire_jobmodels.ChangeReply, "POST", path, request, headers=_headers(current))


def _part(name: str) -> str:
    return quote(name, safe="")


LOOK = timedelta(seconds=0.5)
"""How long a question for an errand waits for its end: as often a bar moves."""

HEAD = "head"
"""Stands for the snapshot that a store goes on from."""


class BackupClient(CoordinatorClient):
    """Every method raises what those of `CoordinatorClient` raise."""

    async def snapshots(
        self, job: str, task: str | None, stage: str | None, before: int | None, limit: int
    ) -> wire_snapshots.SnapshotsReply:
        query = {"task": task, "stage": stage, "before": before, "limit": limit}
        told = {name: value for name, value in query.items() if value is not None}
        return await self._read(wire_snapshots.SnapshotsReply, "GET", f"/jobs/{_part(job)}/snapshots", params=told)

    async def snapshot(self, job: str, task: str, stage: str, checkpoint: str) -> wire_snapshots.SnapshotReply:
        """`checkpoint` may be "head"."""
        if checkpoint == HEAD:
            found = (await self.snapshots(job, task, stage, None, 200)).snapshots
            checkpoint = next((each.checkpoint_id for each in found if each.head), HEAD)
        query = {"task": task, "stage": stage}
        return await self._read(wire_snapshots.SnapshotReply, "GET", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}", params=query)

    async def pins(self, job: str) -> wire_snapshots.PinsReply:
        return await self._read(wire_snapshots.PinsReply, "GET", f"/jobs/{_part(job)}/pins")

    async def pin(self, job: str, body: wire_snapshots.PinRequest) -> wire_snapshots.PinReply:
        return await self._read(wire_snapshots.PinReply, "POST", f"/jobs/{_part(job)}/pins", body)

    async def unpin(self, job: str, pin_id: str) -> None:
        await self._ask("DELETE", f"/jobs/{_part(job)}/pins/{_part(pin_id)}")

    async def choose(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.RestoreReply:
        return await self._read(wire_snapshots.RestoreReply, "POST", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}/restore", body)

    async def verify(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.ErrandReply:
        return await self._read(wire_snapshots.ErrandReply, "POST", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}/verify", body)

    async def collection(self, what: str) -> wire_snapshots.ErrandReply:
        """`what`: plan, run or audit."""
        return await self._read(wire_snapshots.ErrandReply, "POST", f"/gc/{what}")

    async def explain(self, blob: str) -> wire_snapshots.ExplainsReply:
        return await self._read(wire_snapshots.ExplainsReply, "GET", "/gc/explain", params={"blob": blob}, timeout=60)

    async def done(
        self, errand: wire_snapshots.ErrandReply, show: Callable[[wire_snapshots.ErrandReply], None]
    ) -> wire_snapshots.ErrandReply:
        """The errand when it is over; `show` is called with it as it goes on."""
        while errand.state == "RUNNING":
            query = {"wait": LOOK.total_seconds()}
            timeout = (LOOK + TIMEOUT).total_seconds()
            errand = await self._read(wire_snapshots.ErrandReply, "GET", f"/errands/{_part(errand.errand)}", params=query, timeout=timeout)
            show(errand)
        return errand
