"""The driver process: `python -m containers.driver JOBFILE`, started by the watchdog.

The main thread loads the job file, takes the signals and waits; the agent's event loop has a thread of its own, so that heartbeats go on
whatever the user's code does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from select import PIPE_BUF
from types import FrameType
from typing import NoReturn

from containers.agent.agent import Agent
from containers.agent.lifecycle import EXIT_FAILED, EXIT_LEASE_LOST, ExitReason
from containers.engine import Engine
from containers.settings import ContainerSettings, read_container_settings
from sluice import logconfig
from sluice.client import CoordinatorClient
from sluice.clock import SystemClock
from sluice.core.errors import SluiceError
from sluice.core.ids import Instant, JobName, StreamId
from sluice.job import Job, load_job
from sluice.wire import runs as wire_runs

log = logging.getLogger("sluice")

WATCHDOG_FD = "SLUICE_WATCHDOG_FD"
"""Names the pipe on which the watchdog hears of the lease."""


class Lifeline:
    """The pipe to the watchdog: the job, a line a renewal (the time on the clock of leases until which this process may act), the end."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_blocking(fd, False)

    def works_for(self, job: JobName) -> None:
        """The watchdog does not import the job file, and wants the name for its log."""
        self._tell(f"job {job}")

    def renewed(self, ends_at: Instant) -> None:
        self._tell(f"lease {ends_at!r}")

    def ended(self, ending: ExitReason) -> None:
        """Last words: without them an exit code is not the agent's but that of user code which ended the process."""
        self._tell(f"end {ending.exit_code} " + ending.reason.replace("\n", "\0"))

    def _tell(self, line: str) -> None:
        """Never blocks: a watchdog that is paused must not pause the heart with it."""
        if self._fd is not None:
            try:
                os.write(self._fd, line.encode(errors="replace")[: PIPE_BUF - 1] + b"\n")
            except BlockingIOError:
                log.warning("the watchdog does not read: it will hear of a later renewal")
            except OSError:
                self._fd = None


class Driver:
    """The agent's thread and the main thread, joined."""

    def __init__(self, job: Job, settings: ContainerSettings) -> None:
        self._job = job
        self._settings = settings
        self._agent: Agent | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = ExitReason(EXIT_FAILED, "the agent ended without a word")
        self._stop_early = threading.Event()
        self._lifeline = Lifeline(int(os.environ[WATCHDOG_FD]) if WATCHDOG_FD in os.environ else None)
        self._lifeline.works_for(job.name)

    def run(self) -> ExitReason:
        thread = threading.Thread(target=self._agent_thread, name="sluice-agent")
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        thread.start()
        thread.join()
        self._lifeline.ended(self._ending)
        return self._ending

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stop_early.set()
        if self._loop is not None and self._agent is not None:
            self._loop.call_soon_threadsafe(self._agent.stop_requested)

    def _die_of_lost_lease(self, why: str) -> None:
        """End this process at once. Its JVM ends with it, and the watchdog ends whatever does not."""
        self._lifeline.ended(ExitReason(EXIT_LEASE_LOST, why))
        log.error("lease lost: %s", why)
        for out in (sys.stderr, sys.stdout):
            out.flush()
        os._exit(EXIT_LEASE_LOST)

    def _agent_thread(self) -> None:
        try:
            self._ending = asyncio.run(self._live())
        except BaseException as error:
            log.error("the agent failed", exc_info=error)
            self._ending = ExitReason(EXIT_FAILED, f"the agent failed: {type(error).__name__}: {error}")

    async def _live(self) -> ExitReason:
        self._loop = asyncio.get_running_loop()
        coordinator = CoordinatorClient(self._settings.coordinator_url)
        try:
            self._agent = Agent(
                self._job,
                self._settings,
                coordinator,
                SystemClock(),
                self._make_engine,
                self._lifeline.renewed,
                self._die_of_lost_lease,
            )
            if self._stop_early.is_set():
                self._agent.stop_requested()
            if WATCHDOG_FD in os.environ:
                threading.Thread(target=self._follow_watchdog, name="sluice-lifeline", daemon=True).start()
            return await self._agent.run()
        finally:
            await coordinator.close()

    def _follow_watchdog(self) -> None:
        """Standard input is the watchdog's end of a pipe that carries nothing: its end is the watchdog's end, and then ours, in order."""
        while os.read(0, 1024):
            pass
        log.warning("the watchdog is gone: stopping, since nobody could end this process when its lease ends")
        self._stop()

    def _make_engine(self, run: wire_runs.RunDetail) -> Engine:
        from containers.spark.engine import SparkEngine
        from containers.spark.task import Bound

        streams = {each.name: Bound(StreamId(each.system, each.stream), intermediate=each.role == "intermediate") for each in run.streams}
        return SparkEngine(self._job, self._settings, streams, run.systems, run.config, SystemClock())


def main(job_file: Path) -> int:
    """Run the container in this process; its exit code."""
    try:
        stamp = logconfig.configure(logconfig.read_log_settings())
        settings = read_container_settings()
        stamp.fields |= settings.log_fields
        job = load_job(job_file)
    except SluiceError as error:
        log.error("%s %s", error.title(), error)
        return EXIT_FAILED
    stamp.fields["job"] = job.name
    if WATCHDOG_FD not in os.environ:
        log.warning("there is no watchdog: nobody ends this process if it hangs beyond its lease, and it is stopped by the API")
    ending = Driver(job, settings).run()
    (log.info if ending.exit_code == 0 else log.error)("exit %d: %s", ending.exit_code, ending.reason)
    return ending.exit_code


def run_and_exit(job_file: Path) -> NoReturn:
    """Run the container and end the process: user threads and the JVM's shutdown hooks have no say any more; queries are stopped."""
    code = main(job_file)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run_and_exit(Path(sys.argv[1]))
