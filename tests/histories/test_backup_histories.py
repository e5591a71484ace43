"""Commits, crashes, restores, retention, pins, clock jumps and collections in any order: no retained snapshot ever loses a blob."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.snapshots.catalog import PinSpec
from sluice.core.errors import LeaseLost, SnapshotConflict, TaskHeld
from sluice.core.snapshots.retention import Retention
from sluice.core.snapshots.snapshot import BlobId, CommitId, Kind, SnapshotIndex, offsets_blob_id
from tests.contracts.rows import JOB
from tests.support.backups import GRACE, KEY, TASK, TTL, Agent, World, new_world

T = TypeVar("T")

names = st.sampled_from("abcdef")
bodies = st.sampled_from([b"", b"one", b"two", b"three"])


class Histories(RuleBasedStateMachine):
    """`zombies` are former owners with uploads that they have not reported.

    While a commit is in progress, less than a grace period passes between two passes of the collection, because that is the purpose of the
    grace period.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world: World = new_world()
        self.agent: Agent | None = None
        self.uploaded: tuple[BlobId, SnapshotIndex] | None = None
        self.uploaded_files: dict[str, bytes] = {}
        self.uploaded_at = self.world.clock.now()
        self.zombies: list[tuple[Agent, tuple[BlobId, SnapshotIndex] | None]] = []

    def teardown(self) -> None:
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(last=st.integers(1, 3), hourly=st.integers(0, 2))
    def begin(self, last: int, hourly: int) -> None:
        self.world = new_world(Retention(last, hourly))
        self.do(self.world.begin())

    # --- agents ---

    @rule(skew=st.sampled_from([0.0, -7.0, 7.0]))
    def a_container_takes_the_task(self, skew: float) -> None:
        """A new owner with an empty disk; the uploads of the former one stay in the store."""
        if self.agent is not None:
            self.zombies.append((self.agent, self.uploaded))
        head = self.do(self.head())
        self.agent, self.uploaded = self.do(self.world.acquired(skew)), None
        if head is not None:
            assert self.agent.files == self.world.kept[head]

    async def head(self) -> CommitId | None:
        async with self.world.store.read() as tx:
            return next((row.head for row in await tx.fleet.stage_states(JOB, TASK)), None)

    @precondition(lambda self: self.agent is not None)
    @rule(changes=st.dictionaries(names, bodies, max_size=3))
    def a_batch_runs(self, changes: dict[str, bytes]) -> None:
        assert self.agent is not None
        self.do(self.world.run_batch(self.agent, changes))

    @precondition(lambda self: self.agent is not None and self.uploaded is None)
    @rule()
    def a_commit_is_uploaded(self) -> None:
        assert self.agent is not None
        self.uploaded = self.do(self.world.upload(self.agent))
        self.uploaded_files, self.uploaded_at = dict(self.agent.files), self.world.clock.now()

    @precondition(lambda self: self.uploaded is not None)
    @rule()
    def it_is_reported(self) -> None:
        assert self.agent is not None
        assert self.uploaded is not None
        now, self.agent.files = self.agent.files, self.uploaded_files
        self.do(self.world.report(self.agent, *self.uploaded))
        self.agent.files, self.uploaded = now, None

    @precondition(lambda self: self.agent is not None)
    @rule()
    def the_container_dies(self) -> None:
        assert self.agent is not None
        self.zombies.append((self.agent, self.uploaded))
        self.agent, self.uploaded = None, None
        self.do(self.world.released())

    @precondition(lambda self: any(uploaded for _, uploaded in self.zombies))
    @rule(data=st.data())
    def a_former_holder_reports(self, data: st.DataObject) -> None:
        zombie, uploaded = data.draw(st.sampled_from([each for each in self.zombies if each[1]]))
        assert uploaded is not None
        try:
            self.do(self.world.report(zombie, *uploaded))
        except (LeaseLost, SnapshotConflict):
            return
        raise AssertionError("a former holder's report was accepted")

    # --- operators ---

    @rule(hours=st.one_of(st.none(), st.integers(1, 40)))
    def the_newest_is_pinned(self, hours: int | None) -> None:
        if self.do(self.head()) is not None:
            lasts = None if hours is None else timedelta(hours=hours)
            self.do(self.world.catalog.pin(JOB, PinSpec(None, None, None, None, "", lasts)))

    @rule(data=st.data())
    def a_pin_is_taken_away(self, data: st.DataObject) -> None:
        async def pins() -> list[str]:
            async with self.world.store.read() as tx:
                return [row.pin_id for row in await tx.snapshots.pins(JOB)]

        if found := self.do(pins()):
            self.do(self.world.catalog.unpin(JOB, data.draw(st.sampled_from(found))))

    @rule(data=st.data())
    def an_earlier_snapshot_is_chosen(self, data: st.DataObject) -> None:
        if retained := sorted(self.do(self.world.retained())):
            checkpoint = data.draw(st.sampled_from(retained))
            try:
                self.do(self.world.catalog.choose(KEY, checkpoint))
            except TaskHeld:
                assert self.agent is not None
            else:
                assert self.agent is None

    # --- the coordinator ---

    @rule()
    def clean_up(self) -> None:
        self.do(self.world.clean_up.run_once())

    @rule()
    def collect(self) -> None:
        self.do(self.world.collection.run_once())

    @rule()
    def stores_are_looked_through(self) -> None:
        self.do(self.world.retire.run_once())

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.world.wire(self.world.blobs)

    @rule(hours=st.integers(1, 60))
    def time_goes_by(self, hours: int) -> None:
        """A commit takes less than a grace period, or is abandoned."""
        self.world.clock.advance(hours * 3600)
        if self.uploaded_at + GRACE <= self.world.clock.now():
            self.uploaded = None
        self.do(self.world.clean_up.run_once())
        self.do(self.world.sweep.run_once())

    @precondition(lambda self: self.uploaded is None)
    @rule()
    def a_month_goes_by(self) -> None:
        self.do(self.world.clean_up.run_once())
        self.world.clock.advance((TTL + timedelta(days=1)).total_seconds())
        self.do(self.world.sweep.run_once())

    # --- what always holds ---

    @invariant()
    def every_retained_snapshot_is_whole(self) -> None:
        self.do(self.world.check_retained())

    @invariant()
    def the_head_is_retained_and_the_batches_after_it_can_run_again(self) -> None:
        head = self.do(self.head())
        if head is not None:
            assert head in self.do(self.world.retained())
        agent = self.agent
        if agent is None or self.do(self.chosen()):
            return

        async def base() -> int:
            async with self.world.store.read() as tx:
                found = None if head is None else await tx.snapshots.get(KEY, head)
            return -1 if found is None or found.batch_id is None else found.batch_id

        listed = self.do(self.world.listed())
        for batch in range(self.do(base()) + 1, agent.batch + 1):
            assert offsets_blob_id(KEY, agent.lineage, batch) in listed

    async def chosen(self) -> bool:
        async with self.world.store.read() as tx:
            return any(row.chosen for row in await tx.fleet.stage_states(JOB, TASK))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)


async def test_after_clean_up_only_the_retained_snapshots_are_left() -> None:
    world = new_world(Retention(1))
    await world.begin()
    for number in range(5):
        agent = await world.acquired()
        await world.run_batch(agent, {"a": bytes([number])})
        await world.commit(agent)
        await world.upload(agent)
    await world.tidy()
    await world.tidy()
    plans = {blob for blob in await world.listed() if f"/{Kind.OFFSETS}/" in blob}
    assert (len(await world.listed() - plans), plans) == (2, set())
