"""Processes for tests, benchmarks and demos: start one, wait until it answers, read the end of its log, end it with all its children.

`examples` and `bench` import this module, so it needs no packages that only tests have.
"""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol, TypeVar

import httpx
import psutil

from containers.local.ports import free_ports

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
"""The checkout."""
SLUICE = (sys.executable, "-m", "sluice")
WAIT_SECONDS = 600.0
"""The bound of a wait, which a busy machine does not reach. Only a test that fails waits so long."""
START_SECONDS = WAIT_SECONDS
STOP_SECONDS = WAIT_SECONDS
LOOK_SECONDS = 0.05
TAIL_LINES = 40


class Starter(Protocol):
    """Starts `python -m sluice` in another way (tests/support/preloaded.py)."""

    def can_start(self, command: Sequence[str], environment: Mapping[str, str]) -> bool: ...

    def start(
        self, command: Sequence[str], out: int, err: int, cwd: Path, environment: Mapping[str, str], new_session: bool
    ) -> subprocess.Popen[bytes]: ...


_starters: list[Starter] = []


@contextmanager
def starting_with(starter: Starter) -> Iterator[None]:
    """In this block the starter starts the processes that it can start."""
    _starters.append(starter)
    try:
        yield
    finally:
        _starters.remove(starter)


def _starter_of(command: Sequence[str], environment: Mapping[str, str]) -> Starter | None:
    return next((each for each in _starters if each.can_start(command, environment)), None)


class ProcessFailed(Exception):
    """A process did not start, or did not do what was awaited."""


class EndedEarly(ProcessFailed):
    """A process ended when it should have been running."""


class TooSlow(ProcessFailed):
    """Something did not happen within its time limit."""


def free_port() -> int:
    """A loopback port on which nothing listens, and which the system gives to no client."""
    [port] = free_ports(1)
    return port


@cache
def _trusted(authority: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


def get(url: str, authority: Path | None = None, token: str = "") -> httpx.Response:
    """Send one GET request. `authority`: the CA certificate of the server. `token`: "" for none. Raises httpx.HTTPError."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(url, verify=_trusted(authority), headers=headers, trust_env=False, timeout=10)


def start(
    command: Sequence[str],
    log: Path,
    *,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    append: bool = False,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process with `environment` added to the environment of this process, and both outputs in `log`. A Ctrl-C at the terminal
    does not reach a process with `new_session`.
    """
    whole = {**os.environ, **(environment or {})}
    with log.open("ab" if append else "wb") as out:
        if starter := _starter_of(command, whole):
            return starter.start(command, out.fileno(), out.fileno(), cwd, whole, new_session)
        return subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=whole, start_new_session=new_session
        )


def completed(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, cwd: Path = ROOT, seconds: float = WAIT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing as its input until it ends. Raises subprocess.TimeoutExpired, after the command was killed."""
    whole = dict(os.environ if environment is None else environment)
    starter = _starter_of(command, whole)
    if starter is None:
        return subprocess.run(
            command, cwd=cwd, env=whole, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = starter.start(command, out.fileno(), err.fileno(), cwd, whole, new_session=False)
        try:
            code = process.wait(seconds)
        finally:
            kill_whole(process)
        for each in (out, err):
            each.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    last = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join([f"  the end of {log.name}:", *(f"  | {line}" for line in last)])


def must_run(process: subprocess.Popen[Any], log: Path) -> None:
    """Raises EndedEarly, with the end of the log, if the process has ended."""
    code = process.poll()
    if code is not None:
        raise EndedEarly(f"{log.stem} ended with exit code {code}\n{tail(log)}")


def wait_for(
    what: str, look: Callable[[], T | None], seconds: float = WAIT_SECONDS, *, every: float = 0.1, details: Callable[[], str] | None = None
) -> T:
    """Call `look` until its result is true, and return it. Raises TooSlow, with the text that `details` returns."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise TooSlow(f"{what}: not within {seconds:g} s" + (f"\n{details()}" if details else ""))
        time.sleep(every)
    return found


def await_answer(process: subprocess.Popen[Any], url: str, log: Path, authority: Path | None = None) -> None:
    """Wait until the server answers with 200. Raises EndedEarly, TooSlow."""

    def answers() -> bool:
        must_run(process, log)
        with suppress(httpx.HTTPError):
            return get(url, authority).status_code == 200
        return False

    wait_for(f"an answer of {url}", answers, START_SECONDS, every=LOOK_SECONDS, details=lambda: tail(log))


def await_line(process: subprocess.Popen[Any], log: Path, pattern: str, seconds: float = START_SECONDS) -> str:
    """Wait for a line of the log that matches the pattern. Returns its first group. Raises EndedEarly, TooSlow."""

    def found() -> re.Match[str] | None:
        ended = process.poll() is not None
        match = re.search(pattern, log.read_text(errors="replace"), re.MULTILINE)
        if match is None and ended:
            must_run(process, log)
        return match

    return wait_for(f"{pattern!r} in {log.name}", found, seconds, every=LOOK_SECONDS, details=lambda: tail(log))[1]


def kill_whole(process: subprocess.Popen[Any]) -> None:
    """Send SIGKILL to a child process and all its descendants at once, as if the machine were lost."""
    if process.poll() is not None:
        return
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(process.pid)
        for each in [whole, *whole.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def end(*processes: subprocess.Popen[Any], by: signal.Signals = signal.SIGTERM, waits: Sequence[float] = (STOP_SECONDS,)) -> None:
    """End the processes together: send the signal, and send it again, each time followed by a wait of that many seconds.

    Processes that still run after that, or after an interruption, are killed with all their descendants.
    """
    try:
        for seconds in waits:
            running = [process for process in processes if process.poll() is None]
            for process in running:
                process.send_signal(signal.SIGCONT)
                process.send_signal(by)
            until = time.monotonic() + seconds
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
    finally:
        for process in processes:
            kill_whole(process)


@contextmanager
def ending(process: subprocess.Popen[Any], *, waits: Sequence[float] = (STOP_SECONDS,)) -> Iterator[None]:
    """Ends the process at the end of the block."""
    try:
        yield
    finally:
        end(process, waits=waits)


@contextmanager
def serving(
    command: Sequence[str],
    url: str,
    log: Path,
    *,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    new_session: bool = False,
    authority: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, from its first answer to the end of the block. Raises EndedEarly, TooSlow."""
    process = start(command, log, cwd=cwd, environment=environment, new_session=new_session)
    with ending(process):
        await_answer(process, url, log, authority)
        yield process
