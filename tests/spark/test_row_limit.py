"""The number of rows that a batch of a running query reads."""

from __future__ import annotations

from itertools import pairwise

import pytest

from containers.spark.query import RowLimit, SourceLimits, await_initialised
from sluice.core.batchsize import BatchSizes
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import Drained, windowed
from tests.spark.operators import EVENTS

pytestmark = pytest.mark.spark


def test_batches_of_a_running_query_follow_changes_of_its_row_limit(either: Bench) -> None:
    drained = Drained(either, windowed)
    query = either.start(drained.grant, windowed)
    await_initialised(query, SOON)
    execution = query._jsq.streamingQuery()

    def rows_of_batches(batch: int) -> list[int]:
        """Feed events, and return the numbers of rows of the batches that have rows, computed from the offset log."""
        before = len(either.batches(drained.grant)[1])
        either.feed(EVENTS, batch=batch)
        query.processAllAvailable()
        ends = [
            sum(drained.plan(each).positions([*{ssp.stream_id for ssp in drained.ends()}]).values())
            for each in range(before - 1, drained.committed + 1)
        ]
        return [after - first for first, after in pairwise(ends) if after > first]

    query.processAllAvailable()
    for batch, most in enumerate((20, 13)):
        RowLimit(BatchSizes(most, SOON), SourceLimits(either.spark, execution).set)
        assert max(rows_of_batches(batch)) <= most
    assert either.stop(query)


def test_a_query_that_is_to_be_paused_reads_nothing_until_it_continues(log_first: Bench) -> None:
    drained = Drained(log_first, windowed)
    query = log_first.start(drained.grant, windowed)
    await_initialised(query, SOON)
    limit = RowLimit(BatchSizes(1000, SOON), SourceLimits(log_first.spark, query._jsq.streamingQuery()).set)
    log_first.feed(EVENTS[:1], batch=0)
    query.processAllAvailable()
    before = drained.committed
    limit.stop_reading()
    log_first.feed(EVENTS[1:], batch=1)
    query.processAllAvailable()
    assert drained.committed == before
    limit.continue_reading()
    query.processAllAvailable()
    assert drained.committed > before
    assert log_first.stop(query)
