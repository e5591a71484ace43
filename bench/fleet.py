"""A fleet of 100,000 containers at one coordinator, and how soon 10,000 containers are served again after the coordinator was killed.

The containers are simulated (`bench/simulated.py`). They register over HTTP, in ten runs of 10,000 slots, and then send heartbeats for a
minute at the rate that the coordinator sets, each on a new connection. With the default limit of 2,500 heartbeats per second the interval
becomes 40 s and the lease 320 s. Then a second coordinator, with 10,000 registered containers, gets SIGKILL and is started again. A third
one has 10,000 containers with tokens, each on a TLS connection that stays open (`bench/tls_fleet.py`).

Targets, and why:

* memory: at most 2 KiB of RSS per lease, so that 100,000 fit into 200 MB.
* p99 of a heartbeat at that rate: at most 50 ms, a hundredth of the shortest interval, while chores run.
* nothing lost: every answer says that the container is valid, and none is without an answer for a whole lease.
* a sweep over all leases: at most 100 ms, because heartbeats wait for it (measured in this process, with the real class).
* memory of a TLS connection: stated, without a target. OpenSSL and the event loop's buffers need most of it.
* recovery: at most 10 s from exec until 10,000 heartbeats were answered as valid. This is a quarter of the default lease, so even a restart
  that takes three times as long ends no container.

The ratio is the worst figure relative to its target. `python -m bench.fleet --url URL` simulates a fleet against any coordinator.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil

from bench.deployment import metric, token_of, write_fleet
from bench.harness import BenchFailed, Peer, Result, Server, coordinator, cores, note, peer, pinned, running
from bench.simulated import SLOTS, Beats, Fleet, Times
from bench.swarm import SwarmFailed
from coordinator.fleet.leases import Leases
from coordinator.settings import read_settings
from sluice.clock import SystemClock
from sluice.core.ids import Epoch, ExecutionContainerId
from sluice.core.leases.lease import LeasePolicy
from sluice.streams.log import Log
from tests.support.processes import free_port, get
from tests.support.s3servers import certified

NAME = "fleet"
CONTAINERS = 100_000
RECOVERED = 10_000
SECONDS = 60.0
REGISTER_WITHIN = 1_800.0
STREAM = "fleet"
REPEATS = 5

TLS_CONNECTIONS = 10_000
TLS_EVERY = 4
"""Seconds between two heartbeats of a container, so that no connection is idle for 5 s, after which the coordinator closes it."""
TLS_SECONDS = 30
TLS_WITHIN = 600.0

MOST_BYTES = 2048.0
MOST_P99 = 50.0
MOST_SWEEP = 100.0
MOST_RECOVERY = 10.0


def run() -> Result:
    try:
        with pinned(cores()[1]):
            figures = {**_large_fleet(), **_sweep(), **_recovery(), **_tls_fleet()}
    except SwarmFailed as error:
        raise BenchFailed(str(error)) from error
    goals = {
        "rss_bytes_per_lease": MOST_BYTES,
        "p99_ms": MOST_P99,
        "sweep_ms": MOST_SWEEP,
        "recover_alive_s": MOST_RECOVERY,
        "tls_p99_ms": MOST_P99,
    }
    ratio = max(figures[name] / most for name, most in goals.items())
    return Result(
        name=NAME,
        figures=figures,
        ratio=round(ratio, 4),
        target=f"at most {MOST_BYTES:g} B a lease, p99 {MOST_P99:g} ms, sweep {MOST_SWEEP:g} ms, recovery {MOST_RECOVERY:g} s; none lost",
        met=ratio <= 1 and figures["lost"] == 0 and figures["failed"] == 0 and figures["tls_closed"] == 0,
    )


def _home(made: str) -> Path:
    """A home directory whose log has the stream that simulated jobs read."""
    log = Log(read_settings(home=Path(made)).log_directory)
    log.create(STREAM, 1)
    log.grow(STREAM, SLOTS)  # growing is one transaction
    return Path(made)


def _large_fleet() -> Mapping[str, float]:
    """The large fleet: registration, memory, heartbeats."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        port = free_port()
        with running(coordinator(_home(made), port), port) as server:
            fleet = Fleet(server.url, stream=STREAM)
            deployed = fleet.deploy(CONTAINERS)
            before, used = _rss(server), server.cpu_seconds()
            registered = fleet.register(REGISTER_WITHIN)
            each = (server.cpu_seconds() - used) / CONTAINERS
            rate = CONTAINERS / registered.seconds
            note(f"{CONTAINERS} containers registered in {registered.seconds:.0f} s, {rate:.0f}/s, {each * 1e6:.0f} CPU µs each")
            after = _rss(server)
            beats, cpu = _heartbeats(server, fleet)
            valid = metric(server.url, "sluice_valid_containers")
            if valid != CONTAINERS:
                raise BenchFailed(f"of {CONTAINERS} containers {valid} are valid")
    times = Times.of(beats.latencies)
    return {
        "containers": CONTAINERS,
        "deploy_s": round(deployed, 2),
        "register_s": round(registered.seconds, 1),
        "registrations_per_second": round(rate),
        "register_p99_ms": registered.times.p99,
        "rss_before_mb": round(before / 1e6, 1),
        "rss_after_mb": round(after / 1e6, 1),
        "rss_bytes_per_lease": round((after - before) / CONTAINERS, 1),
        "interval_s": beats.interval,
        "lease_s": beats.lease,
        "heartbeats_per_second": round(beats.sent / beats.seconds),
        "heartbeat_cpu_us": round(cpu / beats.sent * 1e6, 1),
        "core_share": round(cpu / beats.seconds, 3),
        **{f"{name}_ms": value for name, value in asdict(times).items()},
        "sent_late_p99_ms": Times.of(beats.late).p99,
        "failed": beats.failed,
        "lost": beats.lost,
    }


def _heartbeats(server: Server, fleet: Fleet) -> tuple[Beats, float]:
    """One minute of heartbeats. Returns them, and the CPU seconds that the coordinator used for them and its chores."""
    used = server.cpu_seconds()
    beats = fleet.beat(SECONDS)
    times = Times.of(beats.latencies)
    note(f"{beats.sent} beats in {beats.seconds:.0f} s: p50 {times.p50} ms, p99 {times.p99} ms; {beats.failed} failed, lost {beats.lost}")
    return beats, server.cpu_seconds() - used


def _sweep() -> Mapping[str, float]:
    """Milliseconds of one sweep over all leases of the fleet, none of which is overdue."""
    taken = []
    for _ in range(REPEATS):
        leases = Leases(LeasePolicy(), SystemClock())
        for number in range(CONTAINERS):
            leases.grant(ExecutionContainerId(f"container-{number}"), Epoch(1), 1)
        began = perf_counter()
        overdue = leases.overdue(1)
        taken.append((perf_counter() - began) * 1000)
        if overdue:
            raise BenchFailed(f"{overdue[0]} is overdue although its lease has just begun")
    return {"sweep_ms": round(median(taken), 2)}


def _recovery() -> Mapping[str, float]:
    """Seconds from exec until the coordinator is ready, and until every container of the smaller fleet was answered as valid."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        port = free_port()
        command = coordinator(_home(made), port)
        with running(command, port) as server:
            fleet = Fleet(server.url, stream=STREAM)
            fleet.deploy(RECOVERED)
            fleet.register(REGISTER_WITHIN)
            fleet.beat_once(REGISTER_WITHIN)
            os.kill(server.pid, signal.SIGKILL)
        began = perf_counter()
        with running(command, port) as server:
            while get(f"{server.url}/readyz").status_code != 200:
                time.sleep(0.01)
            ready = perf_counter() - began
            fleet.beat_once(REGISTER_WITHIN)
            alive = perf_counter() - began
    note(f"{RECOVERED} containers: ready after {ready:.2f} s, all answered alive after {alive:.2f} s")
    return {"recovered": RECOVERED, "recover_ready_s": round(ready, 3), "recover_alive_s": round(alive, 3)}


def _tls_fleet() -> Mapping[str, float]:
    """A fleet that keeps its TLS connections: the memory of a connection, the rate of handshakes, and heartbeats with tokens."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        write_fleet(home, TLS_CONNECTIONS, TLS_CONNECTIONS)
        tokens = home / "tokens"
        tokens.write_text("".join(f"{token_of(slot)}\n" for slot in range(TLS_CONNECTIONS)))
        port, certificate = free_port(), certified(home)
        options = ["--tls-certificate", str(certificate.certificate), "--tls-key", str(certificate.key)]
        settings = {"SLUICE_AUTHENTICATION": "true", "SLUICE_FIRST_TOKEN_FILE": str(home / "first-token")}
        lines: queue.Queue[Any] = queue.Queue()
        with running([*coordinator(home, port), *options], port, settings, certificate.authority) as server:
            before, used = _rss(server), server.cpu_seconds()
            arguments = [server.url, certificate.authority, tokens, TLS_EVERY, TLS_SECONDS]
            with peer(["bench.tls_fleet", *map(str, arguments)], home / "tls.log", on_line=lines.put) as containers:
                opened = _line(containers, lines)
                after, handshakes, used = _rss(server), server.cpu_seconds() - used, server.cpu_seconds()
                beats = _line(containers, lines)
                cpu = server.cpu_seconds() - used
    times = Times.of([each / 1000 for each in beats["milliseconds"]])
    note(f"{opened['open']} TLS connections in {opened['seconds']:.0f} s: p99 {times.p99} ms, {beats['closed']} closed")
    return {
        "tls_connections": opened["open"],
        "tls_handshakes_per_second": round(opened["open"] / opened["seconds"]),
        "tls_handshake_cpu_us": round(handshakes / opened["open"] * 1e6),
        "tls_bytes_per_connection": round((after - before) / opened["open"]),
        "tls_heartbeats_per_second": round(beats["sent"] / TLS_SECONDS),
        "tls_heartbeat_cpu_us": round(cpu / beats["sent"] * 1e6, 1),
        "tls_p50_ms": times.p50,
        "tls_p99_ms": times.p99,
        "tls_closed": beats["closed"],
    }


def _line(containers: Peer, lines: queue.Queue[Any]) -> Any:
    """The next line of the containers."""
    until = perf_counter() + TLS_WITHIN
    while perf_counter() < until:
        with suppress(queue.Empty):
            return lines.get(timeout=1)
        containers.must_run()
    raise BenchFailed(f"the containers with TLS have written nothing for {TLS_WITHIN:g} s")


def _rss(server: Server) -> float:
    return float(psutil.Process(server.pid).memory_info().rss)


# --- a fleet against any coordinator ---------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Register, send heartbeats, stop, exit. The exit code is 1 if a container was lost or the coordinator failed a request."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description="Simulate a fleet of containers against a coordinator.")
    parser.add_argument("--url", default="http://127.0.0.1:8180", help="the coordinator (default %(default)s)")
    parser.add_argument("--containers", type=int, default=1_000, help="number of containers (default %(default)s, at most 1,000,000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they heartbeat (default %(default)s)")
    parser.add_argument("--stream", default=STREAM, help=f"a stream of its log with {SLOTS:,} partitions (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="reuse connections instead of opening one for each heartbeat")
    given = parser.parse_args(arguments)
    if not 1 <= given.containers <= 1_000_000 or not 0 < given.seconds <= 86_400:
        parser.error("--containers takes 1 to 1,000,000 and --seconds up to a day")
    try:
        return _simulate(Fleet(given.url, stream=given.stream, fresh=not given.keep), given.containers, given.seconds)
    except SwarmFailed as error:
        print(f"bench.fleet: {error}", file=sys.stderr)
        return 1


def _simulate(fleet: Fleet, containers: int, seconds: float) -> int:
    try:
        deployed = fleet.deploy(containers)
        print(f"{len(fleet.runs)} runs deployed in {deployed:.1f} s", flush=True)
        registered = fleet.register(REGISTER_WITHIN)
        print(f"{containers} containers registered in {registered.seconds:.1f} s; ms: {asdict(registered.times)}", flush=True)
        beats = fleet.beat(seconds)
        print(f"{beats.sent} heartbeats in {beats.seconds:.1f} s, every {beats.interval:g} s, lease {beats.lease:g} s", flush=True)
        print(f"ms: {asdict(Times.of(beats.latencies))}; sent late: {asdict(Times.of(beats.late))}", flush=True)
        print(f"{beats.failed} not answered, {beats.lost} containers lost", flush=True)
    finally:
        fleet.stop()
    print(f"all left in {fleet.leave(REGISTER_WITHIN):.1f} s", flush=True)
    return 1 if beats.lost else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
