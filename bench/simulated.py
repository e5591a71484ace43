"""Simulated containers that consist of heartbeats only: they register, send heartbeats at the rate that the coordinator sets, and exit.
They use HTTP and the standard library only, so they work with any coordinator.

A container waits for the interval in the last answer, less up to a tenth. It is lost when an answer says that it is not valid, or when its
lease less the margin has passed since it sent the last heartbeat that was answered. These are the rules of `sluice/core/leases/lease.py`.
"""

from __future__ import annotations

import gc
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from time import perf_counter
from typing import Any
from uuid import uuid4

from bench.swarm import Answer, Swarm, SwarmFailed

SLOTS = 10_000
"""Slots per run, at most."""
CONNECTIONS = 64
"""Parallel requests that use the database."""
MOST_OPEN = 4_000
"""Connections for heartbeats that are open at once. Further heartbeats wait, and the wait counts as latency."""
JITTER = 0.1
RETRY = 1.0
"""Seconds until an unanswered heartbeat is sent again. This does not make the container lost."""
ALIVE = b'{"alive": true}'
PATIENCE = 60.0
"""Time limit in seconds for deployments, and for the last answers."""


class Container:
    """`number` counts over the fleet, `slot` within the run. `beat` is an encoded heartbeat; `sent` is when the last answered one was
    sent.
    """

    __slots__ = ("beat", "execution_id", "lost", "number", "sent", "slot")

    def __init__(self, number: int, slot: int, execution_id: str) -> None:
        self.number = number
        self.slot = slot
        self.execution_id = execution_id
        self.beat = b""
        self.sent = 0.0
        self.lost = False


Taker = Callable[["Swarm[Token]", Container, Answer], None]
Token = tuple[Taker, Container]
"""The callback for an answer, and its container."""


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    containers: Sequence[Container]


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles of latencies, in milliseconds."""

    p50: float
    p99: float
    p999: float
    longest: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Times:
        ordered = sorted(seconds) or [0.0]

        def at(part: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 3)

        return Times(at(0.5), at(0.99), at(0.999), at(1.0))


@dataclass(frozen=True, slots=True)
class Registered:
    seconds: float
    times: Times


@dataclass(slots=True)
class Beats:
    """The result of a period of heartbeats. `late` is how long after its due time a heartbeat was sent, which is caused by the load
    generator.
    """

    seconds: float = 0.0
    sent: int = 0
    failed: int = 0
    lost: int = 0
    interval: float = 5.0
    lease: float = 40.0
    latencies: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


class Fleet:
    """`stream` is a stream of the embedded log with one partition per slot of a run; it may be empty.

    `name` is the prefix of the job names. `fresh`: each heartbeat uses a new connection. Real containers do so too when the interval is
    longer than idle connections are kept.
    """

    def __init__(self, url: str, name: str = "fleet", stream: str = "fleet", *, fresh: bool = True) -> None:
        self.url = url.rstrip("/")
        self.name = name
        self.stream = stream
        self.fresh = fresh
        self.runs: list[Run] = []
        self.containers: list[Container] = []
        self.margin = 0.0
        self.beats = Beats()
        self._due: list[tuple[float, int]] = []
        self._nonce = uuid4().hex[:8]

    # --- runs ------------------------------------------------------------------------------------------------------

    def deploy(self, containers: int) -> float:
        """Deploy jobs with one run of at most SLOTS slots each. Returns the duration in seconds. Raises SwarmFailed with the
        coordinator's error.
        """
        began = perf_counter()
        for number, first in enumerate(range(0, containers, SLOTS)):
            slots = min(SLOTS, containers - first)
            job = f"{self.name}-{number}-of-{slots}"
            run_id = str(self._post("/runs", _request(job, slots, self.stream))["runId"])
            made = [Container(first + slot, slot, f"{job}-{slot:05}-{self._nonce}") for slot in range(slots)]
            self.runs.append(Run(run_id, made))
            self.containers += made
        return perf_counter() - began

    def stop(self) -> None:
        """Stop all runs. Their containers have not exited yet."""
        for run in self.runs:
            self._post(f"/runs/{run.run_id}/stop", {"reason": "the simulation is over"})

    def _post(self, path: str, body: object) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                reply: dict[str, Any] = json.load(answer)
                return reply
        except urllib.error.HTTPError as error:
            raise SwarmFailed(f"POST {path} answered {error.code}: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise SwarmFailed(f"POST {self.url}{path}: {error}") from error

    # --- containers ------------------------------------------------------------------------------------------------

    def register(self, within: float) -> Registered:
        """Register all containers, CONNECTIONS at a time; each then sends heartbeats. Raises SwarmFailed if it takes longer than
        `within` seconds.
        """
        latencies: list[float] = []
        left = iter([(run, each) for run in self.runs for each in run.containers])

        def next_one(swarm: Swarm[Token]) -> None:
            if (found := next(left, None)) is not None:
                run, each = found
                body = {"processorId": str(each.slot), "executionContainerId": each.execution_id, "host": "simulated"}
                target = f"/runs/{run.run_id}/containers".encode()
                swarm.send(swarm.request(b"POST", target, body=json.dumps(body).encode()), (registered, each))

        def registered(swarm: Swarm[Token], container: Container, answer: Answer) -> None:
            if answer.status != 201:
                raise SwarmFailed(f"a registration answered {answer.status}: {answer.body.decode(errors='replace')}")
            latencies.append(answer.done - answer.sent)
            self._enlist(swarm, container, json.loads(answer.body), answer.sent)
            next_one(swarm)

        began, total = perf_counter(), len(self.containers)
        with self._swarm() as swarm:
            for _ in range(CONNECTIONS):
                next_one(swarm)
            self._go_on(swarm, lambda: len(latencies) == total, began + within)
            if len(latencies) < total:
                raise SwarmFailed(f"{len(latencies)} of {total} containers were registered within {within:g} s")
            seconds = perf_counter() - began
            swarm.finish(PATIENCE)
        return Registered(seconds, Times.of(latencies))

    def _enlist(self, swarm: Swarm[Token], container: Container, reply: Mapping[str, Any], sent: float) -> None:
        self.beats.interval, self.beats.lease, self.margin = reply["heartbeatSeconds"], reply["leaseSeconds"], reply["marginSeconds"]
        target = b"/containerHeartbeat?executionContainerId=" + container.execution_id.encode()
        own = b"Connection: close\r\n" if self.fresh else b""
        container.beat = swarm.request(b"GET", target, b"%sSluice-Epoch: %d\r\n" % (own, reply["epoch"]))
        container.sent = sent
        self._again(container, self._pause())

    def leave(self, within: float) -> float:
        """Report the exit of every container. Returns the duration in seconds."""

        def answered(_swarm: Swarm[Token], _container: Container, answer: Answer) -> None:
            if answer.status != 200:
                raise SwarmFailed(f"an exit answered {answer.status}: {answer.body.decode(errors='replace')}")

        began = perf_counter()
        with self._swarm(CONNECTIONS) as swarm:
            for each in self.containers:
                target = f"/containers/{each.execution_id}/exit".encode()
                body = b'{"exitCode":0,"reason":"the simulation is over"}'
                swarm.send(swarm.request(b"POST", target, body=body), (answered, each))
            swarm.finish(within)
        return perf_counter() - began

    # --- heartbeats ------------------------------------------------------------------------------------------------

    def beat_once(self, within: float) -> float:
        """Send one heartbeat per container, as fast as they are answered. Returns the seconds until the last one was answered as valid."""

        def answered(_swarm: Swarm[Token], container: Container, answer: Answer) -> None:
            if answer.status != 200 or answer.body != ALIVE:
                raise SwarmFailed(f"{container.execution_id} got {answer.status} {answer.body!r}")

        began = perf_counter()
        with self._swarm(CONNECTIONS) as swarm:
            for each in self.containers:
                swarm.send(each.beat, (answered, each), fresh=self.fresh)
            swarm.finish(within)
        return perf_counter() - began

    def beat(self, seconds: float) -> Beats:
        """Send heartbeats of all registered containers for that many seconds, at the rate that the answers set."""
        found = self.beats = Beats(interval=self.beats.interval, lease=self.beats.lease)
        with self._swarm() as swarm, _without_pauses():
            began = perf_counter()
            self._go_on(swarm, lambda: False, began + seconds)
            with suppress(SwarmFailed):
                swarm.finish(PATIENCE)
            found.failed += len(swarm)
            found.seconds = perf_counter() - began
        too_old = perf_counter() - (found.lease - self.margin)
        found.lost = sum(1 for each in self.containers if each.lost or each.sent < too_old)
        return found

    def spread(self) -> None:
        """Distribute the next heartbeats evenly over one interval, in random order. After a pause of the load all would be due at once."""
        numbers = [each.number for each in self.containers]
        random.shuffle(numbers)
        began, step = perf_counter(), self.beats.interval / max(1, len(numbers))
        self._due = [(began + place * step, number) for place, number in enumerate(numbers)]

    def _go_on(self, swarm: Swarm[Token], done: Callable[[], bool], until: float) -> None:
        """Send due requests and take answers, until `done` or the time is up."""
        containers = self.containers
        while not done() and (now := perf_counter()) < until:
            while self._due and self._due[0][0] <= now:
                due, number = heappop(self._due)
                self.beats.late.append(now - due)
                self.beats.sent += 1
                swarm.send(containers[number].beat, (self._answered, containers[number]), fresh=self.fresh)
            next_due = self._due[0][0] if self._due else until
            swarm.turn(max(0.0, min(next_due, until) - perf_counter()))

    def _answered(self, _swarm: Swarm[Token], container: Container, answer: Answer) -> None:
        if answer.status != 200:
            self._unanswered((self._answered, container), str(answer.status))
            return
        self.beats.latencies.append(answer.done - answer.sent)
        if answer.body != ALIVE:
            container.lost = True
            return
        container.sent = answer.sent
        self.beats.interval = float(answer.header(b"sluice-next-heartbeat-seconds") or self.beats.interval)
        self.beats.lease = float(answer.header(b"sluice-lease-seconds") or self.beats.lease)
        self._again(container, self._pause())

    def _unanswered(self, token: Token, why: str) -> None:
        """A heartbeat that failed is sent again. A failure of any other request is raised to the caller."""
        taker, container = token
        if taker != self._answered:
            raise SwarmFailed(f"{self.url}: {why}")
        self.beats.failed += 1
        self._again(container, RETRY)

    def _pause(self) -> float:
        return self.beats.interval * (1 - JITTER * random.random())

    def _again(self, container: Container, after: float) -> None:
        heappush(self._due, (perf_counter() + after, container.number))

    @contextmanager
    def _swarm(self, connections: int = MOST_OPEN) -> Iterator[Swarm[Token]]:
        def answered(token: Token, answer: Answer) -> None:
            taker, container = token
            taker(swarm, container, answer)

        swarm: Swarm[Token] = Swarm(self.url, answered, connections=connections, broken=self._unanswered)
        try:
            yield swarm
        finally:
            swarm.close()


@contextmanager
def _without_pauses() -> Iterator[None]:
    """Turn the garbage collector off: it would stop the process while it scans a hundred thousand containers that all stay alive."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _request(job: str, slots: int, stream: str) -> dict[str, Any]:
    """A job of one stage."""
    return {
        "job": job,
        "containers": slots,
        "inputs": [{"name": stream, "system": "log"}],
        "stages": [{"name": "only", "reads": [stream]}],
        "stateful": False,
    }
