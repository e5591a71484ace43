from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Semaphore

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import BadName, LeaseLost, StreamConflict, StreamUnavailable, UnknownStream
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, LogEnds, LogSystem, Record, Writer, partition_of
from tests.contracts.streams import HOUR, NOON, Append, Delete, Grow, StreamSystemContract
from tests.support.fakes import FakeClock

T0 = 1_772_366_400_000_000


def writer(generation: int = 1, lineage: str = "l1", owner: str = "job/Partition 0") -> Writer:
    return Writer(Lineage(lineage), owner, Generation(generation))


def texts(*values: str, partition: int | None = 0) -> list[Record]:
    return [Record(value.encode(), partition=partition) for value in values]


def values(log: Log, partition: int = 0, stream: str = "s") -> list[str]:
    end = log.latest(stream)[partition]
    return [row[3].decode() for rows in log.read(stream, partition, 0, end) for row in rows if row[3] is not None]


class TestLogSystem(StreamSystemContract):
    @pytest.fixture
    async def system(self, tmp_path: Path) -> AsyncIterator[LogSystem]:
        (tmp_path / "log").mkdir()
        system = LogSystem(tmp_path / "log", FakeClock(NOON + 365 * 24 * HOUR))
        yield system
        await system.close()

    @pytest.fixture
    def append(self, system: LogSystem) -> Append:
        batches = count()

        async def append(stream: str, partition: int, records: int, when: datetime) -> None:
            micros = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            await asyncio.to_thread(
                lambda: system.log.append(
                    stream, [Record(b"x", partition=partition)] * records, writer=writer(), batch=next(batches), now_micros=micros
                )
            )

        return append

    @pytest.fixture
    def grow(self, system: LogSystem) -> Grow:
        async def grow(stream: str, partitions: int) -> None:
            await asyncio.to_thread(system.log.grow, stream, partitions)

        return grow

    @pytest.fixture
    def delete(self, system: LogSystem) -> Delete:
        async def delete(stream: str) -> None:
            for file in system.log.directory.glob(f"{stream}.db*"):
                file.unlink()

        return delete


def test_a_stream_of_an_older_release_has_no_identity(log: Log) -> None:
    assert log.identity("s") is not None
    with sqlite3.connect(log.directory / "s.db") as connection:
        connection.execute("DROP TABLE identity")
    connection.close()
    assert log.identity("s") is None
    assert log.partitions("s") == 2


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path)
    made.create("s", 2)
    return made


def test_a_batch_that_is_appended_twice_is_in_the_log_once(log: Log) -> None:
    assert log.append("s", texts("a", "b"), writer=writer(), batch=0, now_micros=T0) is True
    assert log.append("s", texts("a", "b"), writer=writer(), batch=0, now_micros=T0) is False
    assert values(log) == ["a", "b"]


def test_an_older_batch_of_the_lineage_is_skipped(log: Log) -> None:
    log.append("s", texts("new"), writer=writer(), batch=5, now_micros=T0)
    assert log.append("s", texts("old"), writer=writer(), batch=4, now_micros=T0) is False
    assert values(log) == ["new"]


def test_another_lineage_counts_its_batches_from_the_beginning(log: Log) -> None:
    log.append("s", texts("a"), writer=writer(lineage="l1"), batch=5, now_micros=T0)
    assert log.append("s", texts("b"), writer=writer(lineage="l2"), batch=0, now_micros=T0) is True
    assert (log.last_batch("s", Lineage("l1")), log.last_batch("s", Lineage("l2"))) == (5, 0)
    assert log.last_batch("s", Lineage("l3")) is None


def test_a_batch_without_records_is_recorded(log: Log) -> None:
    assert log.append("s", [], writer=writer(), batch=0, now_micros=T0) is True
    assert log.append("s", texts("late"), writer=writer(), batch=0, now_micros=T0) is False


def test_an_older_generation_is_refused_after_a_fence(log: Log) -> None:
    log.fence("s", "job/Partition 0", Generation(3))
    with pytest.raises(LeaseLost, match="owned by generation 3; generation 2 may not append"):
        log.append("s", texts("zombie"), writer=writer(2), batch=0, now_micros=T0)
    assert values(log) == []
    assert log.append("s", texts("mine"), writer=writer(3), batch=0, now_micros=T0) is True


def test_the_first_append_of_a_generation_is_a_fence(log: Log) -> None:
    log.append("s", texts("new"), writer=writer(2), batch=1, now_micros=T0)
    with pytest.raises(LeaseLost):
        log.append("s", texts("zombie"), writer=writer(1), batch=2, now_micros=T0)
    assert values(log) == ["new"]


def test_a_fence_is_never_lowered(log: Log) -> None:
    log.fence("s", "job/Partition 0", Generation(3))
    with pytest.raises(LeaseLost):
        log.fence("s", "job/Partition 0", Generation(2))
    log.fence("s", "job/Partition 0", Generation(3))
    with pytest.raises(LeaseLost):
        log.append("s", texts("zombie"), writer=writer(2), batch=0, now_micros=T0)


def test_a_fence_holds_for_one_owner_only(log: Log) -> None:
    log.fence("s", "job/Partition 1", Generation(9))
    assert log.append("s", texts("a"), writer=writer(1), batch=0, now_micros=T0) is True


def test_timestamps_do_not_fall_when_the_clock_is_set_back(log: Log) -> None:
    log.append("s", texts("a"), writer=writer(), batch=0, now_micros=T0)
    log.append("s", texts("b"), writer=writer(), batch=1, now_micros=T0 - 1_000_000)
    log.append("s", texts("c", partition=1), writer=writer(), batch=2, now_micros=T0 - 2_000_000)
    stamps = [row[1] for p in (0, 1) for rows in log.read("s", p, 0, 10) for row in rows]
    assert stamps == [T0, T0, T0]


def test_timestamps_do_not_fall_below_those_of_trimmed_records(log: Log) -> None:
    log.append("s", texts("a", "b"), writer=writer(), batch=0, now_micros=T0)
    log.trim("s", {0: 1})
    log.append("s", texts("c"), writer=writer(), batch=1, now_micros=T0 - 1)
    assert [row[1] for rows in log.read("s", 0, 0, 10) for row in rows] == [T0, T0]


def test_equal_keys_share_a_partition_and_null_keys_are_distributed_in_turn(log: Log) -> None:
    assert {partition_of(b"UA", 4, position) for position in range(10)} == {partition_of(b"UA", 4, 0)}
    log.append("s", [Record(b"x") for _ in range(4)], writer=writer(), batch=0, now_micros=T0)
    assert log.latest("s") == {0: 2, 1: 2}


def test_nothing_of_a_batch_is_written_if_one_record_has_an_unknown_partition(log: Log) -> None:
    records = [*texts("a"), *texts("b", partition=7)]
    with pytest.raises(UnknownStream, match="no 7"):
        log.append("s", records, writer=writer(), batch=0, now_micros=T0)
    assert log.latest("s") == {0: 0, 1: 0}
    assert log.last_batch("s", Lineage("l1")) is None


def test_headers_are_read_as_they_were_written(log: Log) -> None:
    log.append("s", texts("a"), writer=writer(), batch=0, headers={"sluice-run": "r1", "é": ""}, now_micros=T0)
    log.append("s", texts("b"), writer=writer(), batch=1, now_micros=T0)
    by_id = log.headers("s")
    assert [by_id[row[4]] for rows in log.read("s", 0, 0, 2) for row in rows] == [{"sluice-run": "r1", "é": ""}, {}]


def test_equal_headers_are_stored_once(log: Log) -> None:
    for batch, headers in enumerate([{"a": "1", "b": "2"}, {"b": "2", "a": "1"}]):
        log.append("s", texts("x"), writer=writer(), batch=batch, headers=headers, now_micros=T0)
    assert len(log.headers("s")) == 1


def test_a_read_returns_exactly_its_range_in_order_and_in_chunks(log: Log) -> None:
    log.append("s", texts(*"abcdefgh"), writer=writer(), batch=0, now_micros=T0)
    log.append("s", texts("other", partition=1), writer=writer(), batch=1, now_micros=T0)
    chunks = list(log.read("s", 0, 2, 7, chunk=2))
    assert [[row[0] for row in chunk] for chunk in chunks] == [[2, 3], [4, 5], [6]]
    assert b"".join(row[3] or b"" for chunk in chunks for row in chunk) == b"cdefg"


def test_a_null_value_is_not_an_empty_one(log: Log) -> None:
    log.append("s", [Record(None, partition=0), Record(b"", partition=0)], writer=writer(), batch=0, now_micros=T0)
    assert [(row[2], row[3]) for rows in log.read("s", 0, 0, 2) for row in rows] == [(None, None), (None, b"")]


def test_a_grown_stream_keeps_its_records_and_has_empty_new_partitions(log: Log) -> None:
    log.append("s", texts("a"), writer=writer(), batch=0, now_micros=T0)
    log.grow("s", 4)
    log.grow("s", 4)
    assert log.latest("s") == {0: 1, 1: 0, 2: 0, 3: 0}
    assert values(log) == ["a"]


def test_a_stream_does_not_shrink(log: Log) -> None:
    with pytest.raises(StreamConflict, match="cannot shrink to 1"):
        log.grow("s", 1)
    assert log.partitions("s") == 2


def test_trimming_deletes_a_limited_number_of_records_at_a_time(log: Log) -> None:
    log.append("s", texts(*"abcdef"), writer=writer(), batch=0, now_micros=T0)
    assert [log.trim("s", {0: 5}, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert log.earliest("s")[0] == 5


async def test_a_trim_continues_until_everything_is_deleted_and_writers_can_append_in_between(log: Log) -> None:
    log.append("s", texts(*"abcdefg"), writer=writer(), batch=0, now_micros=T0)
    log.append("s", texts(*"abc", partition=1), writer=writer(), batch=1, now_micros=T0)
    batches = count(2)

    async def append(_: timedelta) -> None:
        log.append("s", texts("new"), writer=writer(), batch=next(batches), now_micros=T0)

    system = LogSystem(log.directory, trim_portion=2, pause=append)
    assert await system.trim("s", {0: 7, 1: 2}) == 9
    assert log.earliest("s") == {0: 7, 1: 2}
    assert values(log) == ["new"] * 3


def test_readers_that_overlap_do_not_keep_the_write_ahead_log_from_being_emptied(log: Log, tmp_path: Path) -> None:
    megabyte = 1 << 20
    log = Log(tmp_path, wal_bytes=megabyte)
    log.append("s", texts("a"), writer=writer(), batch=0, now_micros=T0)
    ended, open_ = Event(), [Semaphore(0), Semaphore(0)]

    def read(me: int) -> None:
        """Begin before the other reader ends, so that there is always one."""
        while not ended.is_set():
            with closing(log.read("s", 0, 0, 1)) as rows:
                next(rows)
                open_[me].release()
                open_[1 - me].acquire(timeout=10)

    def size() -> int:
        with suppress(FileNotFoundError):  # the last process that closes the database removes it
            return (tmp_path / "s.db-wal").stat().st_size
        return 0

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, me) for me in (0, 1)]
        sizes = []
        try:
            for batch in range(1, 41):
                log.append("s", [Record(b"v" * (megabyte // 4))], writer=writer(), batch=batch, now_micros=T0)
                sizes.append(size())
        finally:
            ended.set()
            for each in open_:
                each.release()
        for reader in readers:
            reader.result()
    assert max(sizes) < 3 * megabyte


def test_a_reader_that_does_not_end_delays_no_append_for_long(tmp_path: Path) -> None:
    log = Log(tmp_path, wal_bytes=1 << 16)
    log.create("s", 1)
    log.append("s", texts("a"), writer=writer(), batch=0, now_micros=T0)
    with closing(log.read("s", 0, 0, 1)) as rows:
        next(rows)
        assert log.append("s", [Record(b"v" * (1 << 17))], writer=writer(), batch=1, now_micros=T0) is True
    assert log.latest("s") == {0: 2}


def test_streams_are_listed_without_drafts(log: Log, tmp_path: Path) -> None:
    (tmp_path / ".0123.draft").touch()
    log.create("a.b", 1)
    assert log.streams() == ["a.b", "s"]


@pytest.mark.parametrize("name", ["../x", "", ".", "a/b", "/etc/x", "s\x00", "-s"])
def test_a_name_that_would_leave_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    log = Log(tmp_path / "log")
    log.create("s", 1)
    before = sorted(tmp_path.rglob("*"))
    for question in (lambda: log.create(name, 1), lambda: log.partitions(name), lambda: log.latest(name)):
        with pytest.raises(BadName):
            question()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_created_stream_leaves_no_draft_behind(log: Log, tmp_path: Path) -> None:
    with pytest.raises(StreamConflict):
        log.create("s", 3)
    assert [each.name for each in tmp_path.iterdir()] == ["s.db"]


# --- wrong clocks ----------------------------------------------------------------------------------------------------

MINUTE = 60_000_000
YEARS = 10 * 365 * 24 * 60 * MINUTE


@given(st.lists(st.sampled_from([0, 0, 0, YEARS, 2 * YEARS, -YEARS]), max_size=12), st.integers(0, 12))
def test_records_with_wrong_timestamps_do_not_hide_other_records(skews: list[int], wanted: int) -> None:
    """One record per minute, each appended under a clock that was wrong by that much. A record with a correct time is found if and only
    if it was appended at that time or later.
    """
    with TemporaryDirectory() as directory:
        log = Log(Path(directory))
        log.create("s", 1)
        for minute, skew in enumerate(skews):
            log.append("s", texts("x"), writer=writer(), batch=minute, now_micros=T0 + minute * MINUTE + skew)
        now = T0 + len(skews) * MINUTE
        found = log.at_time("s", T0 + wanted * MINUTE, now)[0]
        right = min(wanted, len(skews))
        assert all(skew != 0 for skew in [*skews[right:found], *skews[found:right]])


def test_the_clock_is_used_again_after_a_record_from_the_future(log: Log) -> None:
    log.create("s", 2)
    for batch, skew in enumerate((0, YEARS, 0, 0)):
        log.append("s", texts("x", "y"), writer=writer(), batch=batch, now_micros=T0 + batch + skew)
    log.append("s", texts("z", partition=1), writer=writer(), batch=9, now_micros=T0 + 9)
    times = [row[1] - T0 for rows in log.read("s", 0, 0, 99) for row in rows]
    assert times == [0, 0, YEARS + 1, YEARS + 1, 2, 2, 3, 3]
    assert [row[1] - T0 for rows in log.read("s", 1, 0, 9) for row in rows] == [9]
    with sqlite3.connect(log.directory / "s.db") as connection:
        assert connection.execute("SELECT * FROM falls").fetchall() == [(0, 4)]


# --- the ends, for a thread that asks often --------------------------------------------------------------------------


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[LogEnds]:
    found = LogEnds(Log(tmp_path))
    yield found
    found.close()


def test_the_ends_of_a_stream_move_with_every_append_of_another_process(tmp_path: Path, ends: LogEnds) -> None:
    log = Log(tmp_path)
    log.create("s", 2)
    assert ends.latest("s") == {0: 0, 1: 0}
    for batch in range(3):
        log.append("s", texts("a", partition=1), writer=writer(), batch=batch, now_micros=T0)
        assert ends.latest("s") == {0: 0, 1: batch + 1}
    log.grow("s", 3)
    assert ends.latest("s") == {0: 0, 1: 3, 2: 0}


def test_the_ends_are_read_from_the_present_file_after_a_replacement(tmp_path: Path, ends: LogEnds) -> None:
    log, other = Log(tmp_path), Log(tmp_path / "other")
    log.create("s", 1)
    other.create("s", 4)
    assert len(ends.latest("s")) == 1
    for each in tmp_path.glob("s.db*"):
        each.unlink()
    with pytest.raises(StreamUnavailable, match="No such file"):
        ends.latest("s")
    other.file("s").rename(log.file("s"))
    assert len(ends.latest("s")) == 4
