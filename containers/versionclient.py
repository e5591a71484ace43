"""What people ask a coordinator about job models, in the manner of `containers.client`."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from containers.client import Coordinator, whoever
from sluice.wire import jobmodels as wire_jobmodels


def _headers(version: int | None) -> Mapping[str, str]:
    """`version`: only while that is in force."""
    return {wire_jobmodels.WHO_HEADER: whoever()} | ({} if version is None else {"If-Match": f'"{version}"'})


class VersionClient(Coordinator):
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
