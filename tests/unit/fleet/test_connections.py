"""The rule for connections: which make room, which requests are served."""

from __future__ import annotations

import random

import pytest

from coordinator.connections import OTHER_FILES, Pool, connection_limit, is_reserved, supported_containers
from sluice.core.errors import BadSettings


def test_a_new_connection_takes_the_place_of_the_one_that_has_waited_longest() -> None:
    pool = Pool[str](3)
    assert [pool.enter(each) for each in "abc"] == [None, None, None]
    assert pool.begin("a", reserved=False)
    pool.end("a", reserved=False)
    assert [pool.enter(each) for each in "def"] == ["b", "c", "a"]
    assert len(pool) == 3


def test_connections_of_heartbeats_make_room_last() -> None:
    pool = Pool[str](3)
    for each in "abc":
        pool.enter(each)
    assert pool.begin("a", reserved=True)
    pool.end("a", reserved=True)
    assert [pool.enter(each) for each in "de"] == ["b", "c"]
    for each in "de":
        assert pool.begin(each, reserved=False) is (each == "d" or each == "e")
    assert pool.enter("f") == "a"


def test_requests_beyond_four_fifths_are_refused_but_heartbeats_are_not() -> None:
    pool = Pool[int](10)
    for each in range(10):
        assert pool.enter(each) is None
    assert [pool.begin(each, reserved=False) for each in range(10)] == [True] * 8 + [False] * 2
    assert pool.begin(9, reserved=True)
    pool.end(0, reserved=False)
    assert pool.begin(8, reserved=False)


def test_a_connection_whose_request_was_answered_at_once_waits_from_then_on() -> None:
    pool = Pool[str](4)
    for each in "abcd":
        pool.enter(each)
    pool.answered("a", reserved=False)
    pool.answered("b", reserved=True)
    pool.answered("c", reserved=True)
    pool.answered("c", reserved=False)
    pool.leave("x")
    pool.answered("x", reserved=True)
    assert [pool.enter(each) for each in "efgh"] == ["d", "a", "c", "e"]
    for each in "fgh":
        assert pool.begin(each, reserved=False)
    assert pool.enter("i") == "b"


def test_a_connection_that_was_closed_while_it_was_answered_leaves_nothing() -> None:
    pool = Pool[str](3)
    pool.enter("a")
    assert pool.begin("a", reserved=False)
    pool.leave("a")
    pool.leave("a")
    pool.end("a", reserved=False)
    assert len(pool) == 0
    assert [pool.enter(each) for each in "bcd"] == [None, None, None]


def test_where_every_connection_is_busy_the_new_one_is_closed() -> None:
    pool = Pool[int](10)
    for each in range(10):
        pool.enter(each)
        assert pool.begin(each, reserved=True)
    assert pool.enter(10) == 10
    assert len(pool) == 10


def test_a_heartbeat_is_always_accepted() -> None:
    """As long as heartbeats are answered at once, as they are."""
    dice = random.Random(19)
    pool = Pool[int](20)
    busy: set[int] = set()
    waiting: set[int] = set()
    for new in range(20_000):
        match dice.choice(["idle", "request", "answer", "close", "heartbeat"]):
            case "idle":
                waiting.discard(pool.enter(new) or -1)
                waiting.add(new)
            case "request" if waiting:
                one = dice.choice(sorted(waiting))
                waiting.discard(one)
                if pool.begin(one, reserved=False):
                    busy.add(one)
                else:
                    pool.end(one, reserved=False)
                    pool.leave(one)
            case "answer" if busy:
                one = dice.choice(sorted(busy))
                busy.discard(one)
                pool.end(one, reserved=False)
                waiting.add(one)
            case "close" if waiting:
                one = dice.choice(sorted(waiting))
                waiting.discard(one)
                pool.leave(one)
            case "heartbeat":
                displaced = pool.enter(new)
                assert displaced != new
                assert displaced not in busy
                waiting.discard(displaced or -1)
                assert pool.begin(new, reserved=True)
                pool.end(new, reserved=True)
                waiting.add(new)
        assert len(pool) == len(busy) + len(waiting) <= 20


@pytest.mark.parametrize(
    ("url", "reserved"),
    [
        (b"/containerHeartbeat?executionContainerId=c", True),
        (b"/jobs/j/containerHeartbeat?executionContainerId=c", True),
        (b"/livez", True),
        (b"/readyz?verbose", True),
        (b"/metrics", True),
        (b"/runs?x=/containerHeartbeat", False),
        (b"/runs/r/notices?wait=30", False),
        (b"/", False),
        (b"", False),
    ],
)
def test_heartbeats_probes_and_scrapes_are_reserved(url: bytes, reserved: bool) -> None:
    assert is_reserved(url) is reserved


def test_the_limit_leaves_files_for_everything_else() -> None:
    assert connection_limit(None, 1024) == 1024 - OTHER_FILES
    assert supported_containers(connection_limit(None, 1024)) == 256
    assert connection_limit(None, 100) == 50
    assert connection_limit(500, 1024) == 500


def test_a_limit_that_needs_more_files_than_there_are_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadSettings, match=r"max_connections: 1000 connections need 1256 open files.* LimitNOFILE.* set at most 768"):
        connection_limit(1000, 1024)
