"""Errors of a container's process: they are raised, logged and reported here, and never cross the wire as answers."""

from __future__ import annotations

from sluice.core.errors import ClientError, CorruptData, Unavailable


class StateElsewhere(ClientError):
    """The task's state is not on this disk."""

    slug = "state-elsewhere"


class PathNotShared(ClientError):
    """A directory that executors must share with the driver is not the same for all of them."""

    slug = "path-not-shared"


class JarsUnavailable(Unavailable):
    """Jars that are needed cannot be fetched."""

    slug = "jars-unavailable"


class ClassArchiveNotMade(Unavailable):
    """The archive of Spark's classes, with which containers start sooner, cannot be made."""

    slug = "class-archive-not-made"


class BrokerUnavailable(Unavailable):
    """The Kafka broker of this machine cannot be used."""

    slug = "broker-unavailable"


class DiskUnwritable(Unavailable):
    """A directory of this machine cannot be written."""

    slug = "disk-unwritable"


class SparkNotStarted(Unavailable):
    """The container's Spark cannot be started."""

    slug = "spark-not-started"


class ExecutorsMissing(Unavailable):
    """Spark's cluster has no executors to work on."""

    slug = "executors-missing"


class SparkGone(Unavailable):
    """The container's Spark has ended."""

    slug = "spark-gone"


class OffsetsTrimmed(CorruptData):
    """The records that a reader needs are no longer in the stream."""

    slug = "offsets-trimmed"


class CheckpointUnreadable(CorruptData):
    """A checkpoint directory is not one that Spark wrote whole."""

    slug = "checkpoint-unreadable"
