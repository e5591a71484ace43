"""Types for the ids that Sluice uses.

**Three fencing tokens.** Three of these ids distinguish an old actor from a new one:

* An *incarnation* is one container process, named by its execution container id. A launcher gives each start a new id. An id that has ended
  is rejected, so that a replaced process stops.
* An *epoch* numbers the incarnations of a slot. The coordinator assigns it at registration, and heartbeats contain it. Only the highest
  epoch renews the slot's lease.
* A *generation* numbers the owners of a task. `acquire` assigns it, and every report and append contains it. A report or append of an older
  generation is rejected with `LeaseLost`. Tasks move between slots while both containers are valid, so an epoch alone does not protect a
  task.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NewType

from sluice.core.errors import BadName

JobName = NewType("JobName", str)
RunId = NewType("RunId", str)
TaskName = NewType("TaskName", str)
StageName = NewType("StageName", str)
ProcessorId = NewType("ProcessorId", str)
ExecutionContainerId = NewType("ExecutionContainerId", str)
Epoch = NewType("Epoch", int)
Generation = NewType("Generation", int)
Lineage = NewType("Lineage", str)

Instant = NewType("Instant", float)
"""A reading of the monotonic clock, in seconds; see `sluice.clock.elapsed`."""

_STREAM = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Kafka's rule for names of topics."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
"""The same, without names that begin with a dot, a dash or an underscore, so that names are safe in paths and on command lines."""


_LONGEST_PLAIN = 200
_HASHED = re.compile(r".*-[0-9a-f]{16}")


def checked_name(kind: str, name: str) -> str:
    """Return `name` if it is a valid name of a job, a stage or a system. Raises BadName."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadName(kind, str(name))
    return name


def checked_stream(name: str) -> str:
    """Return `name` if it is a valid name of a stream. Raises BadName."""
    if not isinstance(name, str) or not _STREAM.fullmatch(name):
        raise BadName("stream", str(name), "other than '.' and '..'")
    return name


@dataclass(frozen=True, order=True, slots=True)
class StreamId:
    """A stream of a system: `kafka`, `flights`."""

    system: str
    stream: str

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}"


@dataclass(frozen=True, order=True, slots=True)
class Ssp:
    """A SystemStreamPartition. Its string is for display and is never parsed, because stream names contain dots."""

    system: str
    stream: str
    partition: int

    @property
    def stream_id(self) -> StreamId:
        return StreamId(self.system, self.stream)

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}.{self.partition}"


@dataclass(frozen=True, order=True, slots=True)
class StageKey:
    """A stage of a task of a job. Each has its own checkpoint directory and snapshots."""

    job: JobName
    task: TaskName
    stage: StageName

    def __str__(self) -> str:
        return f"stage {self.stage} of task {self.task} of job {self.job}"


def directory_name(task: str) -> str:
    """A task's directory: "Partition 0" -> "Partition_0". A hash is appended to names that are too long, or contain characters which are
    replaced, or end like such a hash, so that different tasks always have different directories."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "_", task)
    if plain.replace("_", " ") == task and plain[:1] not in ("", ".") and len(plain) <= _LONGEST_PLAIN and not _HASHED.fullmatch(plain):
        return plain
    return f"{plain.lstrip('.')[:_LONGEST_PLAIN]}-{hashlib.sha256(task.encode()).hexdigest()[:16]}"
