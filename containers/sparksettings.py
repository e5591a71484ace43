"""What Spark is told when a session begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from containers.classarchive import CLASS_PATH, ClassArchive
from containers.masters import is_local, is_loopback

SETTINGS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|ssl\.keystore",
    "spark.sql.redaction.options.regex": r"(?i)url|secret|password|token|jaas|ssl\.keystore",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Tried settings (docs/design.md, section 8); a job's own come after them and win."""

LOCAL_CHECKPOINTS: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Checkpoints are on a local disk, where Spark's default starts processes (chmod, readlink) for each file that it writes, and this one only
the chmod: 34 ms against 8 ms a file on two cores. Its rename is not exclusive; a store has one writer, the holder of its task."""

DIE_OF_NO_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""A JVM that goes on after an OutOfMemoryError has lost threads that nobody misses until something waits for them for ever. The option is
given as one of the JVM's defaults, to which Spark adds the job's own `spark.driver.extraJavaOptions`."""

DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"

LOCAL_SETTINGS: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""With all executors on this machine nobody else needs to reach the driver."""

ELSEWHERE_SETTINGS: Mapping[str, str] = {"spark.executor.heartbeat.maxFailures": "3"}
"""Executors end at once when their driver does, but where its machine is cut off or frozen they wait for it: for ten minutes by Spark's
default of 60, and 42 s (seen) with 3, about as long as a lease."""

LONGEST_SOCKETS_PATH = 60
"""Bytes. The path of a socket has less than 104 on some systems, and Spark's names for them take 42."""


def session_settings(
    master: str, submitted: Mapping[str, str], settings: Mapping[str, str], sockets: Path | None, archive: ClassArchive | None = None
) -> Mapping[str, str]:
    """The job's `settings` win over what spark-submit was told (`submitted`), and both over Sluice's own.

    `sockets`: a directory of this session's own, which somebody deletes after it; Spark leaves its sockets there. `archive`: the JVM
    begins with it, unless spark-submit has started the JVM already, or the job has a class path of its own, which no archive fits."""
    where = {**(LOCAL_SETTINGS if is_loopback(master) else {}), **({} if is_local(master) else ELSEWHERE_SETTINGS)}
    near = _unix_sockets(sockets) if sockets is not None and is_local(master) else {}
    options, path = [DIE_OF_NO_MEMORY], {}
    if archive is not None and not submitted and CLASS_PATH not in settings:
        options, path = [*options, archive.use], {CLASS_PATH: archive.class_path}
    defaults = {DEFAULT_JAVA_OPTIONS: " ".join([*options, settings.get(DEFAULT_JAVA_OPTIONS, "")]).rstrip()}
    return {**SETTINGS, **LOCAL_CHECKPOINTS, **where, **near, **path, **submitted, **settings, **defaults}


def _unix_sockets(directory: Path) -> Mapping[str, str]:
    """The JVM and its Python workers meet in a directory that nobody else can enter, instead of at ports of the machine, and a small batch
    takes a fifth less (228 ms became 182, docs/design.md). Without a directory whose path is short enough they meet at ports."""
    if len(os.fsencode(directory)) > LONGEST_SOCKETS_PATH:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(directory)}
