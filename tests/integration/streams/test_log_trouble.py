"""The log when processes are killed, append at the same time, or lose their disk."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from sluice.core.errors import StreamUnavailable, UnknownStream
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer

BATCH = 5_000
APPENDER = f"""
import sys
from pathlib import Path
from sluice.streams.log import Log, Record, Writer
log, batch = Log(Path(sys.argv[1])), 0
while True:
    log.append("s", [Record(b"v" * 100)] * {BATCH}, writer=Writer("l", "o", 1), batch=batch, now_micros=0)
    print(batch, flush=True)
    batch += 1
"""


def append_batches(directory: Path, name: str, batches: int) -> None:
    log = Log(directory)
    for batch in range(batches):
        records = [Record(f"{name}/{batch}/{n}".encode(), key=name.encode()) for n in range(10)]
        log.append("s", records, writer=Writer(Lineage(name), name, Generation(1)), batch=batch, now_micros=batch)


def everything(log: Log) -> list[bytes]:
    return [row[3] or b"" for p, end in log.latest("s").items() for rows in log.read("s", p, 0, end) for row in rows]


def test_processes_that_append_at_once_to_one_stream_lose_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.create("s", 3)
    names = [f"w{n}" for n in range(3)]
    with ProcessPoolExecutor(len(names), mp_context=get_context("spawn")) as pool:
        list(pool.map(append_batches, [tmp_path] * len(names), names, [10] * len(names)))
    assert sorted(everything(log)) == sorted(f"{w}/{b}/{n}".encode() for w in names for b in range(10) for n in range(10))


def test_threads_that_append_the_same_batches_at_once_append_each_once(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.create("s", 2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append_batches, [tmp_path] * 4, ["same"] * 4, [10] * 4))
    assert set(Counter(everything(log)).values()) == {1}
    assert len(everything(log)) == 100


def test_a_process_killed_in_the_middle_of_an_append_leaves_all_of_a_batch_or_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.create("s", 2)
    with subprocess.Popen([sys.executable, "-c", APPENDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as appender:
        assert appender.stdout is not None
        for _ in range(3):
            acknowledged = int(appender.stdout.readline())
        appender.kill()
    last = log.last_batch("s", Lineage("l"))
    assert last is not None
    assert last >= acknowledged
    assert sum(log.latest("s").values()) == (last + 1) * BATCH
    assert len(everything(log)) == (last + 1) * BATCH
    assert log.append("s", [Record(b"x")], writer=Writer(Lineage("l"), "o", Generation(1)), batch=last + 1, now_micros=0) is True


def test_an_append_in_the_middle_of_a_read_does_not_change_its_result(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.create("s", 1)
    append_batches(tmp_path, "first", 1)
    rows = log.read("s", 0, 0, 100, chunk=1)
    seen = [next(rows)[0][3]]
    append_batches(tmp_path, "second", 1)
    seen += [row[3] for chunk in rows for row in chunk]
    assert [each.split(b"/")[0] for each in seen if each] == [b"first"] * 10


def test_a_missing_directory_is_unavailable_and_not_a_log_without_streams(tmp_path: Path) -> None:
    with pytest.raises(StreamUnavailable, match="does not exist"):
        Log(tmp_path / "unmounted").partitions("s")


def test_a_file_in_place_of_the_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(StreamUnavailable):
        Log(tmp_path / "log").create("s", 1)
    with pytest.raises(StreamUnavailable):
        Log(tmp_path / "log").latest("s")


def test_a_path_where_no_directory_can_be_created_is_unavailable() -> None:
    with pytest.raises(StreamUnavailable, match="cannot create the log stream s"):
        Log(Path("/proc/sluice/log")).create("s", 1)


def test_the_error_about_a_file_that_is_not_a_database_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(StreamUnavailable, match=r"s\.db"):
        Log(tmp_path).latest("s")


def test_a_full_disk_leaves_nothing_of_the_batch(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.create("s", 1)
    append_batches(tmp_path, "first", 1)
    with full(tmp_path / "s.db"), pytest.raises(StreamUnavailable):
        log.append("s", [Record(b"v" * 1000)] * 1000, writer=Writer(Lineage("l"), "o", Generation(1)), batch=0, now_micros=0)
    assert log.latest("s") == {0: 10}
    assert log.last_batch("s", Lineage("l")) is None


@contextmanager
def full(file: Path) -> Iterator[None]:
    """A database that refuses a row of 1,000 bytes like a full disk: a trigger fails at the hundredth."""
    with sqlite3.connect(file) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON records WHEN (SELECT count(*) FROM records) >= 100 "
            "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        )
    yield
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TRIGGER full")


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory that this process may read but not write: root drops its rights for the test."""
    directory = Path(tempfile.mkdtemp(prefix="sluice-log-", dir="/tmp"))
    Log(directory).create("s", 1)
    directory.chmod(0o555)
    (directory / "s.db").chmod(0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield directory
    if root:
        os.seteuid(0)
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def test_an_append_to_a_read_only_directory_is_refused(as_nobody: Path) -> None:
    with pytest.raises(StreamUnavailable):
        Log(as_nobody).append("s", [Record(b"x")], writer=Writer(Lineage("l"), "o", Generation(1)), batch=0, now_micros=0)


def test_a_new_stream_in_a_read_only_directory_is_refused(as_nobody: Path) -> None:
    with pytest.raises(StreamUnavailable, match="cannot create the log stream t"):
        Log(as_nobody).create("t", 1)
    with pytest.raises((UnknownStream, StreamUnavailable)):
        Log(as_nobody).partitions("t")
