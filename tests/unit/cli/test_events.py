"""`sluice events --follow`: which events are new, also if they appear late, change, or the coordinator does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from sluice.cli.events import Followed
from sluice.client import OperatorClient
from sluice.core.errors import CoordinatorUnreachable
from sluice.wire import events as wire_events

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def event(seconds: float, name: str = "", detail: str = "") -> wire_events.JobEventReply:
    at = NOON + timedelta(seconds=seconds)
    what = name or f"at {seconds}"
    return wire_events.JobEventReply(
        id=f"{at.isoformat()} {what}", at=at, kind="run", subject="r", what=what, detail=detail, actor="", tone="quiet"
    )


class Listing(OperatorClient):
    """A coordinator that has these events, and answers with pages of at most `page`. `listed`: how many events it was asked for."""

    def __init__(self, events: Sequence[wire_events.JobEventReply], page: int = 200) -> None:
        self.events = [*events]
        self.reachable = True
        self.listed = 0
        self._page = page

    async def job_events(
        self, job: str, limit: int = 200, *, before: str | None = None, after: str | None = None
    ) -> wire_events.JobEventsReply:
        if not self.reachable:
            raise CoordinatorUnreachable("nobody")
        newest_first = sorted(self.events, key=lambda each: each.id, reverse=True)
        found = [each for each in newest_first if (before is None or each.id < before) and (after is None or each.id > after)]
        limit = min(limit, self._page)
        self.listed += len(found[:limit])
        return wire_events.JobEventsReply(job=job, events=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)


async def new(followed: Followed) -> list[str]:
    return [f"{each.what}{each.detail}" for each in await followed.new()]


async def test_the_first_events_are_the_newest_ones_and_each_later_one_is_returned_once() -> None:
    client = Listing([event(number) for number in range(10)])
    followed = Followed(client, "orders", 3)
    assert await new(followed) == ["at 7", "at 8", "at 9"]
    assert await new(followed) == []
    client.events += [event(11), event(10)]
    assert await new(followed) == ["at 10", "at 11"]
    assert await new(followed) == []


async def test_a_job_without_events_is_followed_from_its_first_one() -> None:
    client = Listing([])
    followed = Followed(client, "orders", 50)
    assert await new(followed) == []
    client.events.append(event(0))
    assert await new(followed) == ["at 0"]


async def test_an_event_that_appears_after_newer_ones_is_returned() -> None:
    client = Listing([event(0), event(100)])
    followed = Followed(client, "orders", 50)
    await followed.new()
    client.events.append(event(60))
    assert await new(followed) == ["at 60"]
    assert await new(followed) == []


async def test_an_event_whose_detail_has_changed_is_returned_again() -> None:
    client = Listing([event(0, "a restore")])
    followed = Followed(client, "orders", 50)
    await followed.new()
    client.events[0] = event(0, "a restore", ": refused")
    assert await new(followed) == ["a restore: refused"]
    assert await new(followed) == []


@pytest.mark.parametrize("page", [1, 7, 200])
async def test_more_events_than_a_page_has_are_all_returned_in_order(page: int) -> None:
    client = Listing([event(0)], page)
    followed = Followed(client, "orders", 50)
    await followed.new()
    client.events += [event(1 + number / 10, f"n{number}") for number in range(30)]
    assert await new(followed) == [f"n{number}" for number in range(30)]


async def test_events_older_than_the_first_ones_are_not_returned() -> None:
    client = Listing([event(number) for number in range(10)])
    followed = Followed(client, "orders", 2)
    await followed.new()
    client.events.append(event(1.5))
    client.events.append(event(200))
    assert await new(followed) == ["at 200"]


async def test_old_events_are_not_asked_for_again() -> None:
    client = Listing([event(number) for number in range(100)])
    followed = Followed(client, "orders", 200)
    await followed.new()
    client.events.append(event(1000))
    assert await new(followed) == ["at 1000"]
    client.listed = 0
    assert await new(followed) == []
    assert client.listed == 1


async def test_nothing_is_lost_while_the_coordinator_does_not_answer() -> None:
    client = Listing([event(0)])
    followed = Followed(client, "orders", 50)
    client.reachable = False
    with pytest.raises(CoordinatorUnreachable):
        await followed.new()
    client.reachable = True
    assert await new(followed) == ["at 0"]
    client.events.append(event(1))
    client.reachable = False
    with pytest.raises(CoordinatorUnreachable):
        await followed.new()
    client.reachable = True
    assert await new(followed) == ["at 1"]
