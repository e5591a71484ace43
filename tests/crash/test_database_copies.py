"""`sluice db backup` and `sluice db restore`: copies are complete, also while a coordinator writes and after a kill at any step."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.store.claim import lock_file
from coordinator.store.copies import RESTORED, backup, database_file, restore
from coordinator.store.migrate import upgrade
from coordinator.store.sql import open_store
from sluice.core.errors import DatabaseInUse, FileExists, NotASqliteDatabase, UnknownSchema, UnusableCopy
from tests.contracts.rows import run_row
from tests.support.processes import SLUICE, completed

pytestmark = pytest.mark.real_time

KILLED = 77
RESTORE_TO_STEP = """
import os, sys
from pathlib import Path
from coordinator.store.copies import restore_steps
for number, _ in enumerate(restore_steps(Path(sys.argv[1]), Path(sys.argv[2]), force=True)):
    if number == int(sys.argv[3]):
        os._exit(77)
"""


async def made(file: Path, *runs: str) -> Path:
    """A coordinator's database with these runs."""
    store = open_store(f"sqlite+aiosqlite:///{file}")
    await upgrade(store)
    for run in runs:
        async with store.begin() as tx:
            await tx.runs.put(run_row(run))
    await store.close()
    return file


def runs_of(file: Path) -> Sequence[str]:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [row[0] for row in connection.execute("SELECT run_id FROM runs ORDER BY run_id")]


def user_version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        return int(found)


def left_in(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}


async def test_a_copy_made_while_a_coordinator_writes_is_consistent(tmp_path: Path) -> None:
    store = open_store(f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}")
    await upgrade(store)
    copied: list[int] = []

    def copy() -> None:
        for number in range(5):
            copied.append(backup(tmp_path / "coordinator.db", tmp_path / f"copy{number}", force=False).size)

    copying = threading.Thread(target=copy)
    copying.start()
    written = 0
    while copying.is_alive():
        async with store.begin() as tx:  # two rows in one transaction
            await tx.runs.put(run_row(f"a{written:05}"))
            await tx.runs.put(run_row(f"b{written:05}"))
        written += 1
    await store.close()
    assert len(copied) == 5
    for number in range(5):
        found = runs_of(tmp_path / f"copy{number}")
        assert [each[1:] for each in found if each < "b"] == [each[1:] for each in found if each >= "b"]


async def test_a_restored_copy_is_the_database_and_is_marked(tmp_path: Path) -> None:
    database = await made(tmp_path / "coordinator.db", "r1")
    backup(database, tmp_path / "copy", force=False)
    await made(database, "r2")
    with pytest.raises(FileExists, match="--force"):
        restore(tmp_path / "copy", database, force=False)
    assert runs_of(database) == ["r1", "r2"]
    restore(tmp_path / "copy", database, force=True)
    assert (runs_of(database), user_version(database), user_version(tmp_path / "copy")) == (["r1"], RESTORED, 0)
    assert left_in(tmp_path) == {"coordinator.db", "coordinator.db.lock", "copy"}


async def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    database = await made(tmp_path / "coordinator.db", "r1")
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(FileExists):
        backup(database, tmp_path / "notes", force=False)
    assert (tmp_path / "notes").read_text() == "mine"
    backup(database, tmp_path / "notes", force=True)
    assert runs_of(tmp_path / "notes") == ["r1"]


async def test_a_database_that_a_coordinator_uses_is_not_replaced(tmp_path: Path) -> None:
    database = await made(tmp_path / "coordinator.db", "r1")
    backup(database, tmp_path / "copy", force=False)
    held = lock_file(tmp_path / "coordinator.db.lock")
    assert held is not None
    with held, pytest.raises(DatabaseInUse, match="stop it first"):
        restore(tmp_path / "copy", database, force=True)
    restore(tmp_path / "copy", database, force=True)


async def test_a_file_that_is_not_a_complete_copy_of_this_schema_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    database = await made(tmp_path / "coordinator.db", "r1")
    good = backup(database, tmp_path / "good", force=False).file.read_bytes()
    (tmp_path / "text").write_text("not a database" * 1000)
    (tmp_path / "half").write_bytes(good[: len(good) // 2])
    for name, revision in (("newer", "9999"), ("older", "0021")):
        (tmp_path / name).write_bytes(good)
        with closing(sqlite3.connect(tmp_path / name)) as changed:
            changed.execute("UPDATE alembic_version SET version_num = ?", (revision,))
            changed.commit()
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE photos (name TEXT)")
    unknown = {"newer": "use a newer version", "older": "run `sluice db upgrade` of Sluice's commit f0c0f2cc"}
    for name in ("text", "half", "newer", "older", "other", "nothing"):
        with pytest.raises(UnknownSchema if name in unknown else UnusableCopy, match=unknown.get(name)):
            restore(tmp_path / name, database, force=True)
        assert (runs_of(database), user_version(database)) == (["r1"], 0)
    assert not [name for name in left_in(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize("step", range(3))
def test_a_kill_after_any_step_of_a_restore_leaves_the_former_database_or_the_copy(tmp_path: Path, step: int) -> None:
    database = asyncio.run(made(tmp_path / "coordinator.db", "r1"))
    backup(database, tmp_path / "copy", force=False)
    asyncio.run(made(database, "r2"))
    with closing(sqlite3.connect(database)) as writer:  # as a coordinator that was killed leaves it: with a write-ahead log
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("UPDATE runs SET reason = 'in the log'")
        writer.commit()
        for suffix in ("", "-wal"):
            (tmp_path / f"killed{suffix}").write_bytes((tmp_path / f"coordinator.db{suffix}").read_bytes())
    for suffix in ("", "-wal"):
        (tmp_path / f"killed{suffix}").replace(tmp_path / f"coordinator.db{suffix}")
    command = [sys.executable, "-c", RESTORE_TO_STEP, str(tmp_path / "copy"), str(database), str(step)]
    assert subprocess.run(command, check=False, timeout=300).returncode == KILLED
    assert (runs_of(database), user_version(database)) in ((["r1", "r2"], 0), (["r1"], RESTORED))
    restore(tmp_path / "copy", database, force=True)
    assert (runs_of(database), user_version(database)) == (["r1"], RESTORED)


def test_for_postgresql_the_commands_name_its_own_tools() -> None:
    with pytest.raises(NotASqliteDatabase, match="pg_dump"):
        database_file("postgresql+asyncpg://sluice:s3cret@db/sluice")


def test_the_commands_print_what_they_did_in_one_line_and_after_an_error_its_remedy(tmp_path: Path) -> None:
    def sluice(*arguments: str, code: int = 0) -> str:
        done = completed([*SLUICE, "db", *arguments])
        assert (done.returncode, done.stderr.count("Traceback")) == (code, 0), done.stderr
        line, *remedy = (done.stdout or done.stderr).strip().splitlines()
        assert [each.partition(": ")[0] for each in remedy] == (["remedy"] if code else [])
        return line

    home, copy = ("--home", str(tmp_path / "home")), str(tmp_path / "copy")
    assert "there is no database" in sluice("backup", copy, *home, code=1)
    sluice("upgrade", *home)
    assert "integrity checked" in sluice("backup", copy, *home)
    assert "--force" in sluice("backup", copy, *home, code=1)
    assert "--force" in sluice("restore", copy, *home, code=1)
    assert "is restored" in sluice("restore", copy, "--force", *home)
    refused = sluice("backup", copy, "--database-url", "postgresql+asyncpg://sluice:s3cret@db/sluice", code=1)
    assert "pg_dump" in refused
    assert "s3cret" not in refused
