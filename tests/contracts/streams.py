"""The contract of `StreamSystem` (`sluice/streams/port.py`) as tests.

A test of an implementation inherits `StreamSystemContract` and provides four fixtures: `system`, and, by means of the implementation,
`append`, which adds records to one partition at a given time, `grow`, which adds partitions, and `delete`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from sluice.core.errors import ClientError, StreamConflict, UnknownStream
from sluice.streams.port import StreamSystem

Append = Callable[[str, int, int, datetime], Awaitable[None]]
"""stream, partition, how many records, when."""

Grow = Callable[[str, int], Awaitable[None]]
"""stream, up to how many partitions."""

Delete = Callable[[str], Awaitable[None]]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class StreamSystemContract:
    async def test_a_stream_has_the_partitions_that_it_was_created_with(self, system: StreamSystem) -> None:
        await system.create("flights", 3)
        assert await system.partitions("flights") == 3

    async def test_an_empty_partition_begins_where_it_ends(self, system: StreamSystem) -> None:
        await system.create("flights", 2)
        earliest = await system.earliest("flights")
        assert earliest == await system.latest("flights")
        assert earliest.keys() == {0, 1}

    async def test_latest_is_the_offset_that_the_next_record_will_have(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 2)
        await append("flights", 1, 3, NOON)
        assert (await system.latest("flights"))[1] == (await system.earliest("flights"))[1] + 3
        assert (await system.latest("flights"))[0] == (await system.earliest("flights"))[0]

    async def test_creating_a_stream_twice_is_not_an_error(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 2)
        await append("flights", 0, 1, NOON)
        await system.create("flights", 2)
        assert (await system.latest("flights"))[0] == 1

    async def test_concurrent_creations_of_a_stream_all_succeed(self, system: StreamSystem) -> None:
        await asyncio.gather(*(system.create("flights", 2) for _ in range(8)))
        assert await system.partitions("flights") == 2

    @pytest.mark.parametrize("partitions", [1, 3])
    async def test_creating_a_stream_with_another_count_is_a_conflict_and_changes_nothing(
        self, system: StreamSystem, partitions: int
    ) -> None:
        await system.create("flights", 2)
        with pytest.raises(StreamConflict):
            await system.create("flights", partitions)
        assert await system.partitions("flights") == 2

    @pytest.mark.parametrize("partitions", [0, -1])
    async def test_a_stream_has_at_least_one_partition(self, system: StreamSystem, partitions: int) -> None:
        with pytest.raises(StreamConflict):
            await system.create("flights", partitions)
        with pytest.raises(UnknownStream):
            await system.partitions("flights")

    async def test_every_operation_reports_a_missing_stream_as_unknown(self, system: StreamSystem) -> None:
        questions: list[Callable[[], Awaitable[object]]] = [
            lambda: system.partitions("lost"),
            lambda: system.identity("lost"),
            lambda: system.earliest("lost"),
            lambda: system.latest("lost"),
            lambda: system.at_time("lost", NOON),
            lambda: system.trim("lost", {0: 1}),
        ]
        for question in questions:
            with pytest.raises(UnknownStream):
                await question()

    async def test_a_grown_stream_has_more_partitions_and_the_new_ones_are_empty(
        self, system: StreamSystem, append: Append, grow: Grow
    ) -> None:
        await system.create("flights", 2)
        await append("flights", 1, 3, NOON)
        await grow("flights", 4)
        assert await system.partitions("flights") == 4
        earliest, latest = await system.earliest("flights"), await system.latest("flights")
        assert earliest.keys() == latest.keys() == {0, 1, 2, 3}
        assert {p: latest[p] - earliest[p] for p in latest} == {0: 0, 1: 3, 2: 0, 3: 0}

    async def test_the_identity_of_a_stream_survives_appends_growth_and_trims(
        self, system: StreamSystem, append: Append, grow: Grow
    ) -> None:
        await system.create("flights", 1)
        await system.create("weather", 1)
        identity = await system.identity("flights")
        assert identity is not None
        assert identity != await system.identity("weather")
        await append("flights", 0, 3, NOON)
        await grow("flights", 2)
        await system.trim("flights", {0: 2})
        assert await system.identity("flights") == identity

    async def test_a_stream_that_was_deleted_and_created_again_has_another_identity(self, system: StreamSystem, delete: Delete) -> None:
        await system.create("flights", 2)
        identity = await system.identity("flights")
        await delete("flights")
        with pytest.raises(UnknownStream):
            await system.identity("flights")
        await system.create("flights", 2)
        assert await system.identity("flights") not in (identity, None)

    async def test_streams_whose_names_have_dots_are_distinguished(self, system: StreamSystem) -> None:
        await system.create("ads.clicks", 1)
        await system.create("ads.clicks.0", 2)
        assert (await system.partitions("ads.clicks"), await system.partitions("ads.clicks.0")) == (1, 2)

    async def test_a_name_may_have_240_characters(self, system: StreamSystem, append: Append) -> None:
        await system.create("x" * 240, 1)
        await append("x" * 240, 0, 1, NOON)
        assert await system.latest("x" * 240) == {0: 1}

    async def test_a_longer_name_is_accepted_or_refused_as_a_bad_request(self, system: StreamSystem) -> None:
        try:
            await system.create("x" * 249, 1)
        except ClientError:
            with pytest.raises(ClientError):
                await system.partitions("x" * 249)
        else:
            assert await system.partitions("x" * 249) == 1

    @pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "x" * 250])
    async def test_an_invalid_name_is_refused(self, system: StreamSystem, name: str) -> None:
        with pytest.raises(ClientError):
            await system.create(name, 1)

    async def test_the_offset_at_a_time_is_that_of_the_first_record_at_or_after_it(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 1)
        for hour in range(4):
            await append("flights", 0, 2, NOON + hour * HOUR)
        assert await system.at_time("flights", NOON + HOUR) == {0: 2}
        assert await system.at_time("flights", NOON + HOUR + timedelta(milliseconds=1)) == {0: 4}

    async def test_the_offset_at_a_time_before_all_records_is_the_earliest_and_after_them_the_latest(
        self, system: StreamSystem, append: Append
    ) -> None:
        await system.create("flights", 2)
        await append("flights", 0, 3, NOON)
        assert await system.at_time("flights", NOON - HOUR) == await system.earliest("flights")
        assert await system.at_time("flights", NOON + HOUR) == await system.latest("flights")

    async def test_the_offset_at_a_time_does_not_depend_on_the_time_zone(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 1)
        await append("flights", 0, 1, NOON)
        await append("flights", 0, 1, NOON + HOUR)
        elsewhere = (NOON + HOUR).astimezone(tz=datetime.fromisoformat("2026-03-01T00:00:00+05:30").tzinfo)
        assert await system.at_time("flights", elsewhere) == {0: 1}

    async def test_trimming_keeps_every_record_at_or_above_the_offset(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 2)
        await append("flights", 0, 5, NOON)
        await append("flights", 1, 5, NOON)
        await system.trim("flights", {0: 3})
        assert (await system.earliest("flights"))[0] <= 3
        assert (await system.earliest("flights"))[1] == 0
        assert await system.latest("flights") == {0: 5, 1: 5}

    async def test_trimming_again_deletes_nothing(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 1)
        await append("flights", 0, 5, NOON)
        await system.trim("flights", {0: 3})
        assert await system.trim("flights", {0: 3}) == 0
        assert await system.trim("flights", {0: 1}) == 0

    async def test_trimming_beyond_the_end_stops_at_the_end(self, system: StreamSystem, append: Append) -> None:
        await system.create("flights", 1)
        await append("flights", 0, 2, NOON)
        await system.trim("flights", {0: 100, 7: 100})
        await append("flights", 0, 1, NOON)
        assert await system.latest("flights") == {0: 3}

    async def test_the_offset_at_a_time_before_the_trimmed_records_is_the_first_one_left(
        self, system: StreamSystem, append: Append
    ) -> None:
        await system.create("flights", 1)
        await append("flights", 0, 4, NOON)
        await append("flights", 0, 4, NOON + HOUR)
        await system.trim("flights", {0: 6})
        assert await system.at_time("flights", NOON) == await system.earliest("flights")

    async def test_the_connection_that_containers_receive_is_plain_text(self, system: StreamSystem) -> None:
        reported = dict(system.connection())
        assert json.loads(json.dumps(reported)) == reported
        assert all(isinstance(value, str) for value in reported.values())

    async def test_a_system_may_be_closed_twice(self, system: StreamSystem) -> None:
        await system.close()
        await system.close()
