"""A request to deploy, read: its graph, and what the names of its streams stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.core.errors import BadGraph
from sluice.core.graph import Graph, Stage
from sluice.core.ids import StageName, StreamId
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
