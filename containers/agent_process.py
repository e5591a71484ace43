"""The process of the agent, `sluice container`: it starts the driver and a guardian, runs the agent, and ends the driver with all that
descends from it before it reports the exit.

The driver has a session of its own, so that a signal from the terminal reaches only the agent, which lets batches finish. The agent imports
neither PySpark nor the job file: user code cannot delay heartbeats. `python -m containers.agent_process PID@START…` is started by a driver
that was started in another way (see `containers.driver`). Its standard input is then the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from containers.errors import signal_name
from containers.rpc.connection import ConnectionLost
from containers.rpc.interface import AGENT_FD
from containers.rpc.remote_engine import RemoteEngine
from containers.rpc.socket_link import SocketLink
from containers.settings import ContainerSettings, read_container_settings
from containers.supervision import processes, scratch
from containers.supervision.driver_processes import DriverProcesses
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK, Ending, end_process, replace_process
from containers.supervision.guardian import MARK
from containers.supervision.processes import ProcessId, runs
from containers.supervision.scratch import Scratch
from sluice import logconfig, tracing
from sluice.clock import Clock, SystemClock
from sluice.core.errors import SluiceError
from sluice.job import JobDescription
from sluice.logconfig import FieldsFilter

if TYPE_CHECKING:
    from containers.agent.agent import Agent
    from containers.agent.lifecycle import ExitReason

log = logging.getLogger("sluice")

DRIVER = (sys.executable, "-P", "-m", "containers.driver")
"""The command of the driver. Sluice starts every Python with `-P`: otherwise the working directory is first on the path, and files in it
shadow Sluice. The variable PYTHONSAFEPATH would be inherited by processes that user code starts."""

STOP_WITH_STDIN = "SLUICE_STOP_WITH_STDIN"
"""An environment variable that is set by a launcher that holds the other end of standard input. The end of standard input is then a request
to stop."""

ENDS_WITHIN, JVM_ENDS_WITHIN = timedelta(seconds=5), timedelta(seconds=30)
"""How long a driver that was told to end may take, which only writes what is left in its buffers; and the JVM of spark-submit, which then
ends as it does after any script."""

POLL_SECONDS = 0.2
"""How often it is looked whether a driver that this process has not started has ended."""


class Driver:
    """The driver's process, which this process has started or was started by."""

    def __init__(self, connected: socket.socket, roots: Sequence[ProcessId], started: asyncio.subprocess.Process | None = None) -> None:
        self.connected = connected
        self.roots = roots
        """Its Python; under spark-submit also its JVM, which is not below it. Empty if it has ended."""
        self._started = started
        self.ends_within = JVM_ENDS_WITHIN if started is None else ENDS_WITHIN

    @property
    def pid(self) -> int | None:
        return self.roots[0].pid if self.roots else None

    async def wait(self) -> str:
        """Wait for the end of its Python, and return how it has ended."""
        if self._started is None:
            await _ended(self.roots[:1])
            return "its driver has ended"
        code = await self._started.wait()
        if code < 0:
            return f"its driver was killed by {signal_name(-code)}"
        return f"its driver exited with code {code} without a reason: user code ended the process, or it could not start"

    async def ended(self) -> None:
        """Wait for the end of its Python, and of a JVM that is not below it."""
        await (_ended(self.roots) if self._started is None else self._started.wait())


async def _ended(found: Sequence[ProcessId]) -> None:
    while any(map(runs, found)):  # noqa: ASYNC110 — they are no children, so their end raises no event
        await asyncio.sleep(POLL_SECONDS)


class AgentProcess:
    """One container. Created and used on its event loop."""

    def __init__(self, settings: ContainerSettings, clock: Clock, stamp: FieldsFilter) -> None:
        self._settings = settings
        self._clock = clock
        self._stamp = stamp
        self._processes = DriverProcesses(settings.id, settings.coordinator_url, settings.home)
        self._scratch: Scratch | None = None
        self._driver: Driver | None = None
        self._driver_ended: asyncio.Task[str] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._lost_driver = ""
        """That the driver does not answer, although it runs; "" if that is not so."""
        self._engine: RemoteEngine | None = None
        self._agent: Agent | None = None
        self._stop_requested = asyncio.Event()
        self._serves = False
        """Whether the driver has begun to serve."""

    async def run(self, command: Sequence[str] = (), found: Driver | None = None) -> ExitReason:
        """Run the container with the driver that `command` starts, or with one that was `found`. Returns why it ended, when all processes
        have ended."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, self._on_signal)
        processes.become_subreaper()
        self._scratch = scratch.claim(self._settings.home, self._settings.id, sockets=found is None)
        try:
            self._driver = driver = found or await self._start(command)
            if self._scratch is not None:
                self._scratch.started(os.getsid(driver.pid) if driver.pid is not None else 0)
            if found is None:
                self._processes.waited_for = driver.pid
            else:
                self._processes.has(found.roots)
            self._driver_ended = asyncio.create_task(driver.wait(), name="driver")
            await self._processes.watch()
            self._in_background(self._clear_leftovers())
            if found is None and os.environ.get(STOP_WITH_STDIN):
                with suppress(PermissionError):  # a plain file or /dev/null, which has no other end
                    loop.add_reader(0, self._on_launcher_end)
            self._engine = RemoteEngine(SocketLink(driver.connected), lambda: self._from_thread(loop))
            return await self._run_agent(self._engine)
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.to_thread(self._processes.end_all)  # without effect unless something has failed
            await self._processes.close()

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _start(self, command: Sequence[str]) -> Driver:
        ours, theirs = socket.socketpair()
        variables = {AGENT_FD: str(theirs.fileno()), "EXECUTION_ENV_CONTAINER_ID": self._settings.id, MARK: self._settings.id}
        inherited = [theirs.fileno()]
        if self._scratch is not None:
            inherited.append(self._scratch.lock)
            if self._scratch.sockets is not None:
                variables["SLUICE_SOCKETS_DIR"] = str(self._scratch.sockets)
        with theirs:
            started = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        python = processes.process(started.pid)
        return Driver(ours, [] if python is None else [python.id], started)

    async def _run_agent(self, engine: RemoteEngine) -> ExitReason:
        from containers.agent.agent import Agent, run_of_job  # while the driver starts
        from containers.agent.lifecycle import ExitReason, exit_code_of
        from sluice.client.agents import AgentClient

        assert self._driver_ended is not None
        assert self._driver is not None
        try:
            job = await self._describe(engine)
        except ConnectionLost:
            reason = ExitReason(EXIT_FAILED, self._with_log(await self._driver_ended))
        except SluiceError as error:
            reason = ExitReason(exit_code_of(error), f"{error.title()} {error}")
        except Exception as error:  # of the job file
            reason = ExitReason(EXIT_FAILED, str(error))
        else:
            reason = ExitReason(EXIT_OK, "stop requested before the driver had started")
            if job is not None:
                self._stamp.fields["job"] = job.name
                coordinator = AgentClient(self._settings.coordinator_url)
                try:
                    self._agent = Agent(
                        job,
                        self._settings,
                        coordinator,
                        self._clock,
                        lambda run: engine.of_run(run_of_job(run)),
                        self._processes.guardian.renewed,
                        self._lose_lease,
                        on_token=self._processes.guardian.has_token,
                        on_slot=self._on_slot,
                        not_now=self._processes.stopped,
                        end_driver=self._end_driver,
                        driver_pid=self._driver.pid,
                    )
                    self._driver_ended.add_done_callback(self._on_driver_end)
                    if self._stop_requested.is_set():
                        self._agent.stop_requested()
                    return await self._agent.run()
                finally:
                    await coordinator.close()
        await self._end_driver(reason.exit_code)
        return reason

    async def _describe(self, engine: RemoteEngine) -> JobDescription | None:
        """The job, once the driver has loaded its file; None if a stop is requested before. Raises what `RemoteEngine.describe` raises."""
        describing = asyncio.ensure_future(asyncio.to_thread(engine.describe))
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        await asyncio.wait([describing, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if describing.done():
            self._serves = True
            return describing.result()
        describing.add_done_callback(lambda done: done.exception())  # of a driver that was ended
        return None

    def _with_log(self, reason: str) -> str:
        return f"{reason}\nlog: {self._settings.log_place}" if self._settings.log_place else reason

    def _on_slot(self, slot: str) -> None:
        self._stamp.fields["processor"] = slot
        if self._engine is not None:
            self._engine.took_slot(slot)

    async def _clear_leftovers(self) -> None:
        """Delete the temporary files of containers that were killed together with their guardians."""
        if left := await asyncio.to_thread(scratch.clear, self._settings.home):
            log.info("deleted the temporary files of %d dead containers: %s", len(left), ", ".join(left))

    # --- requests to stop ------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._stop_requested.set()
        if self._agent is not None:
            self._agent.stop_requested()

    def _on_launcher_end(self) -> None:
        if not os.read(0, 1024):
            asyncio.get_running_loop().remove_reader(0)
            self._on_signal()

    # --- the end of the driver -------------------------------------------------------------------------------------

    def _from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: self._in_background(self._end_lost_driver()))

    async def _end_lost_driver(self) -> None:
        """The socket is closed: the driver has ended, ends, or must be ended."""
        assert self._driver is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._driver.ends_within.total_seconds()):
                await self._driver.ended()
                return
        self._lost_driver = "its driver does not answer, and was killed"
        await asyncio.to_thread(self._processes.end_all)

    def _on_driver_end(self, ended: asyncio.Task[str]) -> None:
        if self._agent is not None and not ended.cancelled():
            self._agent.driver_ended(self._lost_driver or ended.result())

    async def _end_driver(self, exit_code: int) -> bool:
        """End the driver and all that descends from it; whether all of it has ended. A driver that serves may write what is in its buffers,
        unless the lease is lost."""
        assert self._engine is not None
        assert self._driver is not None
        if self._serves and exit_code != EXIT_LEASE_LOST:
            self._engine.end(exit_code)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._driver.ends_within.total_seconds()):
                    await self._driver.ended()
        _, all_ended = await asyncio.to_thread(self._processes.end_all)
        if not all_ended:
            log.error("processes of the driver cannot be killed")
            return False
        for task in self._background:
            task.cancel()
        await self._processes.close()  # the lease may end while the exit is reported
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.remove)
        return True

    def _lose_lease(self, reason: str) -> NoReturn:
        """End the driver and this process at once. What is left to do is done without the threads of this one, which may not act."""
        _, all_ended = self._processes.end_all()
        self._processes.guardian.kill()
        home = str(self._settings.home.absolute())
        token = self._processes.guardian.token
        replace_process(Ending(self._settings.coordinator_url, self._settings.id, EXIT_LEASE_LOST, reason, token, home, all_ended))


def run_container(job_file: Path) -> NoReturn:
    """Run the container of a job file, and end this process with its exit code. Raises BadSettings."""
    _run([*DRIVER, str(job_file)])


def _run(command: Sequence[str] = (), found: Driver | None = None) -> NoReturn:
    stamp = logconfig.configure(logconfig.read_log_settings())
    settings = read_container_settings()
    stamp.fields |= settings.log_fields
    tracing.configure("sluice-container", **settings.log_fields)

    async def run() -> ExitReason:
        return await AgentProcess(settings, SystemClock(), stamp).run(command, found)

    code = EXIT_FAILED
    try:
        reason = asyncio.run(run())
        code = reason.exit_code
        (log.info if code == EXIT_OK else log.error)("exit %d: %s", code, reason.reason)
        tracing.shutdown()
    except Exception:
        log.exception("the agent failed")
    finally:
        end_process(code)  # threads may wait for what has ended


if __name__ == "__main__":
    _run(found=Driver(socket.socket(fileno=os.dup(0)), [ProcessId.parse(each) for each in sys.argv[1:]]))
