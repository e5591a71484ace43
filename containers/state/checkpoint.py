"""The checkpoint directories of this disk: where they are, whether a directory is the history that the coordinator knows, and new ones.

<root>/<job>/<task>/             the stores of a task
  .drafts/ .given-up/            what `prepare` is just doing; no store is named like them
  .cuts/<stage>/<checkpoint>/    a cut of a store that is being uploaded (`containers/state/freeze.py`)
  .staging/<stage>/              what a restore has brought so far; .replaced/<stage>/ the former store, while it is swapped for that
<root>/<job>/.standby/<slot>/    copies of stores of other tasks (`containers/state/copies.py`)
<root>/<job>/<task>/<stage>/     one store: Spark's checkpoint directory
  metadata                       {"id": lineage}, written by us before Spark first sees the directory
  drain.json                     {"uuid": drain, "batch": last}, written before a drain empties the store, which must not go on then
  offsets/N, commits/N           batch N planned, batch N done
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from containers.errors import CheckpointUnreadable, DiskUnwritable, StateElsewhere
from containers.state.recovery import LocalCheckpoint
from sluice.core.ids import Lineage, directory_name

_BLOCK = 4096
MARK = "drain.json"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint directory holds. -1 for no batch."""

    lineage: Lineage
    planned: int
    committed: int


def inspect(directory: Path) -> CheckpointInfo | None:
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
    return CheckpointInfo(lineage, _newest(directory / "offsets"), _newest(directory / "commits"))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is not an id")
    return value


def _newest(directory: Path) -> int:
    if not directory.is_dir():
        return -1
    return max((int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()), default=-1)


def read_local_checkpoint(directory: Path) -> LocalCheckpoint | None:
    """What `inspect` finds, with the plans of the batches that Spark still keeps. Raises CheckpointUnreadable."""
    found = inspect(directory)
    if found is None:
        return None
    return LocalCheckpoint(found.lineage, found.committed, found.planned, dict(_plans(directory / "offsets")))


def _plans(offsets: Path) -> Iterator[tuple[int, str]]:
    for entry in offsets.iterdir() if offsets.is_dir() else ():
        if entry.name.isdigit():
            yield int(entry.name), entry.read_text()


def read_offset_log(directory: Path, batch: int) -> str:
    """The plan of a batch that Spark has just begun. Raises CheckpointUnreadable."""
    try:
        return (directory / "offsets" / str(batch)).read_text()
    except OSError as error:
        raise CheckpointUnreadable(f"{error.filename}: {error.strerror}, although the batch has begun") from error


def write_offset_log(directory: Path, batch: int, plan: str) -> None:
    """Make this the plan of the batch, which Spark has not committed: the next start of the query runs it. Whole or not at all. A checksum
    file of Hadoop's that stayed from another plan would make this one unreadable."""
    offsets = directory / "offsets"
    offsets.mkdir(exist_ok=True)
    (offsets / f".{batch}.crc").unlink(missing_ok=True)
    _write_whole(offsets / str(batch), plan, offsets / f".{batch}.sluice")


def set_lineage(directory: Path, lineage: Lineage) -> None:
    """Give a store that no query runs on a new lineage. Whole or not at all."""
    (directory / ".metadata.crc").unlink(missing_ok=True)
    _write_whole(directory / "metadata", json.dumps({"id": lineage}), directory / ".metadata.sluice")


def mark_emptied(directory: Path, drain: str, batch: int) -> None:
    """Note that the drain empties the store after this batch (-1 for none), unless that is noted. Whole or not at all."""
    if not (directory / MARK).exists():
        _write_whole(directory / MARK, json.dumps({"uuid": drain, "batch": batch}), directory / f".{MARK}.sluice")


def check_not_emptied(directory: Path, drain: str = "") -> None:
    """Raises StateElsewhere for a store that a drain other than `drain` has emptied or begun to: it would drop what comes as late."""
    try:
        mark = json.loads((directory / MARK).read_bytes())
        emptied_by, batch = _text(mark["uuid"]), int(mark["batch"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointUnreadable(f"{directory / MARK}: {error}: move the directory away to begin afresh") from error
    if emptied_by != drain:
        raise StateElsewhere(
            f"{directory} was emptied after batch {batch} by the drain {emptied_by}, which did not end well, and there is no snapshot to "
            "go back to: whatever it reads now it would drop as late; deploy with an explicit start (earliest, latest or a time) to begin "
            "with empty state"
        )


def _write_whole(file: Path, text: str, draft: Path) -> None:
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
    fsync_directory(file.parent)


def fsync_directory(directory: Path) -> None:
    entry = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The stores of one job under `root`."""

    root: Path
    job: str

    def directory(self, task: str, stage: str) -> Path:
        return self.root / self.job / directory_name(task) / stage

    def copies(self, slot: str) -> Path:
        """What the slot keeps of tasks that other slots run: <task>/<stage>/ under it."""
        return self.root / self.job / ".standby" / directory_name(slot)

    def frozen(self, task: str, stage: str) -> Path:
        return self.root / self.job / directory_name(task) / ".cuts" / stage

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
            relocate(directory)
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
    _write_whole(directory / "metadata", json.dumps({"id": lineage}), draft)


VERSION = "v2"
_SCHEMAS = "/_stateSchema/"


def relocated(text: str, operator: Path) -> str:
    """The metadata of an operator whose directory this is; `text` where nothing in it is elsewhere. Raises ValueError for what is not such
    metadata."""
    version, _, body = text.partition("\n")
    if version != VERSION:
        raise ValueError(f"its version is {version[:20]!r}, not {VERSION}")
    document = json.loads(body)
    moved = [_moved(info, operator) for info in document["stateStoreInfo"]]
    return f"{version}\n{json.dumps(document, separators=(',', ':'))}" if any(moved) else text


def _moved(info: dict[str, Any], operator: Path) -> bool:
    before = info.get("stateSchemaFilePaths", [])
    after = [f"file:{operator}{_SCHEMAS}{path.rpartition(_SCHEMAS)[2]}" if _SCHEMAS in path else path for path in before]
    info |= {"stateSchemaFilePaths": after} if before else {}
    return bool(after != before)


def relocate(directory: Path) -> None:
    """Let the store name its own files. Whole or not at all, and nothing where it does. No query runs on it. Raises CheckpointUnreadable,
    OSError."""
    for file in sorted(directory.glob("state/*/_metadata/v2/*")):
        if file.name.startswith("."):
            continue
        text = file.read_text()
        try:
            moved = relocated(text, file.parents[2])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointUnreadable(f"{file} is not an operator's metadata: {error}") from error
        if moved != text:
            _replace(file, moved)


def _replace(file: Path, text: str) -> None:
    """Hadoop's checksum of the former text, if there is one, would make this one unreadable."""
    draft = file.with_name(f".{file.name}.sluice")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    draft.replace(file)
