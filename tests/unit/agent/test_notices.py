"""The events that are read from notices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from containers.agent.notices import BlobsLost, NewBlobStores, NewModel, StopRequested, events, events_of
from sluice.client.agents import AgentClient
from sluice.core.ids import RunId, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.wire import body as wire_body
from sluice.wire.drains import DrainNotice
from tests.support.fakes import FakeClock


def notice(kind: str, detail: object, seq: int = 1) -> wire_body.Notice:
    return wire_body.Notice.model_validate({"seq": seq, "kind": kind, "at": datetime(2026, 3, 1, tzinfo=UTC), "detail": detail})


def drain(uuid: str) -> tuple[str, object]:
    return "DRAIN", {"uuid": uuid, "phase": "STOPPING"}


class Coordinator(AgentClient):
    """Answers each poll with the next of these notices."""

    def __init__(self, *polls: Sequence[tuple[str, object]]) -> None:
        super().__init__("http://127.0.0.1:1")
        self._polls = list(polls)
        self._seq = 0

    async def notices(self, run_id: str, after: int = 0, wait: timedelta = timedelta(0)) -> Sequence[wire_body.Notice]:
        assert after == self._seq
        found = []
        for kind, detail in self._polls.pop(0):
            self._seq += 1
            found.append(notice(kind, detail, self._seq))
        return found


async def test_each_drain_is_passed_on_also_one_that_was_cancelled_when_the_next_one_was_requested() -> None:
    """The agent was cut off meanwhile, so that it gets the notices in one poll."""
    polls = [drain("d-1")], [drain("d-1"), drain("d-2"), drain("d-2")], [("STOP", {"reason": "night"})]
    coordinator, found = Coordinator(*polls), list[object]()
    async for event in events(coordinator, RunId("run-1"), FakeClock()):
        found.append(event.uuid if isinstance(event, DrainNotice) else event)
        if isinstance(event, StopRequested):
            break
    assert found == ["d-1", "d-1", "d-2", "d-2", StopRequested("night")]
    await coordinator.close()


def test_a_notice_says_what_has_changed() -> None:
    lost = [{"task": "Partition 0", "stage": stage, "blobStore": "local"} for stage in ("counts", "sums")]
    assert events_of(notice("ENDED", {})) == [StopRequested("")]
    assert events_of(notice("MODEL", {"version": 3})) == [NewModel(3)]
    assert events_of(notice("BACKUP", {})) == [NewBlobStores()]
    assert events_of(notice("BACKUP", {"lost": lost})) == [
        BlobsLost(TaskName("Partition 0"), StageName(stage), BlobStoreName("local")) for stage in ("counts", "sums")
    ]


def test_the_entries_of_a_notice_that_can_be_read_count() -> None:
    entry = {"task": "Partition 0", "stage": "counts", "blobStore": "local"}
    lost = BlobsLost(TaskName("Partition 0"), StageName("counts"), BlobStoreName("local"))
    assert events_of(notice("BACKUP", {"lost": [5, {"stage": "counts"}, entry]})) == [lost]


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("DRAIN", {"uuid": "d-1", "phase": "SOON"}),
        ("MODEL", {"version": "x"}),
        ("MODEL", {}),
        *(("BACKUP", {"lost": lost}) for lost in (5, "counts", [5], [{"task": "Driver", "stage": "counts"}])),
    ],
)
def test_a_notice_that_cannot_be_read_is_ignored(kind: str, detail: object) -> None:
    assert events_of(notice(kind, detail)) == []
