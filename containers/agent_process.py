"""The agent as a process of its own: `python -m containers.agent_process JOBFILE`, started by the watchdog in place of `containers.driver`.

It starts the driver, which loads the job file and runs Spark, and uses its engine over a socket. It imports neither PySpark nor the job
file. Both are in the session that the watchdog kills at the end of the lease.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from containers.agent.lifecycle import ExitReason, exit_code_of
from containers.driver import WATCHDOG_FD, AgentThread, WatchdogPipe, end_process, run_of_job
from containers.errors import signal_name
from containers.rpc.remote_engine import RemoteEngine
from containers.settings import ContainerSettings, read_container_settings
from sluice import logconfig, tracing
from sluice.core.errors import SluiceError

log = logging.getLogger("sluice")

DRIVER = (sys.executable, "-P", "-m", "containers.spark.driver_process")
"""The command of the driver, to which the job file is appended."""


def start_driver(job_file: Path, settings: ContainerSettings) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The driver, and the socket to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        own = {"SLUICE_AGENT_FD": str(theirs.fileno()), "EXECUTION_ENV_CONTAINER_ID": settings.id}
        variables = {name: value for name, value in os.environ.items() if name != WATCHDOG_FD}
        process = subprocess.Popen([*DRIVER, str(job_file)], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**variables, **own})
    return process, ours


def main(job_file: Path) -> int:
    """Run the container; its exit code."""
    watchdog = WatchdogPipe(int(os.environ[WATCHDOG_FD]) if WATCHDOG_FD in os.environ else None)
    try:
        stamp = logconfig.configure(logconfig.read_log_settings())
        settings = read_container_settings()
        stamp.fields |= settings.log_fields
        tracing.configure("sluice-agent", **settings.log_fields)
        process, connected = start_driver(job_file, settings)
        ended = threading.Event()
        engine = RemoteEngine(connected, ended.set)
        job = engine.describe()
    except SluiceError as error:
        log.error("%s %s", error.title(), error)
        reason = ExitReason(exit_code_of(error), f"{error.title()} {error}")
        watchdog.exiting(reason)
        return reason.exit_code
    stamp.fields["job"] = job.name
    agent = AgentThread(job, settings, lambda slot: stamp.fields.update(processor=slot), lambda run: engine.of_run(run_of_job(run)))

    def follow_driver() -> None:
        ended.wait()
        agent.driver_ended(_end_of(process.wait()))

    threading.Thread(target=follow_driver, name="sluice-driver", daemon=True).start()
    reason = agent.run()
    (log.info if reason.exit_code == 0 else log.error)("exit %d: %s", reason.exit_code, reason.reason)
    return reason.exit_code


def _end_of(code: int) -> str:
    if code < 0:
        return f"the driver was killed by {signal_name(-code)}"
    return f"the driver exited with code {code} without a reason: user code ended the process, or it could not start"


if __name__ == "__main__":
    end_process(main(Path(sys.argv[1])))
