"""Errors of the container's process and of its command line. They are logged and reported, and are never answers of the coordinator."""

from __future__ import annotations

from signal import Signals

from sluice.core.errors import ClientError, CorruptData, Unavailable
from sluice.disks import NO_ROOM

EXIT_REPEATED_FAILURE = 4
"""The exit code of a container in which a batch has repeatedly failed with the same error, or which has ended with an error that would
recur at every start of the same code. A launcher that restarts containers should wait, or stop. The other codes are in
`containers/agent/lifecycle.py`."""


class StateNotLocal(ClientError):
    """The task's state is not on this disk."""

    slug = "state-elsewhere"


class OperatorsDiffer(ClientError):
    """The version has other stateful operators than the state that a drain has kept."""


class StateIncompatible(ClientError):
    """The stage's operators or the schema of their state have changed, and the job was not drained."""


class PathNotShared(ClientError):
    """A directory that the executors must share with the driver is not the same one for all of them."""


class JavaMissing(ClientError):
    """Java was not found."""


class CoordinatorNotStarted(Unavailable):
    """The coordinator did not start."""


class JarsUnavailable(Unavailable):
    """Required jars cannot be downloaded."""


class ClassArchiveUnavailable(Unavailable):
    """The AppCDS archive of Spark's classes, which makes containers start faster, cannot be created."""

    slug = "class-archive-not-made"


class BrokerUnavailable(Unavailable):
    """The development Kafka broker on this machine cannot be used."""


class DiskUnwritable(Unavailable):
    """A directory of this machine cannot be written."""


class DiskFull(DiskUnwritable):
    """A disk of this machine is full. The container waits for room."""


class SparkNotStarted(Unavailable):
    """Spark cannot be started in the container."""


class ExecutorsMissing(Unavailable):
    """The Spark cluster provides no executors."""


class SparkStopped(Unavailable):
    """Spark has ended in the container."""

    slug = "spark-gone"


class OffsetsTrimmed(CorruptData):
    """Records that a reader needs are no longer in the stream."""


class CheckpointUnreadable(CorruptData):
    """A checkpoint directory is incomplete, or was not written by Spark."""


def disk_error(error: OSError, message: str) -> DiskUnwritable:
    """DiskFull if the error is a lack of space, else DiskUnwritable."""
    return DiskFull(message) if error.errno in NO_ROOM else DiskUnwritable(message)


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGKILL"; "signal 35" for one of the real-time signals, of which Python names only the first and the
    last."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
