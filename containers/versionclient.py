"""What people ask a coordinator about job models, in the manner of `containers.client`."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from containers.client import Coordinator, whoever
from coordinator import wire_versions as bodies


def _headers(version: int | None) -> Mapping[str, str]:
    """`version`: only while that is in force."""
    return {bodies.WHO_HEADER: whoever()} | ({} if version is None else {"If-Match": f'"{version}"'})


class VersionClient(Coordinator):
    async def plan(self, request: bodies.PlanRequest) -> bodies.PlanReply:
        return await self._read(bodies.PlanReply, "POST", "/jobModel/plan", request)

    async def change(self, run_id: str, request: bodies.ChangeRequest, version: int | None) -> bodies.ChangeReply:
        return await self._read(bodies.ChangeReply, "PATCH", f"/runs/{_part(run_id)}", request, headers=_headers(version))

    async def versions(self, job: str, before: int | None, limit: int) -> bodies.VersionsReply:
        query = {"limit": limit} | ({} if before is None else {"before": before})
        return await self._read(bodies.VersionsReply, "GET", f"/jobs/{_part(job)}/models", params=query)

    async def version(self, job: str, version: int) -> bodies.VersionDetail:
        return await self._read(bodies.VersionDetail, "GET", f"/jobs/{_part(job)}/models/{version}")

    async def difference(self, job: str, version: int, later: int) -> bodies.DifferenceReply:
        return await self._read(bodies.DifferenceReply, "GET", f"/jobs/{_part(job)}/models/{version}/diff/{later}")

    async def roll_back(self, job: str, version: int, request: bodies.RollbackRequest, current: int | None) -> bodies.ChangeReply:
        path = f"/jobs/{_part(job)}/models/{version}/rollback"
        return await self._read(bodies.ChangeReply, "POST", path, request, headers=_headers(current))


def _part(name: str) -> str:
    return quote(name, safe="")
