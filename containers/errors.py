"""Errors of a container's process: they are raised, logged and reported here, and never cross the wire as answers."""

from __future__ import annotations

from sluice.core.errors import ClientError, CorruptData, Unavailable


class StateElsewhere(ClientError):
    """The task's state is not on this disk."""


class PathNotShared(ClientError):
    """A directory that executors must share with the driver is not the same for all of them."""


class JarsUnavailable(Unavailable):
    """Jars that are needed cannot be fetched."""


class ClassArchiveNotMade(Unavailable):
    """The archive of Spark's classes, with which containers start sooner, cannot be made."""


class BrokerUnavailable(Unavailable):
    """The Kafka broker of this machine cannot be used."""


class DiskUnwritable(Unavailable):
    """A directory of this machine cannot be written."""


class SparkNotStarted(Unavailable):
    """The container's Spark cannot be started."""


class ExecutorsMissing(Unavailable):
    """Spark's cluster has no executors to work on."""


class SparkGone(Unavailable):
    """The container's Spark has ended."""


class OffsetsTrimmed(CorruptData):
    """The records that a reader needs are no longer in the stream."""


class CheckpointUnreadable(CorruptData):
    """A checkpoint directory is not one that Spark wrote whole."""
