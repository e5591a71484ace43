"""Heartbeats of a fleet of 10,000 containers, compared with a bare ASGI function under the same server.

Measured: answers per second to `GET /containerHeartbeat` with `Sluice-Epoch`, the containers in turns, over 32 connections without pauses,
at a real coordinator with its chores running; and the latency under that load. The peer (`bench/bare.py`) sends an equal body and the same
number of headers and reads nothing. Every answer must be `{"alive": true}`: the coordinator's own counters are compared with the load
generator's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.deployment import CONTAINER, EPOCH, metric, write_fleet
from bench.harness import BenchFailed, Result, Server, coordinator, note, running
from bench.load import CONNECTIONS, Target, alternate, median_cpu, median_rate, median_share, need_wrk, paired_ratio, probe
from tests.support.processes import free_port

NAME = "heartbeats"
CONTAINERS = 10_000
ROUNDS = 5
SECONDS = 3
LEAST_RATIO = 0.85
MOST_P99 = 10.0
ALIVE = 'sluice_heartbeats_total{answer="alive"}'
INVALID = 'sluice_heartbeats_total{answer="invalid"}'


def heartbeat_target(server: Server, containers: int) -> Target:
    path = f"/containerHeartbeat?executionContainerId={CONTAINER}"
    return Target("heartbeats", server, path, ("Sluice-Epoch", str(EPOCH)), count=containers)


def bare_target(server: Server) -> Target:
    """The peer gets the same paths, so that parsing a request costs the server the same."""
    return Target("bare", server, f"/containerHeartbeat?executionContainerId={CONTAINER}", ("Sluice-Epoch", str(EPOCH)), count=CONTAINERS)


def run() -> Result:
    need_wrk()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        began = time.perf_counter()
        write_fleet(home, CONTAINERS, CONTAINERS)
        note(f"a fleet of {CONTAINERS} containers written in {time.perf_counter() - began:.1f} s")
        return _measure(home)


def _measure(home: Path) -> Result:
    port, bare_port = free_port(), free_port()
    with (
        running(coordinator(home, port), port) as server,
        running([sys.executable, "-m", "bench.bare", str(bare_port)], bare_port) as bare_server,
    ):
        url = server.url
        beats, bare = heartbeat_target(server, CONTAINERS), bare_target(bare_server)
        if metric(url, "sluice_valid_containers") != CONTAINERS:
            raise BenchFailed(f"the coordinator recovered {metric(url, 'sluice_valid_containers')} containers of {CONTAINERS}")
        if probe(beats).headers != probe(bare).headers:
            raise BenchFailed("the bare function and the coordinator send different numbers of headers: change bench/bare.py")
        before = metric(url, ALIVE)
        samples = alternate([bare, beats], ROUNDS, SECONDS)
        own, peers = samples[beats.name], samples[bare.name]
        check_beats(url, before, sum(sample.requests for sample in own))
    ratio, p99 = paired_ratio(own, peers), median(sample.p99 for sample in own)
    return Result(
        name=NAME,
        figures={
            "containers": CONTAINERS,
            "connections": CONNECTIONS,
            "heartbeats_per_second": round(median_rate(own)),
            "bare_asgi_per_second": round(median_rate(peers)),
            "heartbeat_cpu_us": round(median_cpu(own), 2),
            "bare_cpu_us": round(median_cpu(peers), 2),
            "core_share": round(median_share(own), 3),
            "p50_ms": round(median(sample.p50 for sample in own), 3),
            "p99_ms": round(p99, 3),
            "p999_ms": round(median(sample.p999 for sample in own), 3),
            "longest_ms": round(max(sample.longest for sample in own), 3),
            "bare_p99_ms": round(median(sample.p99 for sample in peers), 3),
        },
        ratio=round(ratio, 4),
        target=f"rate >= {LEAST_RATIO} of the bare ASGI function, p99 < {MOST_P99:g} ms",
        met=ratio >= LEAST_RATIO and p99 < MOST_P99,
    )


def check_beats(url: str, before: int, answered: int) -> None:
    """The coordinator answered "alive" at least as often as the load generator got an answer, and nothing else."""
    alive, invalid = metric(url, ALIVE) - before, metric(url, INVALID)
    if invalid or alive < answered:
        raise BenchFailed(f"{answered} answers, of which {alive} were alive and {invalid} not: every one must be alive")
