"""What people ask a coordinator about drains, in the manner of `containers.client`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from containers.client import Coordinator
from coordinator import wire_drain


class DrainClient(Coordinator):
    async def request_drain(self, request: wire_drain.DrainRequest) -> wire_drain.DrainSummary:
        return await self._read(wire_drain.DrainSummary, "POST", "/drain", request)

    async def plan_drain(self, run_id: str) -> wire_drain.DrainPlanReply:
        return await self._read(wire_drain.DrainPlanReply, "POST", "/drain/plan", wire_drain.DrainPlanRequest(run_id=run_id))

    async def drain(self, uuid: str) -> wire_drain.DrainDetail:
        return await self._read(wire_drain.DrainDetail, "GET", f"/drain/{quote(uuid, safe='')}")

    async def cancel_drain(self, uuid: str) -> wire_drain.DrainSummary:
        return await self._read(wire_drain.DrainSummary, "DELETE", f"/drain/{quote(uuid, safe='')}")

    async def newest_drain(self, job: str) -> wire_drain.DrainSummary | None:
        found = await self.drains(job, 1)
        return found[0] if found else None

    async def drains(self, job: str, limit: int = 200) -> Sequence[wire_drain.DrainSummary]:
        """The job's newest ones, newest first."""
        return (await self._read(wire_drain.DrainsReply, "GET", "/drains", params={"job": job, "limit": limit})).drains
