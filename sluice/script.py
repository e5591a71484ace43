"""Scripts that were not written for Sluice: `sluice.attach`. The code is in `containers`, which needs Spark, and is imported when it is
called."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluice.core.ids import JobName, checked_name

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
    observe: bool = False,
    stop_timeout: timedelta = STOP_WITHIN,
) -> App:
    """Make this script a job: it gets a lease, and its streaming queries are reported, and stopped between batches. Call it once, after the
    session is made and before the first query. Blocks until no other process runs the job; with `wait=False` it raises instead, and with
    `replace` it stops the other one. Under `sluice exec` the lease is that of the command.

    `coordinator`: its URL; default: SLUICE_COORDINATOR_URL, else http://127.0.0.1:8180. `observe`: never end this process, also if the
    lease is lost; notebooks and hosted platforms are always observed. Under `sluice exec` it has no effect. `stop_timeout`: how long
    batches may take at a stop, and then the script to end.

    Raises CannotAttach for a session of Spark Connect, for Spark before 3.5 or after 4.3, and in the deploy mode cluster unless the script
    is only observed; NotGranted; BadName.
    """
    name = JobName(checked_name("job", job))
    attachable: Any = import_module("containers.attached.attachable")
    attachable.check_session(spark)
    found: Any = import_module("containers.attached.app")
    app: App = found.attach(spark, name, coordinator=coordinator, wait=wait, replace=replace, observe=observe, stop_timeout=stop_timeout)
    return app
