"""Scripts that were not written for Sluice: `sluice.attach`. The code is in `containers`, which needs Spark, and is imported when it is
called."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from containers.attached.app import App

STOP_WITHIN = timedelta(seconds=120)


def attach(
    spark: SparkSession,
    job: str,
    *,
    coordinator: str | None = None,
    wait: bool = True,
    replace: bool = False,
    stop_timeout: timedelta = STOP_WITHIN,
) -> App:
    """Make this script a job: it gets a lease, and its streaming queries are reported, and stopped between batches. Call it once, after the
    session is made and before the first query. Blocks until no other process runs the job; with `wait=False` it raises instead, and with
    `replace` it stops the other one. Under `sluice exec` the lease is that of the command.

    `coordinator`: its URL; default: SLUICE_COORDINATOR_URL, else http://127.0.0.1:8180. `stop_timeout`: how long batches may take at a
    stop, and then the script to end. Raises CannotAttach for a session of Spark Connect and for Spark
    before 3.5 or after 4.3, NotGranted, BadName.
    """
    found: Any = import_module("containers.attached.app")
    app: App = found.attach(spark, job, coordinator=coordinator, wait=wait, replace=replace, stop_timeout=stop_timeout)
    return app
