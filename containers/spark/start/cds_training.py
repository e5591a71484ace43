"""The process whose classes `sluice class-archive` records: `python -m containers.spark.start.cds_training FILE CLASS_PATH`.

It runs `containers.spark.start.small_job`. Classes that this job does not use are loaded from the jars when a job needs them, like all
classes without an archive.
"""

from __future__ import annotations

import logging
import os
import re
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

OPTIONS_OF_JVM = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
"""Variables with options that each JVM of Spark gets."""

_ARCHIVE = re.compile(r'"-XX:SharedArchiveFile=[^"]*"|-XX:SharedArchiveFile=(?:"[^"]*"|\S)*')

JVM_ENDS_WITHIN = timedelta(minutes=5)


def _ignore_batch(_done: BatchDone) -> None: ...


def _ignore_end(_ended: QueryEnded) -> None: ...


def _ignore_idle(_run_id: str) -> None: ...


def _settings(archive: ClassArchive) -> Mapping[str, str]:
    from containers.spark.session import DEFAULT_JAVA_OPTIONS

    return {DEFAULT_JAVA_OPTIONS: f"{archive.make} {SHORT_LIVED}", CLASS_PATH: archive.class_path}


def without_archive(options: str) -> str:
    """The options without an archive of classes: a JVM that starts with one cannot write another."""
    return _ARCHIVE.sub("", options)


def main(archive: ClassArchive) -> int:
    """The exit code of the JVM, which writes the archive when it ends."""
    find_pyspark(os.environ)  # before the imports, so that they find that of SPARK_HOME
    os.environ.update({name: without_archive(os.environ[name]) for name in OPTIONS_OF_JVM if name in os.environ})
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
