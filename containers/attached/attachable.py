"""Which scripts `sluice.attach` accepts, and which it only observes. Nothing of Spark is imported here: a script with Spark Connect only
(the distribution `pyspark-client`) has no Py4J, which the rest of this package needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from sluice.core.errors import ClientError
from sluice.installed_spark import release_of

OLDEST, NEWEST = (3, 5), (4, 3)
"""The versions of Spark that `make matrix` tries."""

HOSTED = (
    "DATABRICKS_RUNTIME_VERSION",
    "GLUE_VERSION",
    "AZUREML_RUN_ID",
    "DATAPROC_CLUSTER_NAME",
    "LIVY_SPARK_MAJOR_VERSION",  # sessions of Livy, through which EMR and HDInsight run notebooks, but not its batches
)
"""Environment variables of platforms that own the driver's process."""

AZURE, SYNAPSE = "AZURE_SERVICE", "Microsoft.ProjectArcadia"
"""The environment variable of Synapse and Fabric, and its value."""

ZEPPELIN = frozenset({"zeppelin_python.py", "zeppelin_pyspark.py"})
"""The programs that Zeppelin starts as interpreters. With IPython they are kernels of Jupyter."""


class CannotAttach(ClientError):
    """The script's Spark cannot be attached."""


def check_session(spark: Any) -> None:
    """Raises CannotAttach if this is no session, or its queries cannot be found and stopped, because its JVM cannot be reached, or its
    internals are others."""
    if any(each.__module__.startswith("pyspark.sql.connect.") for each in type(spark).__mro__):
        raise CannotAttach("spark is a session of Spark Connect: its queries run in another process; start the script with spark-submit")
    if not hasattr(spark, "_jsparkSession"):
        raise CannotAttach(f"`spark` must be a SparkSession, not {type(spark).__name__}")
    pinned = os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"
    if not pinned and type(getattr(spark.sparkContext, "_gateway", None)).__module__ == "py4j.java_gateway":  # else py4j.clientserver
        raise CannotAttach(
            "PYSPARK_PIN_THREAD is false: then Spark runs the function of foreachBatch in threads of which Sluice cannot tell the batch; "
            "unset this variable"
        )
    version = str(spark.version)
    if not OLDEST <= release_of(version) <= NEWEST:
        known = f"Spark {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise CannotAttach(f"this is Spark {version}, and sluice.attach works with {known}; `sluice exec` works with any")


def is_observed(environment: Mapping[str, str], modules: Mapping[str, object], *, interactive: bool, program: str = "") -> bool:
    """Whether the process must not be ended: a notebook, an interpreter, or a platform's driver that other users may share. `program`: the
    file that Python runs."""
    hosted = any(environment.get(name) for name in HOSTED) or environment.get(AZURE) == SYNAPSE
    return interactive or "ipykernel" in modules or hosted or PurePath(program).name in ZEPPELIN


def check_deploy_mode(mode: str, *, observed: bool) -> None:
    """Raises CannotAttach for a driver that the cluster has started and may start again. `mode`: that of the session. Platforms may use the
    mode cluster for what is only observed."""
    if mode == "cluster" and not observed:
        raise CannotAttach(
            "the deploy mode of this session is cluster, in which the cluster starts and ends the driver: use the deploy mode client, or "
            "observe=True"
        )
