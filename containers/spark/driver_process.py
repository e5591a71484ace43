"""The driver as a process of its own: `python -m containers.spark.driver_process JOBFILE`, started by `containers.agent_process`.

It loads the job file and serves an engine on Spark over the socket that it has inherited. The agent has the lease, and decides when this
process ends: when the socket is closed, also by the death of the agent, it ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from containers.engine import Engine, RunOfJob
from containers.rpc.engine_server import EngineServer
from containers.settings import read_container_settings
from containers.start_times import Part, StartTimes, process_began
from sluice import logconfig, tracing
from sluice.clock import SystemClock
from sluice.core.errors import SluiceError
from sluice.installed_spark import checked_spark
from sluice.job import Job, JobDescription, load_job

log = logging.getLogger("sluice")

AGENT_FD = "SLUICE_AGENT_FD"
"""The variable with the file descriptor of the socket to the agent."""


def main(job_file: Path) -> None:
    """Serve until the agent ends the connection. Does not return."""
    clock = SystemClock()
    times = StartTimes(clock, process_began(clock))
    stamp = logconfig.configure(logconfig.read_log_settings())
    settings = read_container_settings()
    stamp.fields |= settings.log_fields
    tracing.configure("sluice-driver", **settings.log_fields)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)  # the agent stops the queries; a handler, and not SIG_IGN, which the JVM would inherit
    connected = socket.socket(fileno=int(os.environ.pop(AGENT_FD)))
    os.set_inheritable(connected.fileno(), False)  # user code may start processes
    job: Job | None = None
    failed: SluiceError | None = None
    try:
        job = load_job(job_file)
        stamp.fields["job"] = job.name
    except SluiceError as error:
        failed = error
    times.ended(Part.PROCESS)

    def describe() -> JobDescription:
        if failed is not None:
            raise failed
        assert job is not None
        return job.description()

    def make_engine(run: RunOfJob) -> Engine:
        assert job is not None
        times.ended(Part.COORDINATOR)
        checked_spark(os.environ)
        from containers.spark.engine import SparkEngine

        return SparkEngine(job, settings, run, clock, times)

    EngineServer(connected, describe, make_engine, _end).run()
    threading.Event().wait()  # signal handlers run on this thread


def _end() -> None:
    """End this process without waiting for threads of user code and for shutdown hooks of the JVM: queries are stopped, or no longer
    may run."""
    tracing.shutdown()
    for out in (sys.stderr, sys.stdout):
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
