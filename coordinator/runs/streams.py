"""The streams of a deployment: their partition counts, identities and start offsets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sluice.core.errors import StreamConflict, UnknownStream, UnknownSystem
from sluice.core.ids import Ssp, StreamId
from sluice.core.jobmodels.model import PlannedModel
from sluice.core.jobmodels.spec import Role, RunSpec
from sluice.streams.port import Offsets, StreamSystem


class JobStreams:
    def __init__(self, systems: Mapping[str, StreamSystem]) -> None:
        self._systems = systems

    def system(self, name: str) -> StreamSystem:
        if name not in self._systems:
            raise UnknownSystem(f"no system {name!r} is configured (configured: {', '.join(sorted(self._systems))})")
        return self._systems[name]

    async def with_counts(self, spec: RunSpec) -> tuple[RunSpec, list[StreamId]]:
        """The spec with the partition counts of its streams, and the streams that must be created.

        Raises UnknownSystem, UnknownStream for an input that does not exist, and StreamConflict.
        """
        counts: dict[str, int] = {}
        missing: list[StreamId] = []
        for each in spec.streams:
            try:
                present = await self.system(each.id.system).partitions(each.id.stream)
            except UnknownStream:
                if each.requested_partitions is None:
                    raise
                present = each.requested_partitions
                missing.append(each.id)
            if each.role is Role.INTERMEDIATE and present != each.requested_partitions:
                raise StreamConflict(
                    f"the intermediate stream {each.id} exists with {present} partitions and the job requests {each.requested_partitions}: "
                    "request as many, or give it another name"
                )
            counts[each.name] = present
        return spec.with_counts(counts), missing

    async def with_identities(self, spec: RunSpec, known: Mapping[StreamId, str | None]) -> RunSpec:
        """The spec with the identities of its inputs. A run that continues a history keeps the `known` identities, because its offsets
        belong to these streams."""

        async def identity(stream: StreamId) -> str | None:
            return known.get(stream) or await self.system(stream.system).identity(stream.stream)

        return spec.with_identities({each.id: await identity(each.id) for each in spec.streams if each.role is Role.INPUT})

    async def starts(
        self, spec: RunSpec, plan: PlannedModel, old: Mapping[Ssp, int] | None, unread: Mapping[Ssp, int], *, continued: bool
    ) -> Mapping[Ssp, int]:
        """The first offset of every partition that a task reads. `old`: the start offsets of the history that the run continues, if
        `continued`, or the end offsets of the drain that it follows; such a run reads new partitions from their beginning. It reads
        `unread` partitions, which the former run did not read, from their start offset in the history, or from the earliest record that
        still exists. A new history reads intermediate streams from their end. After a drain they are read from the earliest record, if the
        records at the end offsets were deleted: records after the end offsets are of later histories, and are not read."""
        inputs = spec.inputs
        ssps = {ssp for task in plan.model.tasks.values() for ssp in task.ssps}
        starts: dict[Ssp, int] = {}
        for stream in sorted({ssp.stream_id for ssp in ssps}):
            where: str | datetime = spec.start if stream in inputs else "latest"
            if old is not None or where == "checkpoint":
                where = "earliest" if stream in inputs or any(ssp.stream_id == stream for ssp in (*(old or ()), *unread)) else "latest"
            offsets = await self._resolve(stream, where)
            for ssp in ssps:
                if ssp.stream_id == stream:
                    starts[ssp] = (old or {}).get(ssp, max(offsets[ssp.partition], unread.get(ssp, 0)))
                    if not continued and stream not in inputs:
                        starts[ssp] = max(starts[ssp], offsets[ssp.partition])
        return starts

    async def _resolve(self, stream: StreamId, where: str | datetime) -> Offsets:
        system = self.system(stream.system)
        if isinstance(where, datetime):
            return await system.at_time(stream.stream, where)
        return await (system.readable if where == "latest" else system.earliest)(stream.stream)
