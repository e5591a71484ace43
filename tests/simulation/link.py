"""The connection of an agent and its driver in virtual time. Messages arrive in order and late, and wait while a process is frozen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.loop import Process, SimulatedLoop

DELAY, LONG_DELAY, DELAYED = 0.001, 2.0, 0.01
"""Seconds that a message takes at most, those of a delayed one, and how likely that is. Each costs a turn of the loop."""

IN_ORDER = 1e-7


class SimulatedLink:
    """A `Link`: the end of one process."""

    other: SimulatedLink

    def __init__(self, loop: SimulatedLoop, chance: Random, process: Process) -> None:
        self._loop = loop
        self._chance = chance
        self._process = process
        self._receive: Callable[[bytes], None] | None = None
        self._lost: Callable[[Exception | None], None] | None = None
        self._arrives = 0.0
        """When the last message arrives at the other end."""
        self._closed = False
        process.on_death.append(self._hang_up)

    def start(self, receive: Callable[[bytes], None], lost: Callable[[Exception | None], None]) -> None:
        self._receive, self._lost = receive, lost

    def send(self, line: bytes) -> None:
        if self._closed or self.other._closed:
            raise BrokenPipeError("the other process has ended")
        self._deliver(self.other._take, line)

    def serve(self, work: Callable[[], None]) -> None:
        self._process.context().run(self._loop.run_in_executor, None, work)

    def close(self) -> None:
        self._hang_up()
        self._end(None)

    def _deliver(self, take: Callable[..., None], *arguments: object) -> None:
        late = self._chance.uniform(0, LONG_DELAY if self._chance.random() < DELAYED else DELAY)
        self._arrives = max(self._arrives + IN_ORDER, self._loop.time() + late)
        self._loop.call_at(self._arrives, take, *arguments, context=self.other._process.context())

    def _hang_up(self) -> None:
        if not self._closed:
            self._deliver(self.other._end, None)

    def _take(self, line: bytes) -> None:
        if self._closed:
            return
        assert self._receive is not None, "a message for an end that was not started"
        try:
            self._receive(line)
        except Exception as error:
            self._hang_up()
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._closed:
            self._closed = True
            if self._lost is not None:
                self._lost(error)


def simulated_link(loop: SimulatedLoop, chance: Random, agent: Process, driver: Process) -> tuple[SimulatedLink, SimulatedLink]:
    """The ends of the agent and of its driver."""
    ours, theirs = SimulatedLink(loop, chance, agent), SimulatedLink(loop, chance, driver)
    ours.other, theirs.other = theirs, ours
    return ours, theirs
