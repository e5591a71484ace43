"""Heartbeats beside 10,000 connections that send nothing.

Measured: how long the answers to heartbeats take. Heartbeats are sent at a fixed rate, each on a new connection, as in a large fleet. The
peer is the same coordinator without idle connections; both are measured alternately. The coordinator closes a connection that sends no
request for 10 s, and the benchmark immediately opens another one in its place: a thousand each second. Every answer must be
`{"alive": true}`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import psutil

from bench.bare import BODY
from bench.deployment import CONTAINER, EPOCH, metric, write_fleet
from bench.harness import BenchFailed, Result, Server, coordinator, cores, note, peer, pinned, running
from bench.swarm import Answer, Swarm
from tests.support.processes import free_port

NAME = "connections"
CONTAINERS = 1000
IDLE = 10_000
REPLACED = 1000
"""Maximum number of idle connections that are closed and not yet replaced."""
RATE = 500
"""Heartbeats a second."""
ROUNDS = 3
SECONDS = 12
"""Duration of a round: longer than the time for which a connection may send nothing."""
MOST_P99 = 50.0
WAIT = 60.0


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        write_fleet(home, CONTAINERS, CONTAINERS)
        port = free_port()
        with running(coordinator(home, port), port) as server, pinned(cores()[1]):
            return _measure(server, home)


def _measure(server: Server, home: Path) -> Result:
    limit = metric(server.url, "sluice_connections_limit")
    if limit < IDLE + CONTAINERS:
        raise BenchFailed(f"the coordinator takes {limit} connections: raise the hard limit of open files above {IDLE + CONTAINERS + 256}")
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    held: list[int] = []
    shares: list[float] = []
    memory_before, memory_after = _memory(server), 0.0
    _heartbeats(server, 2)
    for number in range(1, ROUNDS + 1):
        _await(server, lambda count: count < CONTAINERS)
        alone.append(_heartbeats(server, SECONDS))
        lines: list[Any] = []
        with peer(["bench.idle", server.url, str(IDLE)], home / "idle.log", on_line=lines.append) as idle:
            _await(server, lambda count: count >= IDLE - REPLACED)
            idle.must_run()
            memory_after = max(memory_after, _memory(server))
            used, began = server.cpu_seconds(), perf_counter()
            beside.append(_heartbeats(server, SECONDS))
            shares.append((server.cpu_seconds() - used) / (perf_counter() - began))
            held.append(metric(server.url, "sluice_connections_open"))
        note(f"round {number}: p99 {_p99(alone[-1]):.2f} ms alone, {_p99(beside[-1]):.2f} ms beside {held[-1]} connections; {lines[-1]}")
    p99_alone, p99 = median(map(_p99, alone)), median(map(_p99, beside))
    return Result(
        name=NAME,
        figures={
            "idle_connections": IDLE,
            "open_least": min(held),
            "closed": lines[-1]["closed"],
            "heartbeats_per_second": RATE,
            "p50_ms": round(median(median(each) for each in beside), 3),
            "p99_ms": round(p99, 3),
            "longest_ms": round(max(map(max, beside)), 3),
            "alone_p50_ms": round(median(median(each) for each in alone), 3),
            "alone_p99_ms": round(p99_alone, 3),
            "core_share": round(median(shares), 3),
            "bytes_per_connection": round((memory_after - memory_before) / IDLE),
        },
        ratio=round(p99 / p99_alone, 3),
        target=f"p99 < {MOST_P99:g} ms",
        met=p99 < MOST_P99,
    )


def _await(server: Server, enough: Callable[[int], bool]) -> None:
    until = perf_counter() + WAIT
    while not enough(count := metric(server.url, "sluice_connections_open")):
        if perf_counter() > until:
            raise BenchFailed(f"after {WAIT:g} s the coordinator has {count} connections")
        sleep(0.1)


def _heartbeats(server: Server, seconds: float) -> list[float]:
    """Milliseconds from when each heartbeat was due to its answer, so that a late load generator does not hide a slow server."""
    took: list[float] = []

    def answered(due: float, answer: Answer) -> None:
        if answer.status != 200 or answer.body != BODY:
            raise BenchFailed(f"a heartbeat was answered {answer.status} {answer.body[:200]!r}")
        took.append((answer.done - due) * 1000)

    swarm: Swarm[float] = Swarm(server.url, answered, connections=CONTAINERS)
    try:
        began = perf_counter()
        for number in range(int(seconds * RATE)):
            due = began + number / RATE
            while (left := due - perf_counter()) > 0:
                swarm.turn(left)
            target = b"/containerHeartbeat?executionContainerId=" + (CONTAINER % (number % CONTAINERS)).encode()
            swarm.send(swarm.request(b"GET", target, b"Connection: close\r\nSluice-Epoch: %d\r\n" % EPOCH), due, fresh=True)
        swarm.finish(WAIT)
    finally:
        swarm.close()
    return took


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def _memory(server: Server) -> float:
    return float(psutil.Process(server.pid).memory_info().rss)
