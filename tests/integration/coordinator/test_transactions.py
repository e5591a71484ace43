"""The chore that ends transactions which containers have left open."""

from __future__ import annotations

from datetime import timedelta

import pytest

from coordinator.metrics import of_transactions
from coordinator.runs.transactions import AFTER_ITS_END, NAMED_AFTER, AbortTransactions
from tests.support.api import Caller
from tests.support.fakes import FakeClock
from tests.support.streams import BlockedReaders


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """A run whose slot 0 is c1, which owns "Partition 0"."""
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    await caller.acquired(run_id, "c1")
    return run_id


def chore(caller: Caller, clock: FakeClock, system: BlockedReaders) -> AbortTransactions:
    return AbortTransactions(caller.coordinator.api.state.parts.health.store, {"log": system}, clock)


async def test_transactions_of_tasks_that_have_an_owner_are_not_aborted(caller: Caller, clock: FakeClock, run_id: str) -> None:
    system = BlockedReaders()
    made = chore(caller, clock, system)
    for _ in range(3):
        assert await made.run_once() == {}
    assert system.aborted == []


async def test_transactions_of_a_task_without_an_owner_are_aborted_if_readers_make_no_progress(
    caller: Caller, clock: FakeClock, run_id: str
) -> None:
    system = BlockedReaders()
    made = chore(caller, clock, system)
    await caller.release(run_id, 1)
    assert await made.run_once() == {}, "at first it is not known whether they stand still"
    assert await made.run_once() == {"aborted": 1}
    ((_, job, stage, task),) = system.aborted
    assert (job, stage, task) == ("flight-delays", "hourly", "Partition 0")
    assert await made.run_once() == {}, "another writer holds them back"


async def test_no_transaction_is_aborted_while_readers_make_progress(caller: Caller, clock: FakeClock, run_id: str) -> None:
    system = BlockedReaders()
    made = chore(caller, clock, system)
    await caller.release(run_id, 1)
    for at in (4, 5, 6, 10, 10):
        system.readable_to = at
        assert await made.run_once() == {}


async def test_transactions_of_an_ended_run_are_aborted_and_later_no_longer_checked(caller: Caller, clock: FakeClock, run_id: str) -> None:
    system = BlockedReaders()
    made = chore(caller, clock, system)
    await made.run_once()
    await caller.http.post(f"/runs/{run_id}/stop")
    await caller.release(run_id, 1)
    await caller.exited("c1")
    assert await made.run_once() == {"aborted": 1}
    clock.advance((AFTER_ITS_END + timedelta(seconds=1)).total_seconds())
    assert await made.run_once() == {}


async def test_the_writer_is_named_while_readers_make_no_progress_for_a_long_time(caller: Caller, clock: FakeClock, run_id: str) -> None:
    system = BlockedReaders()
    made = chore(caller, clock, system)
    await made.run_once()
    (held,) = made.standing
    assert (held.partition, held.held_for, held.writer) == (0, timedelta(0), "")
    clock.advance(NAMED_AFTER.total_seconds())
    await made.run_once()
    (held,) = made.standing
    assert (held.held_for, held.writer) == (NAMED_AFTER, f"sluice/flight-delays/hourly/{held.stream.stream}/Partition 0")
    system.readable_to = 5
    await made.run_once()
    (held,) = made.standing
    assert (held.held_for, held.writer) == (timedelta(0), ""), "another transaction"
    system.readable_to = 10
    await made.run_once()
    assert made.standing == []


async def test_the_metric_names_the_writer_that_holds_back_readers(caller: Caller, clock: FakeClock, run_id: str) -> None:
    made = chore(caller, clock, BlockedReaders())
    await made.run_once()
    clock.advance(61)
    await made.run_once()
    ((sample,),) = [metric.samples for metric in of_transactions(made)]
    assert (sample.name, sample.value) == ("sluice_stream_held_back_seconds", 61)
    assert sample.labels["transactional_id"] == f"sluice/flight-delays/hourly/{sample.labels['stream']}/Partition 0"
