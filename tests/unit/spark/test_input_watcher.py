"""The thread that opens the gates of queries that have something to read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from queue import Queue

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from containers.spark.input_gate import ASKED_EVERY, FIRST_PAUSE, LAST_PAUSE, LONGEST, InputWatcher, Waits, next_pause, unread
from sluice.core.errors import StreamUnavailable
from sluice.core.ids import Ssp

A, B = Ssp("log", "a", 0), Ssp("kafka", "b", 1)
SECOND = timedelta(seconds=1)

Waiting = Mapping[int, Mapping[Ssp, int]]


class Gates:
    """Gates that wait in each exchange as scripted, or whose JVM raises an error, and what the watcher has opened."""

    def __init__(self, *waiting: Waiting | Exception) -> None:
        self._waiting = list(waiting)
        self.opened: list[Collection[int]] = []
        self.pauses: list[timedelta] = []

    def exchange(self, opened: Collection[int], pause: timedelta) -> Waiting | None:
        self.opened.append(list(opened))
        self.pauses.append(pause)
        found = self._waiting.pop(0) if self._waiting else None
        if isinstance(found, Exception):
            raise found
        return found


def watched(gates: Gates, *ends: Mapping[Ssp, int] | Exception) -> list[Collection[Ssp]]:
    """Let a watcher run until the gates are closed. Returns for which partitions it has asked."""
    answers, asked, ended = list(ends), list[Collection[Ssp]](), Queue[None]()

    def answer(partitions: Collection[Ssp]) -> Mapping[Ssp, int]:
        asked.append(partitions)
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    watcher = InputWatcher(gates.exchange, answer, lambda: ended.put(None), after_error=timedelta(0))
    watcher.start()
    watcher.join(timedelta(seconds=60))
    assert ended.qsize() == 1
    return asked


def test_a_gate_is_opened_when_a_partition_ends_beyond_what_its_query_has_read() -> None:
    waiting = {1: {A: 5}, 2: {A: 3, B: 7}, 3: {B: 8}}
    assert unread(waiting, {A: 5, B: 8}) == [2]


def test_a_stream_that_ends_before_what_a_query_has_read_is_left_to_spark() -> None:
    assert unread({1: {A: 5}}, {A: 2}) == [1]


def test_a_partition_of_unknown_end_opens_no_gate() -> None:
    assert unread({1: {A: 5}}, {B: 7}) == []


def test_only_partitions_of_waiting_queries_are_asked_for() -> None:
    gates = Gates({1: {A: 5}}, {2: {B: 7}, 3: {A: 5}})
    assert watched(gates, {A: 6}, {A: 6, B: 7}) == [{A}, {A, B}]
    assert gates.opened == [[], [1], [3]]


def test_pauses_grow_while_nothing_arrives() -> None:
    pauses = [FIRST_PAUSE]
    for _ in range(20):
        pauses.append(next_pause(pauses[-1], found=False))
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_PAUSE
    assert next_pause(LAST_PAUSE, found=True) == FIRST_PAUSE


def test_errors_of_a_system_open_no_gate_and_do_not_end_the_thread() -> None:
    gates = Gates({1: {A: 5}}, {1: {A: 5}}, {1: {A: 5}})
    watched(gates, StreamUnavailable("the broker is away"), ValueError("unexpected"), {A: 6})
    assert gates.opened == [[], [], [], [1]]


def test_an_exception_in_the_jvm_does_not_end_the_thread_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failed = Py4JError("An error occurred while calling o1.exchange. Trace:\njava.lang.IllegalStateException: it is so")
    gates = Gates(failed, failed, {1: {A: 5}})
    watched(gates, {A: 6})
    assert gates.opened == [[], [], [], [1]]
    (line,) = caplog.messages
    assert "it is so" in line


@pytest.mark.parametrize(
    "gone",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o1.exchange"),
        ConnectionRefusedError(),
    ],
)
def test_the_thread_ends_with_the_jvm(gone: Exception, caplog: pytest.LogCaptureFixture) -> None:
    gates = Gates({1: {A: 5}}, gone, {1: {A: 5}})
    watched(gates, {A: 6})
    assert gates.opened == [[], [1]]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_query_waits_until_something_opens_its_gate_and_a_timed_one_for_its_interval() -> None:
    assert Waits(timedelta(0)).limit == Waits(SECOND).limit == LONGEST
    assert Waits(timedelta(0), timed=True).limit == ASKED_EVERY
    assert Waits(10 * SECOND, timed=True).limit == 10 * SECOND
