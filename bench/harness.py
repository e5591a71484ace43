"""What all benchmarks stand on: a result and how it is printed, and server processes that are pinned to a core.

A machine's speed changes from minute to minute, so every benchmark measures its subject against a peer in the same run, in turns, and
judges by the ratio of the medians. The server under load has one core and the load generator the other.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
START_SECONDS = 30.0
STOP_SECONDS = 10.0


class BenchFailed(Exception):
    """The benchmark could not be run, or what was measured gave wrong answers. Its text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found. `ratio` is the figure that is judged, `target` says in words what is asked, `met` whether it was found."""

    name: str
    figures: Mapping[str, float]
    ratio: float
    target: str
    met: bool

    def line(self) -> str:
        """The result as one JSON object."""
        return json.dumps(
            {"name": self.name, "figures": dict(self.figures), "ratio": self.ratio, "target": self.target, "met": self.met},
            separators=(",", ":"),
        )

    def told(self) -> list[str]:
        """The result for people."""
        width = max((len(name) for name in self.figures), default=0)
        return [
            self.name,
            *(f"  {name:<{width}}  {shown(value)}" for name, value in self.figures.items()),
            f"  ratio {self.ratio:.3f}; target: {self.target}; {'met' if self.met else 'MISSED'}",
        ]


def shown(value: float) -> str:
    """A figure for people: whole above a thousand, else four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def report(result: Result) -> None:
    """Print the result: lines for people, then the JSON object as the last line of stdout."""
    print(*result.told(), result.line(), sep="\n", flush=True)


def note(text: str) -> None:
    """Say how the run is going, beside the result."""
    print(f"# {text}", file=sys.stderr, flush=True)


@cache
def cores() -> tuple[set[int], set[int]]:
    """The server's cores and the load generator's: the first and the second that we may use; one for both where there is no other.
    Found out once: asked again by a load generator that is pinned already, they would be one and the same."""
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    mine = sorted(os.sched_getaffinity(0))
    return {mine[0]}, {mine[1 % len(mine)]}


@contextmanager
def pinned(which: set[int]) -> Iterator[None]:
    """Processes started inside run on these cores only, all threads of them. Without effect where the system cannot pin."""
    if not which or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, which)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that was started here."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """The CPU time that it has used."""
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)


@contextmanager
def running(command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server process on the server's core, with `environment` beside ours, from its first answer to /livez until the block is left.

    Only this process is ended, whatever happens. Raises BenchFailed with the end of what it logged when it does not come up.
    """
    with tempfile.TemporaryFile("w+") as said:
        with pinned(cores()[0]):
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **(environment or {})}
            )
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            if not _answers(f"{server.url}/livez", process):
                said.seek(0)
                raise BenchFailed(f"{' '.join(command[1:4])} did not start: {tail(said.read())}")
            yield server
        finally:
            end(process)


def coordinator(home: Path, port: int) -> list[str]:
    """The command of the real coordinator, on `port`, with its database under `home`."""
    return [sys.executable, "-m", "coordinator.cli", "coordinator", "--port", str(port), "--home", str(home)]


def get(url: str) -> tuple[int, dict[str, str], bytes]:
    """One GET: status, headers in small letters, body."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if get(url)[0] == 200:
                return True
        except OSError:
            time.sleep(0.05)
    return False


def end(process: subprocess.Popen[Any]) -> None:
    """Ask it to end, and kill it if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tail(text: str) -> str:
    """The last line of what a process said."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
