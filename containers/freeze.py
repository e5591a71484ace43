"""A consistent cut of a running query's checkpoint directory, as hard links: it costs milliseconds, and the query goes on.

Spark writes a batch's state before its commit, and drops old state later than the commits that need it. So commits are linked before
state: whatever the newest linked commit needs was on disk before it, and is in the cut unless it was dropped in between, which is looked
for; then the cut is made again. Files are linked, never copied, since Spark renames whole files into place and changes none.
"""

from __future__ import annotations

import logging
import os
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EXDEV
from pathlib import Path

from containers.localstate import inspect
from coordinator.core.cuts import Needed, Unreadable, Version, find, lineage_by_number, lineage_of, needed, shared_files, to_load
from sluice.core.errors import BadSettings, CheckpointUnreadable, DiskUnwritable, OurTrouble
from sluice.core.ids import Lineage

log = logging.getLogger(__name__)

ATTEMPTS = 20
ORDER = ("metadata", "commits", "offsets", "sources", "state")
_MAY_GO = ("commits", "offsets", "state")
"""Spark drops what is old there while it runs; whether what is left suffices is looked at afterwards."""

_TEMPORARY = (".crc", ".tmp", ".sluice")
"""Hidden files that end so are Hadoop's checksums, which are only valid beside the very file, and drafts. `X.changelog.crc` and `X.zip.crc`
are not hidden: they are Spark's checksums of its state, and stay."""

_HEAD = 1 << 20


class CutFailed(OurTrouble):
    """No consistent cut of a checkpoint directory could be made."""

    slug = "cut-failed"


class _Gone(Exception):
    """Something that the cut needs was dropped while it was made."""


@dataclass(frozen=True, slots=True)
class Cut:
    """`batch` is the last committed one in it, None before the first."""

    directory: Path
    lineage: Lineage
    batch: int | None


def freeze(store: Path, into: Path) -> Cut:
    """Cut `store`, which a query may be running on, into the new directory `into` on the same file system. Blocks. Raises CutFailed,
    CheckpointUnreadable, DiskUnwritable, BadSettings; nothing of `store` is changed, and `into` is gone then."""
    why = ""
    for attempt in range(ATTEMPTS):
        try:
            into.mkdir()
            return _cut(store, into)
        except (_Gone, FileNotFoundError) as error:
            why = str(error)
            log.debug("the cut %d of %s is made again: %s", attempt + 1, store, why)
            shutil.rmtree(into, ignore_errors=True)
        except FileExistsError:
            raise
        except OSError as error:
            shutil.rmtree(into, ignore_errors=True)
            if error.errno == EXDEV:
                raise BadSettings(f"{into} is on another file system than {store}: cuts are made of hard links") from error
            raise DiskUnwritable(f"{error.filename or into}: {error.strerror}: mend it; the state is not backed up until then") from error
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise
    raise CutFailed(f"{store} changed while it was cut, {ATTEMPTS} times: {why}")


def _cut(store: Path, into: Path) -> Cut:
    found = _order(store)
    for name in found:
        _link(store / name, into / name, may_go=name in _MAY_GO)
    cut = inspect(into)
    if cut is None:
        raise CheckpointUnreadable(f"{store} is no checkpoint directory: it has no metadata")
    if cut.committed < 0:
        _drop_plans(into, -1)
        return Cut(into, cut.lineage, None)
    _drop_plans(into, cut.committed)
    _check(into, cut.committed)
    return Cut(into, cut.lineage, cut.committed)


def _order(store: Path) -> list[str]:
    try:
        names = {entry.name for entry in store.iterdir()}
    except FileNotFoundError:
        raise CheckpointUnreadable(f"there is no checkpoint directory {store}") from None
    return [*(name for name in ORDER if name in names), *sorted(name for name in names - set(ORDER) if not _left_out(name))]


def _left_out(name: str) -> bool:
    return name.startswith(".") and name.endswith(_TEMPORARY)


def _link(path: Path, to: Path, *, may_go: bool) -> None:
    """A file, or a directory with all in it, files before sub-directories: a .zip before the files that it shares."""
    if path.is_dir() and not path.is_symlink():
        to.mkdir(exist_ok=True)
        with os.scandir(path) as entries:
            found = sorted((entry for entry in entries if not _left_out(entry.name)), key=lambda entry: entry.is_dir(follow_symlinks=False))
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                _link(path / entry.name, to / entry.name, may_go=may_go)
            else:
                _link_file(entry.path, f"{to}/{entry.name}", may_go=may_go)
    else:
        _link_file(str(path), str(to), may_go=may_go)


def _link_file(path: str, to: str, *, may_go: bool) -> None:
    try:
        os.link(path, to, follow_symlinks=False)
    except FileNotFoundError:
        if not may_go:
            raise _Gone(f"{path} is gone") from None


def _drop_plans(into: Path, batch: int) -> None:
    """Of batches that are not committed: they would run again, and read what they read then."""
    offsets = into / "offsets"
    for entry in list(offsets.iterdir()) if offsets.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) > batch:
            entry.unlink()


# --- is it whole? ----------------------------------------------------------------------------------------------------


def _check(cut: Path, batch: int) -> None:
    """Raises _Gone, CheckpointUnreadable."""
    for each in (batch, batch - 1):  # Spark compares the last plan with the one before it
        if not (cut / "offsets" / str(each)).exists() and (cut / "commits" / str(each)).exists():
            raise _Gone(f"offsets/{each} is gone")
    try:
        needs = needed(batch, (cut / "commits" / str(batch)).read_text())
    except ValueError as error:
        raise CheckpointUnreadable(f"{cut}: {error}") from error
    names = _state_files(cut) if needs else {}
    for need in needs:
        _check_loads(cut, names, need)


def _state_files(cut: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for directory, _, files in os.walk(cut / "state"):
        found[os.path.relpath(directory, cut)] = set(files)
    return found


def _check_loads(cut: Path, names: dict[str, set[str]], need: Needed) -> None:
    directory = find(names, need)
    if directory is None:
        raise _Gone(f"version {need.version.number} ({need.version.id}) of {need.directory} is gone")
    files = names[directory]
    lineage = [] if need.version.zip in files else _lineage(cut / directory, need.version, files)
    base, changelogs = to_load(need.version, lineage, files)
    if base is None and changelogs[0].number != 1:
        raise _Gone(f"nothing that version {changelogs[0].number} of {directory} builds upon is there")
    for each in changelogs:
        if each.changelog not in files:
            raise _Gone(f"{directory}/{each.changelog} is gone")
    shared = names.get(f"{directory}/SSTs", set())
    for name in _shared(cut / directory / base.zip) if base is not None else ():
        if name not in shared:
            raise _Gone(f"{directory}/SSTs/{name} is gone")


def _lineage(directory: Path, version: Version, files: set[str]) -> list[Version]:
    with (directory / version.changelog).open("rb") as changelog:
        head = changelog.read(_HEAD)
    try:
        return list(lineage_of(head))
    except Unreadable as error:
        log.debug("%s: %s", directory / version.changelog, error)
        return list(lineage_by_number(version, files))


def _shared(path: Path) -> Iterator[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield from shared_files(archive.read("metadata").decode())
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CheckpointUnreadable(f"{path} is not a state store's file: {error}") from error
