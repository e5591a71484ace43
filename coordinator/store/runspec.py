"""A `RunSpec` as the JSON of two columns of a run: `spec`, the deploy request, and `streams`, the resolved streams.

The keys are those of the HTTP API; `slots` is not part of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sluice.core.ids import JobName, ProcessorId, StageName, StreamId
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.spec import JobKind, Role, RunSpec, Start, StreamSpec, broadcast_partitions

_LISTS = {Role.INPUT: "inputs", Role.INTERMEDIATE: "intermediates", Role.OUTPUT: "outputs"}
_STARTS = ("checkpoint", "drained", "earliest", "latest")


def spec_json(spec: RunSpec) -> dict[str, Any]:
    return {
        "job": spec.job,
        "containers": spec.containers,
        **{key: [_requested(each) for each in spec.streams if each.role is role] for role, key in _LISTS.items()},
        "stages": [_declared(each) for each in spec.stages],
        "grouper": spec.grouper,
        "maxTasks": spec.max_tasks,
        "stateful": spec.stateful,
        "start": spec.start.isoformat().replace("+00:00", "Z") if isinstance(spec.start, datetime) else spec.start,
        "config": dict(spec.config),
        **({"slots": list(spec.scaled_to)} if spec.scaled_to else {}),
        **({} if spec.kind is JobKind.STAGES else {"kind": spec.kind.value}),
    }


def _declared(stage: Stage) -> dict[str, Any]:
    """A stage as JSON. `stateful` is only written if it is false."""
    found: dict[str, Any] = {"name": stage.name, "reads": list(stage.reads), "writes": list(stage.writes)}
    return found if stage.stateful else found | {"stateful": False}


def _requested(stream: StreamSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"name": stream.name, "system": stream.id.system, "stream": stream.requested_stream}
    return found | ({"broadcast": stream.requested_broadcast} if stream.role is Role.INPUT else {"partitions": stream.requested_partitions})


def streams_json(spec: RunSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "role": each.role.value,
            "system": each.id.system,
            "stream": each.id.stream,
            "partitions": each.partitions,
            "broadcast": each.broadcast,
            "identity": each.identity,
        }
        for each in spec.streams
    ]


def spec_of(spec: Mapping[str, Any], streams: Sequence[Mapping[str, Any]]) -> RunSpec:
    """The reverse of `spec_json` and `streams_json`. A key that an old release did not write gets the default of the API."""
    resolved = {each["name"]: each for each in streams}
    return RunSpec(
        job=JobName(spec["job"]),
        containers=spec["containers"],
        streams=tuple(_stream(each, role, resolved.get(each["name"], {})) for role, key in _LISTS.items() for each in spec.get(key, ())),
        stages=tuple(
            Stage(StageName(each["name"]), tuple(each["reads"]), tuple(each.get("writes", ())), each.get("stateful", True))
            for each in spec["stages"]
        ),
        grouper=spec.get("grouper", "GroupByPartition"),
        max_tasks=spec.get("maxTasks"),
        stateful=spec.get("stateful", True),
        start=_start(spec.get("start", "checkpoint")),
        config=spec.get("config", {}),
        scaled_to=tuple(map(ProcessorId, spec.get("slots", ()))),
        kind=JobKind(spec.get("kind", JobKind.STAGES)),
    )


def _stream(requested: Mapping[str, Any], role: Role, resolved: Mapping[str, Any]) -> StreamSpec:
    broadcast = requested.get("broadcast", False)
    return StreamSpec(
        name=requested["name"],
        role=role,
        id=StreamId(requested["system"], requested.get("stream") or requested["name"]),
        partitions=resolved.get("partitions", 0),
        broadcast=broadcast is True,
        broadcast_partitions=broadcast_partitions(broadcast) if isinstance(broadcast, str) else (),
        identity=resolved.get("identity"),
        requested_stream=requested.get("stream"),
        requested_partitions=None if role is Role.INPUT else requested.get("partitions", 1),
    )


def _start(text: str) -> Start:
    return text if text in _STARTS else datetime.fromisoformat(text)  # type: ignore[return-value]
