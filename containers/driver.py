"""The driver: `python -m containers.driver JOBFILE`, which the agent starts.

It loads the job file, and serves an engine on Spark over the socket that it has inherited. The agent has the lease, and decides when this
process ends. When the socket is closed, also by the death of the agent, it ends at once.

Without such a socket, as under spark-submit, it starts an agent.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

from containers.engine import Engine, RunOfJob
from containers.rpc.engine_server import EngineServer
from containers.rpc.interface import AGENT_FD
from containers.rpc.socket_link import SocketLink
from containers.settings import ContainerSettings, read_container_settings
from containers.start_times import Part, StartTimes, process_began
from containers.supervision import processes
from containers.supervision.exit_report import EXIT_FAILED, end_process
from sluice import logconfig
from sluice.clock import SystemClock
from sluice.core.errors import BadJobFile, SluiceError
from sluice.installed_spark import checked_spark
from sluice.job import Job, JobDescription, load_job

log = logging.getLogger("sluice")


def run(job_file: Path) -> NoReturn:
    """Serve until the agent ends this process. Raises BadSettings."""
    clock = SystemClock()
    stamp = logconfig.configure(logconfig.read_log_settings())
    settings = read_container_settings()
    stamp.fields |= settings.log_fields
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)  # the agent stops the queries; a handler, and not SIG_IGN, which the JVM would inherit
    fd = os.environ.pop(AGENT_FD, None)
    times = StartTimes(clock, process_began(clock, None if fd is None else os.getppid()))
    connected = _start_agent(settings) if fd is None else socket.socket(fileno=int(fd))
    os.set_inheritable(connected.fileno(), False)  # user code may start processes
    loaded: Future[Job] = Future()

    def make_engine(run: RunOfJob) -> Engine:
        """Raises PySparkMissing, SparkUnsupported."""
        times.ended(Part.COORDINATOR)
        checked_spark(os.environ)
        from containers.spark.engine import SparkEngine

        return SparkEngine(loaded.result(), settings, run, clock, times)

    def on_slot(slot: str) -> None:
        stamp.fields["processor"] = slot
        times.ended(Part.SLOT)

    def describe() -> JobDescription:
        """Raises BadJobFile."""
        return loaded.result().description()

    EngineServer(SocketLink(connected), describe, make_engine, lambda: end_process(EXIT_FAILED), on_slot, end_process).run()
    try:
        job = load_job(job_file)
    except SluiceError as error:
        loaded.set_exception(error)
    except BaseException as error:  # the agent waits for the job, or for why there is none
        loaded.set_exception(BadJobFile(f"{job_file} raises {type(error).__name__} when it is imported: {error}"))
    else:
        stamp.fields["job"] = job.name
        times.ended(Part.PROCESS)
        loaded.set_result(job)
    while True:
        threading.Event().wait()  # signal handlers run on this thread


def _start_agent(settings: ContainerSettings) -> socket.socket:
    """An agent for this process, which spark-submit has started from its JVM."""
    ours, theirs = socket.socketpair()
    table = processes.processes()
    python = table[os.getpid()]
    parent = table.get(python.parent)
    found = [python.id, *([parent.id] if parent is not None and parent.name == "java" else [])]
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "containers.agent_process", *map(str, found)],
            stdin=theirs.fileno(),
            env={**os.environ, "EXECUTION_ENV_CONTAINER_ID": settings.id},
            start_new_session=True,
        )
    return ours


if __name__ == "__main__":
    run(Path(sys.argv[1]))
