"""Spark's checkpoint directories on this disk: their paths, their contents, and the creation of new ones.

<root>/<job>/<task>/             one task
  .drafts/ .given-up/            temporary directories of `Checkpoints.prepare`; names of stages do not begin with "."
  .cuts/<stage>/<commit>/        a frozen copy of a checkpoint, while it is uploaded (`containers.state.commits.freeze`)
  .staging/<stage>/              what a restore has written so far
  .replaced/<stage>/             the former checkpoint, while a restored one takes its place
  .checked/<stage>               the boot in which the state was checked (`containers.state.recovery.power_loss`)
<root>/<job>/.standby/<slot>/    standby copies of other slots' tasks (`containers.state.copies`)
<root>/<job>/<task>/<stage>/     the checkpoint directory of one stage
  metadata                       {"id": lineage}, written before Spark first opens the directory; Spark calls it the query id
  drain.json                     {"uuid": drain, "batch": last}, written before a drain flushes the state: no query may start on it then
  offsets/N, commits/N           batch N is planned, batch N is committed
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from containers.errors import CheckpointUnreadable, DiskUnwritable, StateNotLocal, disk_error
from containers.state.offsets.offsetlog import parse
from containers.state.recovery.decision import LocalCheckpoint
from sluice.blobs.durable_fs import sync
from sluice.core.ids import Lineage, directory_name

_BLOCK = 4096
DRAIN_MARKER = "drain.json"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The lineage of a checkpoint, and its newest batches; -1 for none."""

    lineage: Lineage
    planned: int
    committed: int


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The last batch that a stage has committed on any disk, -1 for none, and the later batches that were planned -> when each was
    planned."""

    committed: int = -1
    unfinished: Mapping[int, datetime] = field(default_factory=dict)


def inspect(directory: Path) -> CheckpointInfo | None:
    """Read a checkpoint directory; None if there is none. Raises CheckpointUnreadable."""
    file = metadata_file(directory)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        if directory.is_dir() and any(directory.iterdir()):
            raise CheckpointUnreadable(f"{directory} has files but no metadata: move it away, or put its metadata back") from None
        return None
    except OSError as error:
        raise CheckpointUnreadable(f"{file}: {error.strerror}") from error
    try:
        lineage = Lineage(_text(json.loads(text)["id"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointUnreadable(
            f"{file} is not the metadata of a checkpoint ({text[:60]!r}): move the directory away to start with empty state"
        ) from error
    return CheckpointInfo(lineage, _newest(directory / "offsets"), _newest(directory / "commits"))


def metadata_file(directory: Path) -> Path:
    return directory / "metadata"


def offset_log_files(directory: Path) -> list[Path]:
    """The entries of the offset log, by batch."""
    return _numbered(directory / "offsets")


def commit_log(directory: Path) -> list[Path]:
    """The entries of the commit log, by batch."""
    return _numbered(directory / "commits")


def _numbered(directory: Path) -> list[Path]:
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted((entry for entry in found if entry.name.isdigit()), key=lambda entry: int(entry.name))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is not an id")
    return value


def _newest(directory: Path) -> int:
    return max((int(entry.name) for entry in _numbered(directory)), default=-1)


def read_local_checkpoint(directory: Path) -> LocalCheckpoint | None:
    """The result of `inspect`, with the offset-log entries that are still in the directory. Raises CheckpointUnreadable."""
    found = inspect(directory)
    if found is None:
        return None
    entries = {int(entry.name): entry.read_text() for entry in offset_log_files(directory)}
    return LocalCheckpoint(found.lineage, found.committed, found.planned, entries)


def read_offset_log(directory: Path, batch: int) -> str:
    """The offset-log entry of a batch that Spark has planned. Raises CheckpointUnreadable."""
    try:
        return (directory / "offsets" / str(batch)).read_text()
    except OSError as error:
        raise CheckpointUnreadable(f"{error.filename}: {error.strerror}; the batch is planned, so the file should be there") from error


def planned_batches(directory: Path, lineage: Lineage, replay: Mapping[int, str], reported: int | None) -> PlannedBatches:
    """The batches of the lineage that were planned, in the checkpoint or in the offset-log entries of `replay`. `reported`: the last one
    that was reported to the coordinator as committed. Spark plans a batch when the one before is committed, so only the last one may be
    unfinished. Raises CheckpointUnreadable."""
    found = inspect(directory)
    committed, planned = (found.committed, found.planned) if found is not None and found.lineage == lineage else (-1, -1)
    last = max([planned, *replay])
    committed = max(committed, last - 1, -1 if reported is None else reported)
    if last <= committed:
        return PlannedBatches(committed)
    entry = replay[last] if last > planned else read_offset_log(directory, last)
    return PlannedBatches(committed, {last: parse(entry, str(directory / "offsets" / str(last))).timestamp})


def next_watermark(directory: Path, batch: int) -> int:
    """The watermark that Spark computed after a committed batch, in milliseconds since 1970; 0 for none. Raises CheckpointUnreadable."""
    file = directory / "commits" / str(batch)
    try:
        return int(json.loads(file.read_text().splitlines()[1])["nextBatchWatermarkMs"])
    except OSError as error:
        raise CheckpointUnreadable(f"{error.filename}: {error.strerror}; the batch is committed, so the file should be there") from error
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise CheckpointUnreadable(f"{file} is not a commit-log entry: {type(error).__name__}: {error}") from error


def write_offset_log(directory: Path, batch: int, entry: str) -> None:
    """Write the offset-log entry of a batch that is not committed: the next query on the checkpoint runs the batch with it. Atomic."""
    offsets = directory / "offsets"
    offsets.mkdir(exist_ok=True)
    _write_whole(offsets / str(batch), entry)


def set_lineage(directory: Path, lineage: Lineage) -> None:
    """Give a checkpoint on which no query runs a new lineage. Atomic. Raises DiskFull, DiskUnwritable."""
    try:
        _write_whole(directory / "metadata", json.dumps({"id": lineage}))
    except OSError as error:
        raise _unwritable(directory, error) from error


def mark_emptied(directory: Path, drain: str, batch: int) -> None:
    """Record that the drain flushes the state after this batch (-1 for none), unless this is recorded already. Atomic."""
    if not (directory / DRAIN_MARKER).exists():
        _write_whole(directory / DRAIN_MARKER, json.dumps({"uuid": drain, "batch": batch}))


def check_not_emptied(directory: Path, drain: str = "") -> None:
    """Raises StateNotLocal if a drain other than `drain` has flushed the state, or begun to: a query would drop its input as late."""
    try:
        mark = json.loads((directory / DRAIN_MARKER).read_bytes())
        emptied_by, batch = _text(mark["uuid"]), int(mark["batch"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointUnreadable(f"{directory / DRAIN_MARKER}: {error}: move the directory away to start with empty state") from error
    if emptied_by != drain:
        raise StateNotLocal(
            f"{directory} was flushed after batch {batch} by the drain {emptied_by}, which failed, and there is no earlier snapshot: a "
            "query would drop its input as late; deploy with an explicit start (earliest, latest or a time) to start with empty state"
        )


def _write_whole(file: Path, text: str, draft: Path | None = None) -> None:
    """Write the text of a file, by default through a draft beside it. Atomic. Hadoop's checksum of a former text is removed, because it
    would make the new text unreadable."""
    draft = draft or file.with_name(f".{file.name}.sluice")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    draft.replace(file)
    sync(file.parent)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoint directories of one job under `root`."""

    root: Path
    job: str

    def directory(self, task: str, stage: str) -> Path:
        return self.root / self.job / directory_name(task) / stage

    def copies(self, slot: str) -> Path:
        """The slot's standby copies: <task>/<stage>/ in it."""
        return self.root / self.job / ".standby" / directory_name(slot)

    def frozen(self, task: str, stage: str) -> Path:
        return self.root / self.job / directory_name(task) / ".cuts" / stage

    def prepare(self, task: str, stage: str, lineage: Lineage, reported: int | None) -> Path:
        """Prepare the directory for a query of `lineage`, whose last reported batch is `reported`. Returns the directory. A checkpoint of
        that lineage that contains the reported batch is not changed. A checkpoint of another lineage is replaced by a new one. Raises
        StateNotLocal if a reported batch is not on this disk, because its state would be lost without an error; DiskUnwritable;
        CheckpointUnreadable.
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
                raise StateNotLocal(_not_local(task, stage, directory, f"ends at batch {found.committed}", reported))
            delete_given_up(directory)  # a kill may have interrupted that
            relocate(directory)
            return directory
        if reported is not None:
            has = "does not exist" if found is None else f"is of another lineage ({found.lineage})"
            raise StateNotLocal(_not_local(task, stage, directory, has, reported))
        if found is not None:
            set_aside(directory)
        _begin(directory, lineage)
        delete_given_up(directory)
        return directory


def check_writable(directory: Path) -> None:
    """Create the directory if it does not exist, and test that it can be written. Raises DiskUnwritable."""
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
    return disk_error(
        error,
        f"{directory}{where}: {error.strerror}: correct this, or set SLUICE_STATE_DIR or SLUICE_HOME to another directory, and start again",
    )


def _not_local(task: str, stage: str, directory: Path, has: str, reported: int) -> str:
    return (
        f"the state of stage {stage} of task {task} is at batch {reported}, but {directory} {has}: start this container on the disk that "
        "has it, or deploy with an explicit start (earliest, latest or a time) to start with empty state"
    )


def _given_up(directory: Path) -> Path:
    return directory.parent / ".given-up" / directory.name


def set_aside(directory: Path) -> None:
    """Rename the directory. It is deleted when the new checkpoint exists; after a crash in between, by the next `prepare`."""
    old = _given_up(directory)
    old.parent.mkdir(exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)
    directory.rename(old)


def delete_given_up(directory: Path) -> None:
    """Delete the directory that `set_aside` has renamed, if it exists. Call it when the new checkpoint exists."""
    shutil.rmtree(_given_up(directory), ignore_errors=True)


def _begin(directory: Path, lineage: Lineage) -> None:
    """Write `metadata` atomically, before anything else is in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory.parent / ".drafts" / directory.name
    draft.parent.mkdir(exist_ok=True)
    _write_whole(directory / "metadata", json.dumps({"id": lineage}), draft)


VERSION = "v2"
_SCHEMAS = "/_stateSchema/"


def relocated(text: str, operator: Path) -> str:
    """The metadata of the stateful operator in the directory `operator`, with the paths of its files corrected; `text` if they are correct.
    Raises ValueError."""
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
    """Correct the absolute paths that Spark has written into the checkpoint, after it was moved or restored. Each file is changed
    atomically. No query may run on the checkpoint. Raises CheckpointUnreadable, OSError."""
    for file in sorted(directory.glob("state/*/_metadata/v2/*")):
        if file.name.startswith("."):
            continue
        text = file.read_text()
        try:
            moved = relocated(text, file.parents[2])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointUnreadable(f"{file} is not the metadata of an operator: {error}") from error
        if moved != text:
            _write_whole(file, moved)
