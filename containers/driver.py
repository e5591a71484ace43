"""The driver process: `python -m containers.driver JOBFILE`, started by the watchdog.

The main thread loads the job file, handles signals and waits. The agent's event loop has a thread of its own, so that user code does not
delay heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from select import PIPE_BUF
from types import FrameType
from typing import NoReturn

from containers import scratch
from containers.agent.agent import Agent
from containers.agent.lifecycle import EXIT_FAILED, EXIT_LEASE_LOST, ExitReason, exit_code_of
from containers.engine import Bound, Engine, RunOfJob
from containers.settings import ContainerSettings, read_container_settings
from containers.start_times import Part, StartTimes, process_began
from sluice import logconfig, tracing
from sluice.client.agents import AgentClient
from sluice.clock import SystemClock
from sluice.core.errors import SluiceError
from sluice.core.ids import Instant, JobName, StreamId
from sluice.installed_spark import checked_spark
from sluice.job import JobDescription, load_job
from sluice.wire import runs as wire_runs

log = logging.getLogger("sluice")

WATCHDOG_FD = "SLUICE_WATCHDOG_FD"
"""The file descriptor of the pipe to the watchdog."""


class WatchdogPipe:
    """The pipe to the watchdog. It carries one line for the job, one for the token of this incarnation, one for each renewal (the time
    on the clock of leases until which this process may act), and one for the exit."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_blocking(fd, False)

    def job(self, job: JobName) -> None:
        """Pass on the job's name for the watchdog's log. The watchdog does not import the job file."""
        self._write(f"job {job}")

    def token(self, token: str) -> None:
        """Pass on the token, which the watchdog needs to report the exit."""
        self._write(f"token {token}")

    def renewed(self, ends_at: Instant) -> None:
        self._write(f"lease {ends_at!r}")

    def exiting(self, reason: ExitReason) -> None:
        """Pass on the exit. Otherwise the watchdog assumes that user code has ended the process."""
        self._write(f"end {reason.exit_code} " + reason.reason.replace("\n", "\0"))

    def _write(self, line: str) -> None:
        """Write a line without blocking: a suspended watchdog must not delay heartbeats."""
        if self._fd is not None:
            try:
                os.write(self._fd, line.encode(errors="replace")[: PIPE_BUF - 1] + b"\n")
            except BlockingIOError:
                log.warning("the watchdog does not read its pipe: this renewal is not passed on")
            except OSError:
                self._fd = None


def _pipe_to_watchdog() -> WatchdogPipe:
    return WatchdogPipe(int(os.environ[WATCHDOG_FD]) if WATCHDOG_FD in os.environ else None)


def run_in_thread(name: str, work: Callable[[], None]) -> None:
    """Run `work` on a thread of its own, and signal handlers on this one, the main thread. To wait for a lock, as `Thread.join` does, would
    miss a signal that arrives just before the wait: Python's part of the handler would not run."""
    signals, written = os.pipe()
    os.set_blocking(signals, False)
    os.set_blocking(written, False)
    ended, ends = os.pipe()

    def work_and_close() -> None:
        try:
            work()
        finally:
            os.close(ends)

    before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    thread = threading.Thread(target=work_and_close, name=name)
    thread.start()
    while ended not in select.select([signals, ended], [], [])[0]:
        with suppress(BlockingIOError):
            os.read(signals, 512)
    thread.join()
    signal.set_wakeup_fd(before)
    for each in (signals, written, ended):
        os.close(each)


class AgentThread:
    """Runs the agent on a thread of its own, and passes signals to it."""

    def __init__(
        self,
        job: JobDescription,
        settings: ContainerSettings,
        on_slot: Callable[[str], None],
        make_engine: Callable[[wire_runs.BasicRun], Engine],
    ) -> None:
        """`on_slot` is called with the slot that a spare takes."""
        self._on_slot = on_slot
        self._make_engine = make_engine
        self._job = job
        self._settings = settings
        self._agent: Agent | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit_reason = ExitReason(EXIT_FAILED, "the agent ended without a reason")
        self._stop_requested = threading.Event()
        self._watchdog = _pipe_to_watchdog()
        self._watchdog.job(job.name)

    def run(self) -> ExitReason:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        run_in_thread("sluice-agent", self._agent_thread)
        self._watchdog.exiting(self._exit_reason)
        return self._exit_reason

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stop_requested.set()
        if self._loop is not None and self._agent is not None:
            self._loop.call_soon_threadsafe(self._agent.stop_requested)

    def driver_ended(self, reason: str) -> None:
        """The process of Spark has ended, if it is another one. Any thread."""
        if self._loop is not None and self._agent is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._agent.driver_ended, reason)

    def _on_lease_lost(self, reason: str) -> None:
        """End this process immediately. Its JVM ends with it, and the watchdog kills what is left."""
        self._watchdog.exiting(ExitReason(EXIT_LEASE_LOST, reason))
        log.error("lease lost: %s", reason)
        for out in (sys.stderr, sys.stdout):
            out.flush()
        os._exit(EXIT_LEASE_LOST)

    def _agent_thread(self) -> None:
        try:
            self._exit_reason = asyncio.run(self._run_agent())
        except BaseException as error:
            log.error("the agent failed", exc_info=error)
            self._exit_reason = ExitReason(EXIT_FAILED, f"the agent failed: {type(error).__name__}: {error}")

    async def _run_agent(self) -> ExitReason:
        self._loop = asyncio.get_running_loop()
        coordinator = AgentClient(self._settings.coordinator_url)
        try:
            self._agent = Agent(
                self._job,
                self._settings,
                coordinator,
                SystemClock(),
                self._make_engine,
                self._watchdog.renewed,
                self._on_lease_lost,
                on_token=self._watchdog.token,
                on_slot=self._on_slot,
            )
            if self._stop_requested.is_set():
                self._agent.stop_requested()
            if WATCHDOG_FD in os.environ:
                threading.Thread(target=self._follow_watchdog, name="sluice-watchdog", daemon=True).start()
            return await self._agent.run()
        finally:
            await coordinator.close()

    def _follow_watchdog(self) -> None:
        """Stop when the watchdog has ended. Standard input is a pipe from the watchdog, on which nothing is sent, and is closed when the
        watchdog ends."""
        while os.read(0, 1024):
            pass
        log.warning("the watchdog has ended: stopping, because nothing would kill this process when its lease expires")
        self._stop()


def run_of_job(run: wire_runs.BasicRun) -> RunOfJob:
    streams = {each.name: Bound(StreamId(each.system, each.stream), each.role == "intermediate", each.partitions) for each in run.streams}
    return RunOfJob(streams, run.systems, run.config)


def main(job_file: Path) -> int:
    """Run the container in this process; its exit code."""
    clock = SystemClock()
    times = StartTimes(clock, process_began(clock))
    try:
        stamp = logconfig.configure(logconfig.read_log_settings())
        settings = read_container_settings()
        stamp.fields |= settings.log_fields
        tracing.configure("sluice-container", **settings.log_fields)
        job = load_job(job_file)
    except SluiceError as error:
        log.error("%s %s", error.title(), error)
        reason = ExitReason(exit_code_of(error), f"{error.title()} {error}")
        _pipe_to_watchdog().exiting(reason)
        return reason.exit_code
    stamp.fields["job"] = job.name
    if WATCHDOG_FD not in os.environ:
        _claim_scratch(settings)
        log.warning("there is no watchdog: nothing kills this process if it hangs beyond its lease; stop it through the API")
    times.ended(Part.PROCESS)

    def on_slot(slot: str) -> None:
        stamp.fields.update(processor=slot)
        times.ended(Part.SLOT)

    def make_engine(run: wire_runs.BasicRun) -> Engine:
        """Raises PySparkMissing, SparkUnsupported."""
        times.ended(Part.COORDINATOR)
        checked_spark(os.environ)
        from containers.spark.engine import SparkEngine

        return SparkEngine(job, settings, run_of_job(run), clock, times)

    reason = AgentThread(job.description(), settings, on_slot, make_engine).run()
    (log.info if reason.exit_code == 0 else log.error)("exit %d: %s", reason.exit_code, reason.reason)
    return reason.exit_code


def _claim_scratch(settings: ContainerSettings) -> None:
    """Claim the temporary directories, as the watchdog otherwise does. The JVM may outlive this process, so the next container deletes this
    one's temporary files."""
    claimed = scratch.claim(settings.home, settings.id, sockets=False)
    if claimed is not None:
        claimed.started(os.getsid(0))
    scratch.clear(settings.home)


def run_and_exit(job_file: Path) -> NoReturn:
    """Run the container and end the process without waiting for user threads and the JVM's shutdown hooks: queries are stopped."""
    end_process(main(job_file))


def end_process(code: int) -> NoReturn:
    """End this process without waiting for other threads."""
    tracing.shutdown()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run_and_exit(Path(sys.argv[1]))
