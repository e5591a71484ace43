"""Job models, assignments and monitored streams: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from dataclasses import fields

from coordinator.store.jobmodels import ModelHead, ModelRow
from coordinator.store.sql import Store
from sluice.core.ids import ProcessorId, Ssp, StreamId, TaskName
from sluice.core.jobmodels.expansion import Verdict
from sluice.core.jobmodels.grouping import PreviousAssignment
from tests.contracts.rows import (
    JOB,
    NOON,
    OTHER,
    SSP,
    model_row,
    monitored_stream_row,
    run_row,
)


def head(row: ModelRow) -> ModelHead:
    return ModelHead(**{each.name: getattr(row, each.name) for each in fields(ModelHead)})


class JobModelsContract:
    async def test_an_assignment_replaces_the_one_before_as_a_whole(self, store: Store) -> None:
        first = PreviousAssignment(
            {SSP: TaskName("t"), Ssp("log", "x", 0): TaskName("u")}, {SSP.stream_id: 4, StreamId("log", "x"): 1}, "g"
        )
        second = PreviousAssignment({SSP: TaskName("v")}, {SSP.stream_id: 8}, "h")
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            await tx.jobmodels.put_assignment(JOB, first)
            assert await tx.jobmodels.assignment(JOB) == first
            await tx.jobmodels.put_assignment(JOB, second)
        async with store.read() as tx:
            assert await tx.jobmodels.assignment(JOB) == second
            assert await tx.jobmodels.assignment(OTHER) == PreviousAssignment()

    async def test_former_hosts_are_replaced_slot_by_slot(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.jobmodels.put_former_hosts(JOB, {ProcessorId("0"): "a", ProcessorId("1"): "b"})
            await tx.jobmodels.put_former_hosts(JOB, {ProcessorId("1"): "c"})
        async with store.read() as tx:
            assert await tx.jobmodels.former_hosts(JOB) == {"0": "a", "1": "c"}
            assert await tx.jobmodels.former_hosts(OTHER) == {}

    async def test_the_newest_model_or_a_requested_one_is_read(self, store: Store) -> None:
        async with store.begin() as tx:
            for version in (1, 2, 10):
                await tx.jobmodels.add(model_row(version))
        async with store.read() as tx:
            assert await tx.jobmodels.get(JOB) == model_row(10)
            assert await tx.jobmodels.get(JOB, 2) == model_row(2)
            assert await tx.jobmodels.get(JOB, 3) is None
            assert await tx.jobmodels.get(OTHER) is None

    async def test_versions_are_listed_newest_first_in_pages_without_their_models(self, store: Store) -> None:
        async with store.begin() as tx:
            for version in (1, 2, 10):
                await tx.jobmodels.add(model_row(version))
            await tx.jobmodels.add(model_row(3, OTHER))
        async with store.read() as tx:
            assert list(await tx.jobmodels.page(JOB, None, 2)) == [head(model_row(10)), head(model_row(2))]
            assert list(await tx.jobmodels.page(JOB, 2, 2)) == [head(model_row(1))]
            assert list(await tx.jobmodels.page(JOB, 1, 2)) == []

    async def test_every_field_of_a_monitored_stream_is_read_as_it_was_written(self, store: Store) -> None:
        full = monitored_stream_row(verdict=Verdict.REFUSED, seen=None, kept_from=8)
        async with store.begin() as tx:
            await tx.jobmodels.put_monitored(JOB, [full])
            assert list(await tx.jobmodels.monitored(JOB)) == [full]
        async with store.read() as tx:
            assert list(await tx.jobmodels.monitored(JOB)) == [full]
            assert full.stream_id == StreamId("kafka", "ads.clicks")

    async def test_monitored_streams_are_replaced_as_a_whole_and_those_of_other_jobs_stay(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.jobmodels.put_monitored(JOB, [monitored_stream_row("b"), monitored_stream_row("a")])
            await tx.jobmodels.put_monitored(OTHER, [monitored_stream_row("a", OTHER)])
            await tx.jobmodels.put_monitored(JOB, [monitored_stream_row("c"), monitored_stream_row("a", since=NOON, reason="")])
        async with store.read() as tx:
            assert [row.stream for row in await tx.jobmodels.monitored(JOB)] == ["a", "c"]
            assert list(await tx.jobmodels.monitored(OTHER)) == [monitored_stream_row("a", OTHER)]
        async with store.begin() as tx:
            await tx.jobmodels.put_monitored(JOB, [])
            assert list(await tx.jobmodels.monitored(JOB)) == []
