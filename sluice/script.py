"""Scripts that were not written for Sluice: `sluice.attach`. The code is in `containers`, which needs Spark, and is imported when it is
called."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluice.core.errors import BadSettings
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
    stop_timeout: timedelta | float = STOP_WITHIN,
) -> App:
    """Make this script a job: it gets a lease, and its streaming queries are reported, and stopped between batches. Call it once, after the
    session is made and before the first query. Blocks until no other process runs the job; with `wait=False` it raises instead, and with
    `replace` it stops the other one. Under `sluice exec` the lease is that of the command.

    `coordinator`: its URL; default: SLUICE_COORDINATOR_URL, else http://127.0.0.1:8180. `observe`: never end this process, also if the
    lease is lost; notebooks and hosted platforms are always observed. Under `sluice exec` it has no effect. `stop_timeout`: how long
    batches may take at a stop, and then the script to end; seconds or a timedelta, more than 0.

    Raises CannotAttach for a session of Spark Connect, for Spark before 3.5 or after 4.3, and in the deploy mode cluster unless the script
    is only observed; NotGranted; BadName; BadSettings for a wrong `stop_timeout` and for wrong settings in the environment.
    """
    name, within = JobName(checked_name("job", job)), checked_timeout(stop_timeout)
    attachable: Any = import_module("containers.attached.attachable")
    attachable.check_session(spark)
    found: Any = import_module("containers.attached.app")
    app: App = found.attach(spark, name, coordinator=coordinator, wait=wait, replace=replace, observe=observe, stop_timeout=within)
    return app


def checked_timeout(given: timedelta | float) -> timedelta:
    """Raises BadSettings for what is not a time of more than 0."""
    found = given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        try:
            found = timedelta(seconds=given)
        except (ValueError, OverflowError):  # nan, or more than a timedelta can be
            found = timedelta(0)
    if not isinstance(found, timedelta) or found <= timedelta(0):
        raise BadSettings(f"`stop_timeout` must be a timedelta or a number of seconds, more than 0, not {given!r}")
    return found
