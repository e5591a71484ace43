"""Pages that are watched: one rendering for all browsers, and only what has changed is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from coordinator.ui.live import MAX_READERS, Encoded, LivePages
from coordinator.ui.pieces import ROWS, Fragment
from sluice.core.errors import TooManyRequests, UnknownJob
from tests.support.fakes import FakeClock

INTERVAL = timedelta(milliseconds=5)


class Source:
    """A page that a test changes."""

    def __init__(self) -> None:
        self.rows = {"a": "1", "b": "1"}
        self.renderings = 0
        self.rendered = asyncio.Event()
        self.error: Exception | None = None

    async def render(self) -> Sequence[Fragment]:
        self.renderings += 1
        self.rendered.set()
        if self.error is not None:
            raise self.error
        rows = tuple(Fragment(f"row-{name}", f'<tr id="row-{name}">{value}</tr>') for name, value in self.rows.items())
        return [Fragment("head", '<p id="head">head</p>'), Fragment("table", f'<table id="table">{ROWS}</table>', rows)]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def live() -> AsyncIterator[LivePages]:
    found = LivePages(FakeClock(), "e1", INTERVAL)
    yield found
    found.close()


async def following(stream: AsyncIterator[Encoded]) -> dict[str, Any]:
    """The next event that is not a comment."""
    async with asyncio.timeout(10):
        async for each in stream:
            if each.plain.startswith(b"data: "):
                return json.loads(each.plain[6:])  # type: ignore[no-any-return]
    raise AssertionError("the stream has ended")


async def test_a_browser_gets_all_fragments_and_then_those_that_change(live: LivePages, source: Source) -> None:
    async with aclosing(live.events({"p": source.render}, {})) as stream:  # type: ignore[type-var]
        first = await following(stream)
        assert set(first["pieces"]) == {"head", "table"}
        source.rows["a"] = "2"
        second = await following(stream)
        assert second["pieces"] == {"row-a": '<tr id="row-a">2</tr>'}
        assert second["version"] == first["version"] + 1


async def test_a_browser_with_the_present_version_gets_only_changes(live: LivePages, source: Source) -> None:
    page = await live.page("p", source.render)
    async with aclosing(live.events({"p": source.render}, {"p": page.version})) as stream:  # type: ignore[type-var]
        assert (await anext(stream)).plain == b"retry: 2000\n\n"
        source.rows["b"] = "2"
        assert (await following(stream))["pieces"] == {"row-b": '<tr id="row-b">2</tr>'}


async def test_a_table_with_other_rows_is_sent_as_a_whole(live: LivePages, source: Source) -> None:
    async with aclosing(live.events({"p": source.render}, {})) as stream:  # type: ignore[type-var]
        await following(stream)
        source.rows["c"] = "1"
        assert set((await following(stream))["pieces"]) == {"table"}


async def test_a_slow_browser_gets_the_newest_version_of_all_fragments_that_changed(live: LivePages, source: Source) -> None:
    page = await live.page("p", source.render)
    versions = page.version
    for value in ("2", "3"):
        source.rows |= {"a": value}
        page.update(await source.render())
    source.rows["b"] = "2"
    page.update(await source.render())
    assert page.since(versions) == {"row-a": '<tr id="row-a">3</tr>', "row-b": '<tr id="row-b">2</tr>'}
    assert "3" in page.since(0)["table"]


async def test_all_browsers_share_one_rendering(live: LivePages, source: Source) -> None:
    async with aclosing(live.events({"p": source.render}, {})) as one, aclosing(live.events({"p": source.render}, {})) as two:  # type: ignore[type-var]
        await asyncio.gather(following(one), following(two))
        assert source.renderings == 1
        source.rows["a"] = "2"
        events = [await anext(each) for each in (one, two)]
        assert events[0] is events[1], "an event is encoded and compressed once"


async def test_after_a_failed_rendering_the_page_stays_as_it_is_and_the_rendering_is_tried_again(live: LivePages, source: Source) -> None:
    async with aclosing(live.events({"p": source.render}, {})) as stream:  # type: ignore[type-var]
        await following(stream)
        source.error = UnknownJob("gone")
        source.rendered.clear()
        await source.rendered.wait()
        source.error = None
        source.rows["a"] = "2"
        assert set((await following(stream))["pieces"]) == {"row-a"}


async def test_streams_end_when_the_server_stops(live: LivePages, source: Source) -> None:
    async with aclosing(live.events({"p": source.render}, {})) as stream:  # type: ignore[type-var]
        await following(stream)
        live.close()
        assert [each async for each in stream] == []


async def test_a_stream_ends_as_soon_as_its_reader_is_not_allowed(live: LivePages, source: Source) -> None:
    allowed = True
    async with aclosing(live.events({"p": source.render}, {}, allowed=lambda: allowed)) as stream:  # type: ignore[type-var]
        await following(stream)
        ending = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        allowed = False
        live.wake()
        async with asyncio.timeout(10):
            assert await ending is None


async def test_browsers_that_follow_a_page_are_counted_and_limited(live: LivePages, source: Source) -> None:
    async with aclosing(live.events({"p": source.render}, {})) as stream:  # type: ignore[type-var]
        await anext(stream)
        assert live.readers == 1
        live.readers = MAX_READERS
        with pytest.raises(TooManyRequests):
            await anext(live.events({"p": source.render}, {}))
        live.readers = 1
    assert live.readers == 0


async def test_a_page_that_cannot_be_rendered_is_left_out(live: LivePages, source: Source) -> None:
    source.error = UnknownJob("gone")
    good = Source()
    async with aclosing(live.events({"bad": source.render, "good": good.render}, {})) as stream:  # type: ignore[type-var]
        assert (await following(stream))["page"] == "good"
