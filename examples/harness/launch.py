"""`sluice run` as a child process, which is stopped together with this process."""

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
        """The URL of the coordinator and the id of the run, from the output of `sluice run`. Raises EndedEarly, TooSlow."""
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
        """The exit code, if the process ends by itself within that time."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def container(self, slot: int) -> psutil.Process | None:
        """The process of the container in that slot, if it runs."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if child.environ().get("SLUICE_PROCESSOR_ID") == str(slot):
                        return child
        return None

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> int:
        """Stop the run between batches. Returns the exit code; -9 if the process had to be killed."""
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
    """Runs `sluice run` with the job file, by default from the beginning of the inputs.

    `environment` is added to the environment of this process. When the block ends for any reason, the process is stopped, and killed if
    that fails.
    """
    script = Path(sys.executable).with_name("sluice")
    command = [str(script) if script.exists() else shutil.which("sluice") or "sluice", "run", str(job_file)]
    command += ["--containers", str(containers), "--home", str(home), "--port", str(port), "--start", start_from, "--system", system]
    command += [word for each in config for word in ("--config", each)]
    log_file = home / "sluice-run.log"
    # In a session of its own, because a Ctrl-C at the terminal must reach it once only: `stop` passes it on.
    process = start(command, log_file, environment={**(environment or {}), "PYTHONUNBUFFERED": "1"}, new_session=True)
    run = SluiceRun(process, log_file)
    try:
        yield run
    finally:
        run.stop()


@contextmanager
def starting_late(run: SluiceRun, slot: int, seconds: float) -> Iterator[None]:
    """The container of that slot starts `seconds` later than the others: its process is suspended as soon as it exists, before it
    registers, and resumed after this time or at the end of the block. Raises TooSlow at the end if there was no such container.
    """
    over = Event()

    def hold() -> None:
        container = wait_for(f"the container of slot {slot}", lambda: run.container(slot), every=0.02)
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
