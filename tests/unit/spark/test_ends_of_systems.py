"""The ends of streams of several systems, some of which are unavailable."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import cast

import pytest

from containers.spark.systems.port import TaskSystem
from containers.spark.systems.registry import AGAIN_AFTER, QUICK, EndsOfSystems
from sluice.core.errors import StreamUnavailable
from sluice.core.ids import Ssp
from tests.support.fakes import FakeClock

A, B, C = Ssp("log", "a", 0), Ssp("log", "b", 1), Ssp("kafka", "c", 0)


class System:
    """A system of which each partition ends at 7. Streams in `unavailable` raise what it has, after `takes`."""

    def __init__(self, clock: FakeClock) -> None:
        self.unavailable: dict[str, Exception] = {}
        self.takes = timedelta(0)
        self.asked: list[list[str]] = []
        self.closed = False
        self._clock = clock

    def stream_ends(self) -> System:
        return self

    def latest(self, partitions: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        self.asked.append(sorted(partitions))
        for stream in partitions:
            if stream in self.unavailable:
                self._clock.advance(self.takes.total_seconds())
                raise self.unavailable[stream]
        return {stream: dict.fromkeys(each, 7) for stream, each in partitions.items()}

    def close(self) -> None:
        self.closed = True


class Systems:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log, self.kafka = System(self.clock), System(self.clock)
        self.ends = EndsOfSystems({"log": cast(TaskSystem, self.log), "kafka": cast(TaskSystem, self.kafka)}, self.clock)

    def known(self, *partitions: Ssp) -> set[Ssp]:
        found = self.ends.latest(partitions or [A, B, C])
        assert set(found.values()) <= {7}
        return {*found}


@pytest.fixture
def systems() -> Systems:
    return Systems()


def test_all_streams_of_a_system_are_asked_for_at_once(systems: Systems) -> None:
    assert systems.known() == {A, B, C}
    assert (systems.log.asked, systems.kafka.asked) == ([["a", "b"]], [["c"]])
    systems.ends.close()
    assert (systems.log.closed, systems.kafka.closed) == (True, True)


@pytest.mark.parametrize("error", [StreamUnavailable("it is away"), ValueError("unexpected")])
def test_a_stream_that_is_unavailable_does_not_hide_others(systems: Systems, error: Exception) -> None:
    systems.log.unavailable["a"] = error
    assert systems.known() == {B, C}
    assert systems.known() == {B, C}
    assert systems.log.asked == [["a", "b"], ["a"], ["b"], ["b"]]  # not again so soon
    systems.clock.advance(AGAIN_AFTER.total_seconds())
    assert systems.known() == {B, C}
    assert sorted(systems.log.asked[4:]) == [["a"], ["b"]]  # what may fail again is asked for separately


def test_a_stream_is_asked_for_again_later_and_its_loss_and_recovery_are_logged_once(
    systems: Systems, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    systems.kafka.unavailable["c"] = StreamUnavailable("the broker is away")
    for _ in range(3):
        assert systems.known(C) == set()
        systems.clock.advance(AGAIN_AFTER.total_seconds())
    assert len(systems.kafka.asked) == 3
    del systems.kafka.unavailable["c"]
    assert systems.known(C) == systems.known(C) == {C}
    lost, back = caplog.records
    assert (lost.levelname, back.levelname) == ("WARNING", "INFO")
    assert "kafka.c" in lost.message
    assert "the broker is away" in lost.message
    assert "kafka.c" in back.message
    systems.kafka.unavailable["c"] = StreamUnavailable("the broker is away")
    assert systems.known(C) == set()
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_a_system_that_does_not_answer_is_asked_once_and_seldom_so_that_others_do_not_wait_for_it(systems: Systems) -> None:
    systems.log.unavailable |= {"a": TimeoutError("no answer"), "b": TimeoutError("no answer")}
    systems.log.takes = 10 * QUICK
    assert systems.known() == {C}
    assert systems.log.asked == [["a", "b"]]
    systems.clock.advance(4 * 10 * QUICK.total_seconds() - 1)
    assert systems.known() == {C}
    assert len(systems.log.asked) == 1
    systems.clock.advance(1)
    systems.known()
    assert len(systems.log.asked) == 2
