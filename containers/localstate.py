"""The checkpoint directories of this disk: where they are, whether a directory is the history that the coordinator knows, and new ones.

<root>/<job>/<task>/             the stores of a task
  .drafts/ .given-up/            what `prepare` is just doing; no store is named like them
<root>/<job>/<task>/<stage>/     one store: Spark's checkpoint directory
  metadata                       {"id": lineage}, written by us before Spark first sees the directory
  offsets/N, commits/N           batch N planned, batch N done
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from coordinator.core.errors import CheckpointUnreadable, DiskUnwritable, StateElsewhere
from coordinator.core.ids import Lineage, directory_name

_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """What a checkpoint directory holds. -1 for no batch."""

    lineage: Lineage
    planned: int
    committed: int


def inspect(directory: Path) -> Found | None:
    """Read a checkpoint directory; None if there is none. Raises CheckpointUnreadable."""
    file = directory / "metadata"
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        if directory.is_dir() and any(directory.iterdir()):
            raise CheckpointUnreadable(f"{directory} holds files but no metadata: move it away, or bring its metadata back") from None
        return None
    except OSError as error:
        raise CheckpointUnreadable(f"{file}: {error.strerror}") from error
    try:
        lineage = Lineage(_text(json.loads(text)["id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointUnreadable(
            f"{file} is not a checkpoint's metadata ({text[:60]!r}): move the directory away to begin afresh"
        ) from error
    return Found(lineage, _newest(directory / "offsets"), _newest(directory / "commits"))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is not an id")
    return value


def _newest(directory: Path) -> int:
    if not directory.is_dir():
        return -1
    return max((int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()), default=-1)


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one job under `root`."""

    root: Path
    job: str

    def directory(self, task: str, stage: str) -> Path:
        return self.root / self.job / directory_name(task) / stage

    def prepare(self, task: str, stage: str, lineage: Lineage, reported: int | None) -> Path:
        """Make this disk's store ready for a query of `lineage`, whose last reported batch is `reported`; its directory.

        A directory of that lineage that is at least as new goes on; one of another lineage is a history that was given up, and makes room.
        Raises StateElsewhere when batches were reported that this disk does not have: starting would silently lose their state. Raises
        DiskUnwritable.
        """
        try:
            return self._prepare(task, stage, lineage, reported)
        except OSError as error:
            raise _unwritable(self.root, error) from error

    def _prepare(self, task: str, stage: str, lineage: Lineage, reported: int | None) -> Path:
        directory = self.directory(task, stage)
        found = inspect(directory)
        if found is not None and found.lineage == lineage:
            if reported is not None and found.committed < reported:
                raise StateElsewhere(_elsewhere(task, stage, directory, f"ends at batch {found.committed}", reported))
            return directory
        if reported is not None:
            has = "is not there" if found is None else f"is of another lineage ({found.lineage})"
            raise StateElsewhere(_elsewhere(task, stage, directory, has, reported))
        if found is not None:
            _set_aside(directory)
        _begin(directory, lineage)
        shutil.rmtree(_given_up(directory), ignore_errors=True)
        return directory


def check_writable(directory: Path) -> None:
    """Make the directory, if it is not there, and write something into it. Raises DiskUnwritable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory) as probe:
            probe.write(bytes(_BLOCK))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError) -> DiskUnwritable:
    where = f" ({error.filename})" if error.filename and str(error.filename) != str(directory) else ""
    return DiskUnwritable(
        f"{directory}{where}: {error.strerror}: mend it, or choose another with SLUICE_STATE_DIR or SLUICE_HOME, and start again"
    )


def _elsewhere(task: str, stage: str, directory: Path, has: str, reported: int) -> str:
    return (
        f"the state of stage {stage} of task {task} has reached batch {reported}, but {directory} {has}: start this container on the disk "
        "that has it, or deploy with an explicit start (earliest, latest or a time) to begin a new history with empty state"
    )


def _given_up(directory: Path) -> Path:
    return directory.parent / ".given-up" / directory.name


def _set_aside(directory: Path) -> None:
    """Rename; it is deleted when the new store is there. A crash in between leaves it for the next time a store begins here."""
    old = _given_up(directory)
    old.parent.mkdir(exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)
    directory.rename(old)


def _begin(directory: Path, lineage: Lineage) -> None:
    """Write `metadata` whole or not at all, before anything else is in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory.parent / ".drafts" / directory.name
    draft.parent.mkdir(exist_ok=True)
    with draft.open("w") as file:
        json.dump({"id": lineage}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / "metadata")
    entry = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)
