"""What people ask a coordinator about drains, in the manner of `containers.client`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from containers.client import Coordinator
from coordinator import wire_drain as bodies


class DrainClient(Coordinator):
    async def request_drain(self, request: bodies.DrainRequest) -> bodies.DrainSummary:
        return await self._read(bodies.DrainSummary, "POST", "/drain", request)

    async def plan_drain(self, run_id: str) -> bodies.DrainPlanReply:
        return await self._read(bodies.DrainPlanReply, "POST", "/drain/plan", bodies.DrainPlanRequest(run_id=run_id))

    async def drain(self, uuid: str) -> bodies.DrainDetail:
        return await self._read(bodies.DrainDetail, "GET", f"/drain/{quote(uuid, safe='')}")

    async def cancel_drain(self, uuid: str) -> bodies.DrainSummary:
        return await self._read(bodies.DrainSummary, "DELETE", f"/drain/{quote(uuid, safe='')}")

    async def newest_drain(self, job: str) -> bodies.DrainSummary | None:
        found = await self.drains(job, 1)
        return found[0] if found else None

    async def drains(self, job: str, limit: int = 200) -> Sequence[bodies.DrainSummary]:
        """The job's newest ones, newest first."""
        return (await self._read(bodies.DrainsReply, "GET", "/drains", params={"job": job, "limit": limit})).drains
