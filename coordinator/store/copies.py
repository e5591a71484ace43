"""Copies of an SQLite database. `sluice db backup` makes one, even while a coordinator runs. `sluice db restore` replaces a database with
one.

A copy is one file in the journal mode DELETE, so it can be moved without other files. It is written under a temporary name, checked, made
durable and renamed. After a crash the target is unchanged or complete, and a temporary file may remain.

A restored database does not know all numbers that its coordinators have issued. `restore` therefore marks it in the file's header
(`PRAGMA user_version`), which no migration changes, and the next coordinator reads the mark; see `coordinator.fleet.issued`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from coordinator.store.claim import lock_file
from coordinator.store.migrate import check_revision
from sluice.blobs import durable_fs
from sluice.core.errors import BadOption, DatabaseInUse, FileExists, NotASqliteDatabase, StoreUnavailable, UnusableCopy
from sluice.randomness import token_hex

RESTORED = 1
"""`PRAGMA user_version` of a database that was restored from a copy, until a coordinator has read the mark."""

_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """A copy of a database. `size`: in bytes. `revision`: the Alembic revision of the schema."""

    file: Path
    size: int
    revision: str


def database_file(url: str) -> Path:
    """The file of an SQLAlchemy URL. Raises NotASqliteDatabase."""
    parsed = make_url(url)
    name = parsed.database or ":memory:"
    if parsed.get_backend_name() != "sqlite":
        raise NotASqliteDatabase(
            f"{parsed.render_as_string(hide_password=True)} is not an SQLite database: copy it with `pg_dump --format=custom`, and "
            "restore it with `pg_restore --clean --if-exists --single-transaction` while no coordinator runs: see Lost databases in "
            "docs/operating.md"
        )
    if name.startswith((":memory:", "file:")):
        raise NotASqliteDatabase(f"{name} is not a database file: give its path")
    return Path(name).resolve()


def backup(database: Path, target: Path, *, force: bool) -> DatabaseCopy:
    """Copy a consistent state of the database. A coordinator may be running. `force`: replace the target if it exists.

    Raises BadOption if there is no database, or no directory of the target; FileExists; UnusableCopy for a database that is damaged;
    UnknownSchema and StoreUnavailable."""
    if not database.is_file():
        raise BadOption(f"there is no database {database}: give the coordinator's --home or --database-url")
    if not target.parent.is_dir():
        raise BadOption(f"there is no directory {target.parent}: create it, or give another file")
    with _errors_of(target):
        _check_free(target, force=force)
        draft = _draft(target)
        try:
            copied = _copy(database, draft, mark=None)
            _place(draft, target, force=force)
        finally:
            draft.unlink(missing_ok=True)
    return DatabaseCopy(target, target.stat().st_size, copied)


def restore(file: Path, database: Path, *, force: bool) -> DatabaseCopy:
    """Replace the database with a copy that has the mark RESTORED. No coordinator may be running. `force`: replace an existing database.

    Raises FileExists, UnusableCopy, UnknownSchema, DatabaseInUse and StoreUnavailable."""
    revision = ""
    for step in restore_steps(file, database, force=force):
        revision = step or revision
    return DatabaseCopy(database, database.stat().st_size, revision)


def restore_steps(file: Path, database: Path, *, force: bool) -> Iterator[str]:
    """The steps of `restore`. The process may end after each one; the database is then unchanged or restored. Yields the schema's revision
    after the step that reads it, otherwise ""."""
    if not file.is_file():
        raise UnusableCopy(f"there is no file {file}")
    with _errors_of(database):
        database.parent.mkdir(parents=True, exist_ok=True)
        _check_free(database, force=force)
        locked = lock_file(database.with_name(f"{database.name}.lock"))
        if locked is None:
            raise DatabaseInUse(f"{database} is used by a coordinator: stop it first")
        draft = _draft(database)
        with locked:
            try:
                yield _copy(file, draft, mark=RESTORED)
                if database.exists():
                    _without_wal(database)
                    yield ""
                _place(draft, database, force=force)
                yield ""
            finally:
                draft.unlink(missing_ok=True)


def _check_free(target: Path, *, force: bool) -> None:
    if target.exists() and not force:
        raise FileExists(f"{target} exists: use --force to replace it")


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.{token_hex(8)}.tmp")


def _copy(source: Path, draft: Path, *, mark: int | None) -> str:
    """Copy with SQLite's online backup, check the copy and make it durable. Returns its revision."""
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    opened = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=_WAIT_SECONDS)
    with closing(opened) as original, closing(sqlite3.connect(draft)) as copy:
        try:
            original.backup(copy)  # in one step, because in WAL mode a reader does not block writers
            copy.execute("PRAGMA journal_mode=DELETE")
            revision = _checked(copy, source)
        except sqlite3.DatabaseError as error:
            raise UnusableCopy(f"{source} is not a coordinator's database, or is damaged: {error}") from error
        if mark is not None:
            copy.execute(f"PRAGMA user_version={mark}")
            copy.commit()
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    return revision


def _checked(copy: sqlite3.Connection, source: Path) -> str:
    """Raises UnusableCopy, UnknownSchema and sqlite3.DatabaseError."""
    found = [row[0] for row in copy.execute("PRAGMA integrity_check(3)")]
    if found != ["ok"]:
        raise UnusableCopy(f"{source} is damaged: {'; '.join(found)}")
    revisions = [str(row[0]) for row in copy.execute("SELECT version_num FROM alembic_version")]
    if len(revisions) != 1:
        raise UnusableCopy(f"{source} does not have a schema of Sluice")
    check_revision(revisions[0], source)
    return revisions[0]


def _without_wal(database: Path) -> None:
    """Move the contents of the write-ahead log into the database file, and delete the log. Otherwise SQLite would apply it to the restored
    file. If the database is damaged, the log is lost."""
    try:
        with closing(sqlite3.connect(database, timeout=_WAIT_SECONDS)) as former:
            former.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"{database} is used by another process: {error}") from error
    except sqlite3.DatabaseError:
        pass
    for suffix in ("-wal", "-shm"):
        database.with_name(f"{database.name}{suffix}").unlink(missing_ok=True)
    durable_fs.sync(database.parent)


def _place(draft: Path, target: Path, *, force: bool) -> None:
    """Move the copy to the target. Without `force` the target is not replaced, even if another process has just created it."""
    if force:
        draft.replace(target)
    else:
        try:
            target.hardlink_to(draft)
        except FileExistsError as error:
            raise FileExists(f"{target} exists: use --force to replace it") from error
    durable_fs.sync(target.parent)


@contextmanager
def _errors_of(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"cannot write {target}: {error}") from error
