"""Runs and notices: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from datetime import datetime, timedelta

from coordinator.store.runs import JobRow, NoticeRow
from coordinator.store.sql import Store
from sluice.core.drain import KeptHistory
from sluice.core.ids import JobName, RunId, Ssp, StageName
from sluice.core.lifecycle import RunState
from tests.contracts.rows import (
    JOB,
    NOON,
    OTHER,
    SSP,
    run_row,
)


class RunsContract:
    async def test_every_field_of_a_run_is_read_as_it_was_written(self, store: Store) -> None:
        full = run_row(
            state=RunState.FAILED,
            first_run=RunId("r0"),
            started_at=NOON + timedelta(seconds=1),
            stop_requested_at=NOON + timedelta(seconds=2),
            ended_at=NOON + timedelta(seconds=3),
            reason="a é \n reason",
            failing=True,
            kept=(KeptHistory(RunId("r-1"), frozenset({StageName("é"), StageName("s")})), KeptHistory(RunId("r-2"))),
        )
        async with store.begin() as tx:
            await tx.runs.put(full)
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) == full

    async def test_times_are_read_as_utc(self, store: Store) -> None:
        elsewhere = NOON.astimezone(datetime.fromisoformat("2026-01-01T00:00:00+05:30").tzinfo)
        async with store.begin() as tx:
            await tx.runs.put(run_row(created_at=elsewhere))
        async with store.read() as tx:
            found = await tx.runs.get(RunId("r1"))
            assert found is not None
            assert (found.created_at, found.created_at.utcoffset()) == (NOON, timedelta(0))

    async def test_the_newest_run_is_the_jobs_current_one_even_when_an_older_one_is_written_again(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row("r1"))
            await tx.runs.put(run_row("r2"))
            await tx.runs.put(run_row("r1", state=RunState.STOPPED))
            await tx.runs.put(run_row("q1", OTHER))
        async with store.read() as tx:
            assert await tx.runs.current(JOB) == run_row("r2")
            assert list(await tx.runs.jobs()) == [
                JobRow(JOB, RunId("r2"), RunState.CREATED, 2),
                JobRow(OTHER, RunId("q1"), RunState.CREATED, 1),
            ]

    async def test_active_runs_are_the_runs_that_have_not_ended_oldest_first(self, store: Store) -> None:
        async with store.begin() as tx:
            for hours, (run_id, state) in enumerate(
                [("z", "RUNNING"), ("b", "STOPPED"), ("a", "DRAINING"), ("c", "FAILED"), ("d", "DRAINED")]
            ):
                await tx.runs.put(run_row(run_id, state=RunState(state), created_at=NOON + timedelta(hours=hours)))
        async with store.read() as tx:
            assert [run.run_id for run in await tx.runs.active()] == ["z", "a"]

    async def test_a_history_has_the_runs_with_the_same_first_run_newest_first(self, store: Store) -> None:
        async with store.begin() as tx:
            for number, (job, first) in enumerate([(JOB, "r0"), (JOB, "r0"), (JOB, "r2"), (OTHER, "r0"), (JOB, "r0")]):
                row = run_row(f"r{number}", job, created_at=NOON + timedelta(seconds=number), first_run=RunId(first))
                await tx.runs.put(row)
            assert [row.run_id for row in await tx.runs.history(JOB, RunId("r0"))] == ["r4", "r1", "r0"]
            assert list(await tx.runs.history(JOB, RunId("r1"))) == []

    async def test_runs_are_listed_newest_first_and_runs_of_the_same_time_by_id(self, store: Store) -> None:
        async with store.begin() as tx:
            for run_id, job, hours in [("b", JOB, 0), ("a", JOB, 2), ("d", JOB, 1), ("c", JOB, 1), ("z", OTHER, 3)]:
                await tx.runs.put(run_row(run_id, job, created_at=NOON + timedelta(hours=hours)))
        async with store.read() as tx:
            assert [run.run_id for run in await tx.runs.page(JOB, None, 10)] == ["a", "d", "c", "b"]
            assert [run.run_id for run in await tx.runs.page(None, None, 10)] == ["z", "a", "d", "c", "b"]
            assert list(await tx.runs.page(JobName("nowhere"), None, 10)) == []

    async def test_pages_of_runs_have_every_run_once(self, store: Store) -> None:
        async with store.begin() as tx:
            for n in range(7):
                await tx.runs.put(run_row(f"r{n}", created_at=NOON + timedelta(seconds=n // 3)))
        async with store.read() as tx:
            pages, last = [], None
            while page := await tx.runs.page(JOB, last, 2):
                pages.append([run.run_id for run in page])
                last = page[-1]
        assert pages == [["r6", "r5"], ["r4", "r3"], ["r2", "r1"], ["r0"]]

    async def test_large_start_offsets_are_read_as_they_were_written(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put_start_offsets(RunId("r1"), {SSP: 2**62, Ssp("log", "x", 0): 0})
            await tx.runs.put_start_offsets(RunId("r1"), {Ssp("log", "x", 0): 5})
            await tx.runs.put_start_offsets(RunId("r2"), {})
        async with store.read() as tx:
            assert dict(await tx.runs.start_offsets(RunId("r1"))) == {SSP: 2**62, Ssp("log", "x", 0): 5}
            assert dict(await tx.runs.start_offsets(RunId("r2"))) == {}

    async def test_notices_are_numbered_from_one_within_their_run(self, store: Store) -> None:
        async with store.begin() as tx:
            assert await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {"reason": "é"}) == 1
            assert await tx.runs.add_notice(RunId("r2"), "STOP", NOON, {}) == 1
            assert await tx.runs.add_notice(RunId("r1"), "ENDED", NOON, {}) == 2
        async with store.read() as tx:
            assert list(await tx.runs.notices(RunId("r1"), 0)) == [
                NoticeRow(RunId("r1"), 1, "STOP", NOON, {"reason": "é"}),
                NoticeRow(RunId("r1"), 2, "ENDED", NOON, {}),
            ]
            assert [row.seq for row in await tx.runs.notices(RunId("r1"), 1)] == [2]
            assert [await tx.runs.last_notice(RunId(run)) for run in ("r1", "r2", "r3")] == [2, 1, 0]
            assert list(await tx.runs.notices(RunId("r1"), 2**31 - 1)) == []

    async def test_a_run_keeps_its_blob_stores(self, store: Store) -> None:
        reported = run_row(backup={"to": ["a"], "restoreFrom": []})
        async with store.begin() as tx:
            await tx.runs.put(run_row("r2"))
            await tx.runs.put(reported)
        async with store.read() as tx:
            assert await tx.runs.get(reported.run_id) == reported
            assert (await tx.runs.get(run_row("r2").run_id)) == run_row("r2")
