"""What all benchmarks stand on: a result and how it is printed, and server processes that are pinned to a core.

A machine's speed changes from minute to minute, so every benchmark measures its subject against a peer in the same run, in turns, and
judges by the ratio of the medians. The server under load has one core and the load generator the other.
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
    Raises EndedEarly, TooSlow."""
    with tempfile.NamedTemporaryFile(prefix=f"{command[2]}-", suffix=".log") as said:
        log = Path(said.name)
        with pinned(cores()[0]):
            process = start(command, log, environment=environment)
        with ending(process):
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            await_answer(process, f"{server.url}/livez", log)
            yield server


def coordinator(home: Path, port: int) -> list[str]:
    """The command of the real coordinator, on `port`, with its database under `home`."""
    return [*SLUICE, "coordinator", "--port", str(port), "--home", str(home)]


@dataclass(frozen=True, slots=True)
class Peer:
    """A Python module of ours that writes lines of JSON to its standard output."""

    process: subprocess.Popen[str]
    errors: Path

    def told(self) -> Iterator[Any]:
        """What each line says, until the process ends."""
        assert self.process.stdout is not None
        return map(json.loads, self.process.stdout)

    def must_run(self) -> None:
        """Raises EndedEarly, with the end of what it wrote to its standard error."""
        must_run(self.process, self.errors)


@contextmanager
def peer(
    words: Sequence[str], errors: Path, environment: Mapping[str, str] | None = None, *, heard: Callable[[Any], None] | None = None
) -> Iterator[Peer]:
    """`python -m` with these words, killed with the block; it should also end when its standard input does. What each line says is given
    to `heard`, on a thread."""
    with errors.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    made = Peer(process, errors)
    reader = threading.Thread(target=lambda: [heard(each) for each in made.told()] if heard else None, name="peer")
    reader.start()
    try:
        yield made
    finally:
        kill_whole(process)
        reader.join()
