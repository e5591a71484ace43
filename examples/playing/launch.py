"""`sluice run` as a process of ours: started, watched, stopped, and never left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

_SAID = {"coordinator": re.compile(r"^coordinator (http://\S+)"), "run": re.compile(r"^run (\S+)")}
_TAIL_LINES = 40


class EndedEarly(Exception):
    """`sluice run` ended, or said nothing, when it should have been running."""


def kill_whole(process: subprocess.Popen[Any]) -> None:
    """SIGKILL for a child of ours and all that it started, at once: as when the machine is gone."""
    try:
        whole = [psutil.Process(process.pid)]
        whole += whole[0].children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for each in whole:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


class SluiceRun:
    """A started `sluice run`, whose output goes to `log_file`."""

    def __init__(self, process: subprocess.Popen[str], log_file: Path) -> None:
        self._process = process
        self._said: dict[str, str] = {}
        self._spoken = threading.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.log_file = log_file
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._listen, args=(process.stdout,), name="sluice-run-output", daemon=True)
        self._reader.start()

    def _listen(self, output: IO[str]) -> None:
        with self.log_file.open("w") as file:
            for line in output:
                file.write(line)
                file.flush()
                self._tail.append(line.rstrip())
                for what, pattern in _SAID.items():
                    if said := pattern.match(line):
                        self._said[what] = said[1]
                if len(self._said) == len(_SAID):
                    self._spoken.set()
        self._spoken.set()

    def where(self, timeout_seconds: float) -> tuple[str, str]:
        """The coordinator's URL and the run's id, as it says them. Raises EndedEarly."""
        self._spoken.wait(timeout_seconds)
        if len(self._said) < len(_SAID):
            raise EndedEarly(f"sluice run did not name its coordinator and its run (waited at most {timeout_seconds:g} s)\n{self.tail()}")
        return self._said["coordinator"], self._said["run"]

    def must_run(self) -> None:
        """Raises EndedEarly, with the end of its output, if it has ended."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(2)
            raise EndedEarly(f"sluice run ended with exit code {code}\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(["  its last lines:", *(f"  | {line}" for line in self._tail)])

    def wait(self, timeout_seconds: float) -> int | None:
        """Its exit code, if it ends by itself in that time."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, timeout_seconds: float = 200.0) -> int:
        """Ask it to stop the run between batches; its exit code, -9 if it had to be killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def kill(self) -> None:
        """End it with everything that it started, at once."""
        kill_whole(self._process)


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
    start: str = "earliest",
) -> Iterator[SluiceRun]:
    """`sluice run` of the job file, by default from the inputs' beginning, with `environment` beside our own. Whatever ends the block, it
    is asked to stop, and killed if that fails."""
    script = Path(sys.executable).with_name("sluice")
    command = [str(script) if script.exists() else shutil.which("sluice") or "sluice", "run", str(job_file)]
    command += ["--containers", str(containers), "--home", str(home), "--port", str(port), "--start", start]
    command += ["--system", system]
    command += [word for each in config for word in ("--config", each)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # a Ctrl-C at the terminal is ours alone: it is passed on once, by `stop`
    )
    running = SluiceRun(process, home / "sluice-run.log")
    try:
        yield running
    finally:
        try:
            running.stop()
        except KeyboardInterrupt:
            running.kill()
