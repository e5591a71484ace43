"""What people ask a coordinator about drains, in the manner of `containers.client`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from containers.client import Coordinator
from sluice.wire import drains as wire_drains


class DrainClient(Coordinator):
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
