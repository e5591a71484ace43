"""A fleet of containers that are nothing but their heartbeats, as a coordinator sees them: they register, beat at the rate that they are
told, and leave. Only HTTP is spoken, and only the standard library is used, so this takes any coordinator that can be reached.

A container waits for the interval of the last answer, less up to a tenth; it is lost when it is told that it is not alive, or when its
lease less its margin has passed since it last sent a heartbeat that was answered. These are the rules of `coordinator/core/lease.py`.
"""

from __future__ import annotations

import gc
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Any
from uuid import uuid4

from bench.swarm import Answer, Swarm, SwarmFailed

SLOTS = 10_000
"""Of a run, at most."""
CONNECTIONS = 64
"""For requests that wait for the database, one after the other."""
MOST_OPEN = 4_000
"""Connections of heartbeats that are open at once: more wait, and that counts."""
JITTER = 0.1
RETRY = 1.0
"""Seconds until a heartbeat is sent again that was not answered: nothing is lost by that yet."""
ALIVE = b'{"alive": true}'
PATIENCE = 60.0
"""Seconds for a request that makes a run, and for the last answers."""


class Container:
    __slots__ = ("answered", "beat", "due", "execution_id", "lost", "sent", "slot")

    def __init__(self, slot: int, execution_id: str) -> None:
        self.slot = slot
        self.execution_id = execution_id
        self.beat = b""
        self.due = 0.0
        self.sent = 0.0
        self.answered = 0
        self.lost = False


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    containers: Sequence[Container]


@dataclass(frozen=True, slots=True)
class Times:
    """Of many answers, in milliseconds."""

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
    """What came of a while of heartbeats. `late` is how long after its time one was sent, which is the load generator's own fault."""

    seconds: float = 0.0
    sent: int = 0
    failed: int = 0
    lost: int = 0
    interval: float = 0.0
    lease: float = 0.0
    latencies: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


class Fleet:
    """`stream` is a stream of the embedded log with a partition for every slot of a run; it need not hold anything. `name` begins the
    names of the jobs."""

    def __init__(self, url: str, name: str = "fleet", stream: str = "fleet") -> None:
        self.url = url.rstrip("/")
        self.name = name
        self.stream = stream
        self.runs: list[Run] = []
        self.margin = 0.0
        self._nonce = uuid4().hex[:8]

    @property
    def containers(self) -> list[Container]:
        return [each for run in self.runs for each in run.containers]

    # --- runs ------------------------------------------------------------------------------------------------------

    def deploy(self, containers: int) -> float:
        """Runs of at most SLOTS slots, one of a job each; how many seconds it took. Raises SwarmFailed with the coordinator's words."""
        began = perf_counter()
        for number, first in enumerate(range(0, containers, SLOTS)):
            slots = min(SLOTS, containers - first)
            job = f"{self.name}-{number}-of-{slots}"
            run_id = str(self._post("/runs", _request(job, slots, self.stream))["runId"])
            self.runs.append(Run(run_id, [Container(slot, f"{job}-{slot:05}-{self._nonce}") for slot in range(slots)]))
        return perf_counter() - began

    def stop(self) -> None:
        """Ask all runs to stop. Their containers are still to leave."""
        for run in self.runs:
            self._post(f"/runs/{run.run_id}/stop", {"reason": "the simulation is over"})

    def _post(self, path: str, body: object) -> dict[str, Any]:
        asked = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                reply: dict[str, Any] = json.load(answer)
                return reply
        except urllib.error.HTTPError as error:
            raise SwarmFailed(f"POST {path} answered {error.code}: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise SwarmFailed(f"POST {self.url}{path}: {error}") from error

    # --- containers ------------------------------------------------------------------------------------------------

    def register(self, within: float) -> Registered:
        """Register every container, CONNECTIONS at a time. Raises SwarmFailed when it takes more than that many seconds."""
        latencies: list[float] = []

        def answered(container: Container, answer: Answer) -> None:
            if answer.status != 201:
                raise SwarmFailed(f"a registration answered {answer.status}: {answer.body.decode(errors='replace')}")
            reply = json.loads(answer.body)
            self.margin = reply["marginSeconds"]
            container.beat = b"Sluice-Epoch: %d\r\n" % reply["epoch"]
            latencies.append(answer.done - answer.sent)

        began = perf_counter()
        with self._swarm(answered, CONNECTIONS) as swarm:
            for run in self.runs:
                target = f"/runs/{run.run_id}/containers".encode()
                for each in run.containers:
                    body = {"processorId": str(each.slot), "executionContainerId": each.execution_id, "host": "simulated"}
                    swarm.send(swarm.request(b"POST", target, body=json.dumps(body).encode()), each)
            swarm.finish(within)
            for each in self.containers:
                target = b"/containerHeartbeat?executionContainerId=" + each.execution_id.encode()
                each.beat = swarm.request(b"GET", target, each.beat)
        return Registered(perf_counter() - began, Times.of(latencies))

    def leave(self, within: float) -> float:
        """Report every container's exit; how many seconds it took."""

        def answered(container: Container, answer: Answer) -> None:
            if answer.status != 200:
                raise SwarmFailed(f"an exit answered {answer.status}: {answer.body.decode(errors='replace')}")

        began = perf_counter()
        with self._swarm(answered, CONNECTIONS) as swarm:
            for each in self.containers:
                target = f"/containers/{each.execution_id}/exit".encode()
                swarm.send(swarm.request(b"POST", target, body=b'{"exitCode":0,"reason":"the simulation is over"}'), each)
            swarm.finish(within)
        return perf_counter() - began

    @contextmanager
    def _swarm(
        self,
        answered: Callable[[Container, Answer], None],
        connections: int,
        *,
        fresh: bool = False,
        broken: Callable[[Container, str], None] | None = None,
    ) -> Iterator[Swarm[Container]]:
        swarm: Swarm[Container] = Swarm(self.url, answered, connections=connections, fresh=fresh, broken=broken)
        try:
            yield swarm
        finally:
            swarm.close()

    # --- heartbeats ------------------------------------------------------------------------------------------------

    def beat_once(self, within: float) -> float:
        """A heartbeat of every container, as fast as they are answered: how many seconds until the last was answered alive."""

        def answered(container: Container, answer: Answer) -> None:
            if answer.status != 200 or answer.body != ALIVE:
                raise SwarmFailed(f"{container.execution_id} got {answer.status} {answer.body!r}")

        began = perf_counter()
        with self._swarm(answered, CONNECTIONS) as swarm:
            for each in self.containers:
                swarm.send(each.beat, each)
            swarm.finish(within)
        return perf_counter() - began

    def beat(self, seconds: float, *, fresh: bool = True) -> Beats:
        """Heartbeats of all containers, each at the rate that it is told, for so many seconds; `fresh`: each on its own connection."""
        found = Beats(interval=5.0)
        heap: list[tuple[float, int]] = []
        containers = self.containers

        def again(container: Container, after: float) -> None:
            container.due = perf_counter() + after
            heappush(heap, (container.due, number_of[container]))

        def unanswered(container: Container, _why: str) -> None:
            found.failed += 1
            again(container, RETRY)

        def answered(container: Container, answer: Answer) -> None:
            if answer.status != 200:
                unanswered(container, str(answer.status))
                return
            found.latencies.append(answer.done - answer.sent)
            if answer.body == ALIVE:
                container.answered += 1
                container.sent = answer.sent
                found.interval = float(answer.header(b"sluice-next-heartbeat-seconds") or found.interval)
                found.lease = float(answer.header(b"sluice-lease-seconds") or found.lease)
            else:
                container.lost = True
                return
            again(container, found.interval * (1 - JITTER * random.random()))

        with self._swarm(answered, MOST_OPEN, fresh=fresh, broken=unanswered) as swarm, _without_pauses():
            swarm.send(containers[0].beat, containers[0])  # the interval of this fleet
            number_of = {each: number for number, each in enumerate(containers)}
            swarm.finish(PATIENCE)
            began = perf_counter()
            for each in containers:
                each.sent, each.due = began, began + found.interval * random.random()
            heap[:] = [(each.due, number) for number, each in enumerate(containers)]
            heapify(heap)
            found.latencies.clear()
            self._follow(swarm, heap, containers, found, began + seconds)
            with suppress(SwarmFailed):
                swarm.finish(PATIENCE)
            found.failed += len(swarm)
            found.seconds = perf_counter() - began
        too_old = perf_counter() - (found.lease - self.margin)
        found.lost = sum(1 for each in containers if each.lost or each.sent < too_old)
        return found

    def _follow(
        self, swarm: Swarm[Container], heap: list[tuple[float, int]], containers: Sequence[Container], found: Beats, until: float
    ) -> None:
        while (now := perf_counter()) < until:
            while heap and heap[0][0] <= now:
                due, number = heappop(heap)
                found.late.append(now - due)
                found.sent += 1
                swarm.send(containers[number].beat, containers[number])
            next_due = heap[0][0] if heap else until
            swarm.turn(max(0.0, min(next_due, until) - perf_counter()))


@contextmanager
def _without_pauses() -> Iterator[None]:
    """The garbage collector would stop us while it looks at a hundred thousand containers that all stay."""
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
