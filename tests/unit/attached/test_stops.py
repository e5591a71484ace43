"""Stops of a script's queries that meet each other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

from containers.attached.stops import Stops

LONG, NONE = timedelta(days=1), timedelta(0)


class Queries:
    """The queries of a script. Their batch runs until it may end, or a stop is forced."""

    def __init__(self) -> None:
        self.active = ["counts", "totals"]
        self.begun, self.may_end, self.another = Event(), Event(), Event()
        self.stops = Stops(self._stop_all)

    def find(self) -> Sequence[str]:
        return list(self.active)

    def _stop_all(self, queries: Sequence[str], within: timedelta, forced: Event) -> Sequence[str]:
        if not queries:
            return ()
        if self.begun.is_set():
            self.another.set()
        self.begun.set()
        while not forced.is_set() and not self.may_end.wait(0.01):
            pass
        self.active.clear()
        return queries if forced.is_set() else ()


def test_a_stop_during_another_one_finds_no_query_left() -> None:
    queries = Queries()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(queries.stops.run, queries.find, LONG)
        assert queries.begun.wait(300)
        second = threads.submit(queries.stops.run, queries.find, LONG)
        at_once = queries.another.wait(0.5)
        queries.may_end.set()
        assert (first.result(60), second.result(60), at_once) == ((), (), False)


def test_a_stop_that_may_take_less_time_interrupts_the_batches_of_the_one_before_it() -> None:
    queries = Queries()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(queries.stops.run, queries.find, LONG)
        assert queries.begun.wait(300)
        second = threads.submit(queries.stops.run, queries.find, NONE)
        assert (first.result(60), second.result(60)) == (["counts", "totals"], ())


def test_a_stop_that_was_forced_does_not_force_the_next_one() -> None:
    queries = Queries()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(queries.stops.run, queries.find, LONG)
        assert queries.begun.wait(300)
        queries.stops.run(queries.find, NONE)
        assert first.result(60)
        queries.active.append("restarted")
        queries.may_end.set()
        assert queries.stops.run(queries.find, LONG) == ()


def test_queries_that_start_later_are_left_to_the_stop_that_runs() -> None:
    queries = Queries()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(queries.stops.run, queries.find, LONG)
        assert queries.begun.wait(300)
        assert queries.stops.run_if_none_runs(queries.find, LONG) == ()
        assert queries.active
        queries.may_end.set()
        assert first.result(60) == ()
    queries.active.append("restarted")
    assert queries.stops.run_if_none_runs(queries.find, LONG) == ()
    assert not queries.active


def test_a_stop_without_an_end_is_no_error() -> None:
    queries = Queries()
    queries.may_end.set()
    assert queries.stops.run(queries.find, timedelta.max) == ()
