"""The vocabulary: small types for the ids that travel through Sluice."""

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
"""A reading of the clock that never jumps, in seconds; see `sluice.clock.elapsed`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
"""Kafka's rule for a topic's name, less names that begin with a dot or a dash: they are safe in a path and on a command line."""


_LONGEST_PLAIN = 200
_HASHED = re.compile(r".*-[0-9a-f]{16}")


def checked_name(kind: str, name: str) -> str:
    """Return `name` if it may name a job, a stage, a system or a stream.

    Raises BadName, which says what a name may hold.
    """
    if not _NAME.fullmatch(name):
        raise BadName(kind, name)
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
    """A SystemStreamPartition. Its string is for people; it is never parsed, since streams have dots in their names."""

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
    """A stage of a task of a job: what has a checkpoint directory and snapshots of its own."""

    job: JobName
    task: TaskName
    stage: StageName

    def __str__(self) -> str:
        return f"stage {self.stage} of task {self.task} of job {self.job}"


def directory_name(task: str) -> str:
    """A task's name as a directory: "Partition 0" -> "Partition_0". Names that would meet in one, or not fit, get a hash, so that none
    ever does; so does one that looks as if it had a hash."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "_", task)
    if plain.replace("_", " ") == task and plain[:1] not in ("", ".") and len(plain) <= _LONGEST_PLAIN and not _HASHED.fullmatch(plain):
        return plain
    return f"{plain.lstrip('.')[:_LONGEST_PLAIN]}-{hashlib.sha256(task.encode()).hexdigest()[:16]}"
