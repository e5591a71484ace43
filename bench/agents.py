"""The coordinator's cost of a run's agents: polls for standby copies, and the adoption of a version.

Standby: a run with `standby.replicas` has 300 containers, each on its own host, and its tasks have snapshots. Every 5 s each container
sends a heartbeat and requests the list of the copies that it must keep. The peer is the same fleet with heartbeats only. Both are measured
alternately. Commit 2c5c8f3 took 3.2 cores for this, because every poll read all containers of the run and placed all copies again. The goal
is at most 0.3 cores.

Adoption: every container of a run requests the notices, its part of the job model and its run, and reports the version. This is done for
runs of 500 and of 5,000 containers. The cost for one container must not depend on the size of its run; the goal is at most twice the cost
in the larger run. If it were ten times the cost, the total would grow with the square of the number of containers.

The ratio is the larger of the two figures, each divided by its goal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import quote

from bench.deployment import CONTAINER, EPOCH, JOB, metric, write_fleet
from bench.harness import BenchFailed, Result, Server, coordinator, cores, note, pinned, running
from bench.swarm import Answer, Swarm, SwarmFailed
from tests.support.processes import free_port, get

NAME = "agents"
STANDBYS = 300
INTERVAL = 5.0
"""Seconds between two heartbeats of a container, and between two of its polls."""
ROUNDS, SECONDS = 3, 10.0
SMALL, LARGE = 500, 5_000
CONNECTIONS = 64
PATIENCE = 600.0

MOST_CORES = 0.3
MOST_GROWTH = 2.0

Requests = Sequence[tuple[bytes, bytes, bytes, bytes]]
"""Method, target, headers, body."""


def run() -> Result:
    try:
        with pinned(cores()[1]):
            standby, adoption = _standby(), _adoption()
    except SwarmFailed as error:
        raise BenchFailed(str(error)) from error
    growth = adoption[f"adoption_cpu_us_of_{LARGE}"] / adoption[f"adoption_cpu_us_of_{SMALL}"]
    ratio = max(standby["standby_cores"] / MOST_CORES, growth / MOST_GROWTH)
    return Result(
        name=NAME,
        figures={**standby, **adoption, "adoption_growth": round(growth, 3)},
        ratio=round(ratio, 4),
        target=f"{STANDBYS} containers with standby at most {MOST_CORES:g} cores; adoption by {LARGE:,} at most {MOST_GROWTH:g} times "
        f"the cost for a container of {SMALL}",
        met=ratio <= 1,
    )


# --- standby ---------------------------------------------------------------------------------------------------------


def _standby() -> Mapping[str, float]:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home, port = Path(made), free_port()
        write_fleet(home, STANDBYS, STANDBYS, config={"standby.replicas": "1"}, snapshots=True)
        with running(coordinator(home, port), port) as server:
            run_id = _run_of(server)
            beats, polls = _beats(STANDBYS), _polls(run_id, STANDBYS)
            _at_rate(server, [*beats, *polls], SECONDS / 2)  # fills caches
            alone, both = [], []
            for _ in range(ROUNDS):
                alone.append(_at_rate(server, beats, SECONDS))
                both.append(_at_rate(server, [each for pair in zip(beats, polls, strict=True) for each in pair], SECONDS))
            _check_copies(server, run_id)
    note(f"{STANDBYS} containers: {median(both):.3f} cores with standby, {median(alone):.3f} with heartbeats alone")
    return {
        "containers_with_standby": STANDBYS,
        "standby_cores": round(median(both), 4),
        "heartbeats_alone_cores": round(median(alone), 4),
    }


def _beats(containers: int) -> Requests:
    target = "/containerHeartbeat?executionContainerId="
    return [(b"GET", f"{target}{CONTAINER % slot}".encode(), b"Sluice-Epoch: %d\r\n" % EPOCH, b"") for slot in range(containers)]


def _polls(run_id: str, containers: int) -> Requests:
    return [(b"GET", f"/runs/{quote(run_id)}/containers/{CONTAINER % slot}/standby".encode(), b"", b"") for slot in range(containers)]


def _at_rate(server: Server, requests: Requests, seconds: float) -> float:
    """The cores that the coordinator uses while each request is sent every INTERVAL seconds, evenly spread. Prints a note if the
    coordinator does not keep up."""
    with closing(Swarm[bool](server.url, lambda _, answer: _check(answer), connections=CONNECTIONS)) as swarm:
        turn = cycle([swarm.request(method, target, headers, body) for method, target, headers, body in requests])
        pause = INTERVAL / len(requests)
        used, began = server.cpu_seconds(), perf_counter()
        sent = 0
        while (now := perf_counter()) < began + seconds:
            while began + sent * pause <= now:
                swarm.send(next(turn), True)
                sent += 1
            swarm.turn(max(0.0, began + sent * pause - perf_counter()))
        swarm.finish(PATIENCE)
        took = perf_counter() - began
    if took > 1.5 * seconds:
        note(f"the coordinator did not keep up: {seconds:g} s of requests took {took:.1f} s")
    return (server.cpu_seconds() - used) / seconds


def _check_copies(server: Server, run_id: str) -> None:
    reply = get(f"{server.url}/runs/{run_id}/containers/{CONTAINER % 7}/standby").json()
    if len(reply["copies"]) != 1:
        raise BenchFailed(f"slot 7 keeps {len(reply['copies'])} copies: there is one task for each slot, so it should keep one")


# --- adoption --------------------------------------------------------------------------------------------------------


def _adoption() -> Mapping[str, float]:
    found: dict[str, float] = {}
    for containers in (SMALL, LARGE):
        seconds, cpu, beat = _adopt(containers)
        note(f"{containers} containers adopted a version in {seconds:.1f} s; {cpu * 1e6:.0f} CPU µs each, a heartbeat {beat * 1e6:.0f}")
        found |= {
            f"adoption_s_of_{containers}": round(seconds, 2),
            f"adoption_cpu_us_of_{containers}": round(cpu * 1e6, 1),
            f"heartbeat_cpu_us_of_{containers}": round(beat * 1e6, 1),
        }
    return found


def _adopt(containers: int) -> tuple[float, float, float]:
    """Returns the duration in seconds, the coordinator's CPU seconds for each container, and those for one heartbeat of the same fleet."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home, port = Path(made), free_port()
        write_fleet(home, containers, containers)
        with running(coordinator(home, port), port) as server:
            run_id = _run_of(server)
            _at_once(server, [_adopting(run_id, slot) for slot in range(min(containers, 50))])  # fills caches
            used, seconds = server.cpu_seconds(), 0.0
            seconds = _at_once(server, [_adopting(run_id, slot) for slot in range(containers)])
            adopting = server.cpu_seconds() - used
            used = server.cpu_seconds()
            _at_once(server, [[each] for each in _beats(containers)])
            beating = server.cpu_seconds() - used
            if metric(server.url, "sluice_valid_containers") != containers:
                raise BenchFailed(f"not all {containers} containers are valid")
    return seconds, adopting / containers, beating / containers


def _adopting(run_id: str, slot: int) -> Requests:
    """The requests of one container, in order."""
    run = f"/runs/{quote(run_id)}"
    return [
        (b"GET", f"{run}/notices?after=0&wait=0".encode(), b"", b""),
        (b"GET", f"/jobModel?job={JOB}&processorId={slot}".encode(), b"", b""),
        (b"GET", f"{run}?view=basic".encode(), b"", b""),
        (b"POST", f"{run}/containers/{CONTAINER % slot}/adopted".encode(), b"", b'{"version":1,"epoch":%d}' % EPOCH),
    ]


def _at_once(server: Server, containers: Sequence[Requests]) -> float:
    """Send the requests of each container one after the other, and those of all containers concurrently, over CONNECTIONS connections.
    Returns the duration in seconds."""

    def next_of(swarm: Swarm[Iterator[bytes]], rest: Iterator[bytes]) -> None:
        request = next(rest, None)
        if request is not None:
            swarm.send(request, rest)

    def answered(rest: Iterator[bytes], answer: Answer) -> None:
        _check(answer)
        next_of(swarm, rest)

    swarm: Swarm[Iterator[bytes]] = Swarm(server.url, answered, connections=CONNECTIONS)
    began = perf_counter()
    try:
        for requests in containers:
            next_of(swarm, iter([swarm.request(*request) for request in requests]))
        swarm.finish(PATIENCE)
    finally:
        swarm.close()
    return perf_counter() - began


# --- requests --------------------------------------------------------------------------------------------------------


def _check(answer: Answer) -> None:
    if answer.status != 200:
        raise SwarmFailed(f"a request was answered {answer.status}: {answer.body[:300].decode(errors='replace')}")


def _run_of(server: Server) -> str:
    return str(get(f"{server.url}/jobs").json()["jobs"][0]["currentRun"])
