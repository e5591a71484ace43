"""The streams of a deployment: what the job's names for them stand for, their partition counts, identities and start offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from coordinator.store.port import RunRow
from sluice.core.errors import BadGraph, StreamConflict, UnknownStream, UnknownSystem
from sluice.core.graph import Graph, Stage
from sluice.core.ids import Ssp, StageName, StreamId
from sluice.core.model import PlannedModel
from sluice.streams.port import Offsets, StreamSystem
from sluice.wire import runs as wire_runs


def graph_of(request: wire_runs.RunRequest) -> Graph:
    """Raises BadGraph when a name is declared twice."""
    return Graph.declared(
        inputs=[each.name for each in request.inputs],
        intermediates=[each.name for each in request.intermediates],
        outputs=[each.name for each in request.outputs],
        stages=[Stage(StageName(each.name), each.reads, each.writes) for each in request.stages],
    )


def bindings_of(request: wire_runs.RunRequest) -> Mapping[str, StreamId]:
    """The streams by the job's names. Raises BadGraph."""
    bindings = {each.name: StreamId(each.system, each.stream or each.name) for each in request.streams}
    for stage in request.stages:
        names = [bindings[read].stream for read in stage.reads]
        if len(set(names)) < len(names):  # Spark tells a batch's offsets by stream name, without the system
            raise BadGraph(f"stage {stage.name} reads two streams of one name, of different systems: bind one to a stream of another name")
    for name, stream in bindings.items():
        if sum(1 for other in bindings.values() if other == stream) > 1:
            raise BadGraph(f"{name!r} and another name both stand for the stream {stream}: bind each to a stream of its own")
    return bindings


def streams_of(
    request: wire_runs.RunRequest, bindings: Mapping[str, StreamId], counts: Mapping[str, int], identities: Mapping[str, str | None]
) -> Sequence[Mapping[str, object]]:
    """The streams as resolved, for the run's record (`wire.StreamReply`)."""

    def stream(name: str, role: str, *, broadcast: bool = False) -> Mapping[str, object]:
        bound = bindings[name]
        return {
            "name": name,
            "role": role,
            "system": bound.system,
            "stream": bound.stream,
            "partitions": counts[name],
            "broadcast": broadcast,
            "identity": identities.get(name),
        }

    return [
        *(stream(each.name, "input", broadcast=each.broadcast) for each in request.inputs),
        *(stream(each.name, "intermediate") for each in request.intermediates),
        *(stream(each.name, "output") for each in request.outputs),
    ]


class JobStreams:
    """`bindings` are a request's streams by the job's names."""

    def __init__(self, systems: Mapping[str, StreamSystem]) -> None:
        self._systems = systems

    def system(self, name: str) -> StreamSystem:
        if name not in self._systems:
            raise UnknownSystem(f"no system {name!r} is configured: there is {', '.join(sorted(self._systems))}")
        return self._systems[name]

    async def counts(self, request: wire_runs.RunRequest, bindings: Mapping[str, StreamId]) -> tuple[dict[str, int], list[StreamId]]:
        """Partition counts by the job's names, and the streams that are still to be created."""
        counts: dict[str, int] = {}
        missing: list[StreamId] = []
        for each in request.inputs:
            stream = bindings[each.name]
            counts[each.name] = await self.system(stream.system).partitions(stream.stream)
        made: tuple[wire_runs.IntermediateBody | wire_runs.OutputBody, ...] = (*request.intermediates, *request.outputs)
        for wanted in made:
            stream = bindings[wanted.name]
            try:
                present = await self.system(stream.system).partitions(stream.stream)
            except UnknownStream:
                present = wanted.partitions
                missing.append(stream)
            if isinstance(wanted, wire_runs.IntermediateBody) and present != wanted.partitions:
                raise StreamConflict(
                    f"the intermediate stream {stream} exists with {present} partitions and the job asks for {wanted.partitions}: "
                    "ask for as many, or give it another name"
                )
            counts[wanted.name] = present
        return counts, missing

    async def identities(
        self, request: wire_runs.RunRequest, bindings: Mapping[str, StreamId], going_on: RunRow | None
    ) -> Mapping[str, str | None]:
        """Which stream it is that each input's name stands for: in a history that goes on the one with which it began, as the offsets are
        that one's."""
        old = {(each["system"], each["stream"]): each.get("identity") for each in (going_on.streams if going_on else ())}

        async def identity(stream: StreamId) -> str | None:
            return old.get((stream.system, stream.stream)) or await self.system(stream.system).identity(stream.stream)

        return {each.name: await identity(bindings[each.name]) for each in request.inputs if each.name in bindings}

    async def starts(
        self, request: wire_runs.RunRequest, bindings: Mapping[str, StreamId], plan: PlannedModel, old: Mapping[Ssp, int] | None
    ) -> Mapping[Ssp, int]:
        """The first offset of every partition that a task reads, as numbers. A run that goes on keeps those of its history, one after a
        drain those where that ended, and both read partitions that are new from their beginning; a new history begins intermediate streams
        at their end."""
        inputs = {bindings[each.name] for each in request.inputs}
        ssps = {ssp for task in plan.model.tasks.values() for ssp in task.ssps}
        starts: dict[Ssp, int] = {}
        for stream in sorted({ssp.stream_id for ssp in ssps}):
            where: str | datetime = request.start if stream in inputs else "latest"
            if old is not None or where == "checkpoint":
                where = "earliest" if stream in inputs or any(ssp.stream_id == stream for ssp in old or ()) else "latest"
            offsets = await self._resolve(stream, where)
            for ssp in ssps:
                if ssp.stream_id == stream:
                    starts[ssp] = (old or {}).get(ssp, offsets[ssp.partition])
        return starts

    async def _resolve(self, stream: StreamId, where: str | datetime) -> Offsets:
        system = self.system(stream.system)
        if isinstance(where, datetime):
            return await system.at_time(stream.stream, where)
        return await (system.latest if where == "latest" else system.earliest)(stream.stream)
