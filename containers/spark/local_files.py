"""Sets permissions of local files without starting a process for each file.

Without its native library, Hadoop's file system for local paths starts `chmod` for each file and directory that it creates: several for
each batch of a query, because its checkpoint is on a local disk. `install` replaces that file system in the JVM of the driver by a subclass
that sets permissions with `java.nio.file`. Everything else remains Hadoop's: how files are written, renamed and listed, and that they are
not synchronized to the disk.

Hadoop keeps one file system for local paths, whatever the configuration; the subclass, `java/sluice/LocalFiles.java`, takes the place of
the raw file system in it. The JVMs of executors keep Hadoop's.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from containers.spark.jvm import compiled

log = logging.getLogger(__name__)

CLASS = "sluice.LocalFiles"


def install(spark: SparkSession) -> bool:
    """Replace the raw file system of local paths in the driver's JVM. It has no state, so this is possible at any time. Returns False, and
    leaves Hadoop's own, if this version of Spark or Hadoop does not allow it."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    try:
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        types = gateway.new_array(jvm.java.lang.Class, 1)
        types[0] = configuration.getClass()
        arguments = gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = configuration
        compiled(spark, CLASS).getMethod("install", types).invoke(None, arguments)
    except (Py4JError, PySparkException) as error:
        log.warning("Hadoop starts a process for each local file that it writes, because its file system cannot be replaced: %s", error)
        return False
    return True
