"""`sluice run` as a child process, which is stopped with this one."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import psutil

from tests.support.processes import await_line, end, must_run, start, tail, wait_for

STOP_SECONDS = 200.0


class SluiceRun:
    """A started `sluice run`, whose output goes to `log_file`."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        self._process = process
        self.log_file = log_file

    def where(self, timeout_seconds: float) -> tuple[str, str]:
        """The coordinator's URL and the run's id, as it says them. Raises EndedEarly, TooSlow."""
        coordinator, run_id = (
            await_line(self._process, self.log_file, pattern, timeout_seconds) for pattern in (r"^coordinator (http://\S+)", r"^run (\S+)")
        )
        return coordinator, run_id

    def must_run(self) -> None:
        """Raises EndedEarly, with the end of its output, if it has ended."""
        must_run(self._process, self.log_file)

    def tail(self) -> str:
        return tail(self.log_file)

    def wait(self, timeout_seconds: float) -> int | None:
        """Its exit code, if it ends by itself in that time."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def container(self, slot: int) -> psutil.Process | None:
        """The container of that slot, if it runs."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if child.environ().get("SLUICE_PROCESSOR_ID") == str(slot):
                        return child
        return None

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> int:
        """Ask it to stop the run between batches; its exit code, -9 if it had to be killed."""
        end(self._process, by=signal.SIGINT, waits=(timeout_seconds,))
        return self._process.returncode


@contextmanager
def sluice_run(
    job_file: Path,
    home: Path,
    *,
    containers: int,
    port: int,
    config: Sequence[str] = (),
    system: str = "log",
    environment: Mapping[str, str] | None = None,
    start_from: str = "earliest",
) -> Iterator[SluiceRun]:
    """`sluice run` of the job file, by default from the inputs' beginning, with `environment` beside our own. Whatever ends the block, it
    is asked to stop, and killed if that fails."""
    script = Path(sys.executable).with_name("sluice")
    command = [str(script) if script.exists() else shutil.which("sluice") or "sluice", "run", str(job_file)]
    command += ["--containers", str(containers), "--home", str(home), "--port", str(port), "--start", start_from, "--system", system]
    command += [word for each in config for word in ("--config", each)]
    log_file = home / "sluice-run.log"
    # With a session of its own, a Ctrl-C at the terminal is ours alone: it is passed on once, by `stop`.
    process = start(command, log_file, environment={**(environment or {}), "PYTHONUNBUFFERED": "1"}, new_session=True)
    run = SluiceRun(process, log_file)
    try:
        yield run
    finally:
        run.stop()


@contextmanager
def starting_late(run: SluiceRun, slot: int, seconds: float) -> Iterator[None]:
    """The container of that slot starts so much later than the others: it is stopped as soon as it is there, before it has registered, and
    continued after this time or at the end of the block. Raises TooSlow at the end if there was no such container."""
    over = Event()

    def hold() -> None:
        container = wait_for(f"the container of slot {slot}", lambda: run.container(slot), 60, every=0.02)
        container.suspend()
        over.wait(seconds)
        with suppress(psutil.NoSuchProcess):
            container.resume()

    with ThreadPoolExecutor(1, thread_name_prefix="late") as pool:
        held = pool.submit(hold)
        try:
            yield
        finally:
            over.set()
            held.result()
