"""The process whose classes `sluice class-archive` records: `python -m containers.spark.start.cds_training FILE CLASS_PATH`.

It runs `containers.spark.start.small_job`. Classes that this job does not use are loaded from the jars when a job needs them, like all
classes without an archive.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from containers.spark.start.cds import CLASS_PATH, ClassArchive
from sluice.installed_spark import find_pyspark

if TYPE_CHECKING:
    from containers.spark.listener import BatchDone, QueryEnded

SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""Optimised compilation would take half of the CPU time, and an archive has no compiled code."""

_SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
_ARCHIVE_OPTION = "-XX:SharedArchiveFile="

JVM_ENDS_WITHIN = timedelta(minutes=5)


def _ignore_batch(_done: BatchDone) -> None: ...


def _ignore_end(_ended: QueryEnded) -> None: ...


def _ignore_idle(_run_id: str) -> None: ...


def _settings(archive: ClassArchive) -> Mapping[str, str]:
    from containers.spark.session import DEFAULT_JAVA_OPTIONS

    return {DEFAULT_JAVA_OPTIONS: f"{archive.make} {SHORT_LIVED}", CLASS_PATH: archive.class_path}


def _without_archive(options: str) -> str:
    """A JVM that starts with an archive cannot write one."""
    return " ".join(each for each in options.split(" ") if not each.startswith(_ARCHIVE_OPTION))


def main(archive: ClassArchive) -> int:
    """The exit code of the JVM, which writes the archive when it ends."""
    find_pyspark(os.environ)  # before the imports, so that they find that of SPARK_HOME
    if _SUBMIT_OPTIONS in os.environ:
        os.environ[_SUBMIT_OPTIONS] = _without_archive(os.environ[_SUBMIT_OPTIONS])
    from containers.errors import SparkNotStarted
    from containers.spark.listener import Listener
    from containers.spark.session import start_session
    from containers.spark.start.small_job import run_small_job

    logging.disable(logging.WARNING)  # the traceback that Spark did not start would follow the message of the JVM
    with TemporaryDirectory(prefix="sluice-") as made:
        root = Path(made)
        try:
            spark = start_session("class training", "local[2]", root / "spark", _settings(archive), root)
        except SparkNotStarted as error:
            print(error, file=sys.stderr)
            return 1
        gateway = spark.sparkContext._gateway
        spark.streams.addListener(Listener(_ignore_batch, _ignore_end, _ignore_idle))
        run_small_job(spark, root)
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # at which the JVM ends
        return int(gateway.proc.wait(JVM_ENDS_WITHIN.total_seconds()))


if __name__ == "__main__":
    sys.exit(main(ClassArchive(Path(sys.argv[1]), sys.argv[2])))
