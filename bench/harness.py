"""Shared by all benchmarks: a result and its output, and server processes that are pinned to a core.

The speed of a machine changes from minute to minute. A benchmark therefore measures its subject and a peer alternately in the same run, and
judges by the ratio of the medians. The server under load has one core and the load generator the other. The docstrings of benchmarks that
measure in another way say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import ROOT, SLUICE, await_answer, ending, kill_whole, must_run, start


class BenchFailed(Exception):
    """The benchmark could not be run, or the measured program gave wrong answers. The text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a benchmark. `ratio` is the figure that is judged, `target` describes the target, `met` says whether it was met."""

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

    def lines(self) -> list[str]:
        """The result for people."""
        width = max((len(name) for name in self.figures), default=0)
        return [
            self.name,
            *(f"  {name:<{width}}  {shown(value)}" for name, value in self.figures.items()),
            f"  ratio {self.ratio:.3f}; target: {self.target}; {'met' if self.met else 'MISSED'}",
        ]


def shown(value: float) -> str:
    """A figure for people: an integer from a thousand on, otherwise four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def report(result: Result) -> None:
    """Print the result: lines for people, then the JSON object as the last line of stdout."""
    print(*result.lines(), result.line(), sep="\n", flush=True)


def note(text: str) -> None:
    """Report the progress of the benchmark on standard error."""
    print(f"# {text}", file=sys.stderr, flush=True)


@cache
def cores() -> tuple[set[int], set[int]]:
    """The cores of the server and of the load generator: the first and the second that this process may use, or the same one twice.

    Cached, because a load generator that is already pinned would find only one core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    mine = sorted(os.sched_getaffinity(0))
    return {mine[0]}, {mine[1 % len(mine)]}


@contextmanager
def pinned(which: set[int]) -> Iterator[None]:
    """Processes started in the block run on these cores only, with all their threads. Has no effect on systems that cannot pin."""
    if not which or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, which)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that the benchmark started. `authority`: the PEM file of its certificate's authority, None without TLS."""

    url: str
    pid: int
    authority: Path | None = None

    def cpu_seconds(self) -> float:
        """The CPU time that it has used, in seconds."""
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)


@contextmanager
def running(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None, authority: Path | None = None
) -> Iterator[Server]:
    """Runs a server process on the server's core, from its first answer to /livez until the end of the block. `environment` is added to
    the environment of this process. `authority`: that of its certificate, if it uses TLS. Raises EndedEarly, TooSlow.
    """
    with tempfile.NamedTemporaryFile(prefix=f"{command[2]}-", suffix=".log") as said:
        log = Path(said.name)
        with pinned(cores()[0]):
            process = start(command, log, environment=environment)
        with ending(process):
            server = Server(f"{'http' if authority is None else 'https'}://127.0.0.1:{port}", process.pid, authority)
            await_answer(process, f"{server.url}/livez", log, authority)
            yield server


def coordinator(home: Path, port: int) -> list[str]:
    """The command of the real coordinator on `port`, with its database under `home`."""
    return [*SLUICE, "coordinator", "--port", str(port), "--home", str(home)]


@dataclass(frozen=True, slots=True)
class Peer:
    """A Python module of the benchmark that writes lines of JSON to its standard output."""

    process: subprocess.Popen[str]
    errors: Path

    def lines(self) -> Iterator[Any]:
        """The decoded lines, until the process ends."""
        assert self.process.stdout is not None
        return map(json.loads, self.process.stdout)

    def must_run(self) -> None:
        """Raises EndedEarly, with the end of its standard error, if it has ended."""
        must_run(self.process, self.errors)


@contextmanager
def peer(
    arguments: Sequence[str], errors: Path, environment: Mapping[str, str] | None = None, *, on_line: Callable[[Any], None] | None = None
) -> Iterator[Peer]:
    """Runs `python -m` with these arguments, and kills it at the end of the block; it should also end when its standard input is closed.
    Each decoded line is passed to `on_line`, in a thread.
    """
    with errors.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    made = Peer(process, errors)
    reader = threading.Thread(target=lambda: [on_line(each) for each in made.lines()] if on_line else None, name="peer")
    reader.start()
    try:
        yield made
    finally:
        kill_whole(process)
        reader.join()
