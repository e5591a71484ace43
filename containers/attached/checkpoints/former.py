"""The former directories of a script's checkpoint: what is deleted of them when the query continues in another one.

Each drain moves a checkpoint to another directory (`containers.attached.checkpoints.directories`). A query returns to a former one only if
the coordinator's database goes back to a time before the drain. So of a checkpoint that a drain has flushed only the state is deleted: the
record of the drain and its lock remain, without which the query would silently begin with empty state.

A checkpoint without state needs no flush and has no lock. A few kilobytes of its log remain, at which the query could continue.

State that no drain has flushed is of a version that was rolled back, or the script has moved to another machine before the drain. Such a
checkpoint is deleted when there is a newer former one, if the run is backed up: then the query would begin with its newest snapshot.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from containers.state.checkpoint import DRAIN_MARKER, commit_log, offset_log_files
from sluice.core.ids import StageName

log = logging.getLogger("sluice")

_FOLDER = re.compile(r"drain-(0|[1-9][0-9]*)(-[0-9a-f]{8})?")
ADOPTED = ".adopted"
"""The directory beside the checkpoints in which another one is copied (`containers.attached.checkpoints.adoption`)."""

_BESIDE = (".cuts", ".staging", ".replaced", ".given-up", ".drafts", ".checked", ADOPTED)
_LAST = 3
"""How many entries remain of the offset log and of the commit log: the lock is the last of the offset log, and Spark reads two others."""


@dataclass(frozen=True, slots=True)
class Former:
    """A checkpoint in a former directory: whether a drain has flushed it there, and whether it has state."""

    flushed: bool
    has_state: bool


@dataclass(frozen=True, slots=True)
class Deletion:
    """The folders of which everything of a checkpoint is deleted, and those of which its state is."""

    whole: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()


def plan_deletion(present: str, found: Mapping[str, Former], *, backed_up: bool) -> Deletion:
    """What to delete of a checkpoint that continues in the folder `present`. `found`: what folders have of it."""
    now = _number(present)
    former = {folder: _number(folder) for folder in found if folder != present and 0 <= _number(folder) <= now}
    newest = max((number for number in former.values() if number < now), default=now)
    locked = frozenset(folder for folder in former if found[folder].flushed)
    stateless = frozenset(folder for folder in former if not found[folder].has_state)
    old = frozenset(folder for folder, number in former.items() if number < newest)
    return Deletion(old - locked - stateless if backed_up else frozenset(), locked | (stateless & old))


def _number(folder: str) -> int:
    """The number of the drain; -1 for a directory that is not Sluice's."""
    found = _FOLDER.fullmatch(folder)
    return -1 if found is None else int(found[1])


def delete_former(job: Path, present: str, stage: StageName, *, backed_up: bool) -> None:
    """Delete what is not needed of the former directories of a checkpoint. `job`: the directory of the job; `backed_up`: the run has a blob
    store. Call it when the checkpoint is ready in the folder `present`. May be interrupted anywhere and repeated. An error is logged.
    Blocks."""
    try:
        folders = {each.name: each for each in job.iterdir() if _number(each.name) >= 0 and each.is_dir() and not each.is_symlink()}
        found = {
            name: Former((folder / stage / DRAIN_MARKER).exists(), (folder / stage / "state").exists())
            for name, folder in folders.items()
            if any(_parts(folder, stage)) and not (folder / stage).is_symlink()
        }
        plan = plan_deletion(present, found, backed_up=backed_up)
        for name in sorted(plan.state):
            _delete_state(folders[name], stage)
        for name in sorted(plan.whole):
            log.info("checkpoint %s continues in %s: %s is deleted", stage, present, folders[name] / stage)
            for each in _parts(folders[name], stage):
                _delete(each)
    except OSError as error:  # the query can start, and the next start tries it again
        log.warning("not all former directories of checkpoint %s were deleted: %s: %s", stage, error.filename, error.strerror)


def _parts(folder: Path, stage: StageName) -> Iterator[Path]:
    """What the folder has of the checkpoint; the checkpoint itself is the last. Links are not Sluice's."""
    return (each for each in (*(folder / beside / stage for beside in _BESIDE), folder / stage) if each.exists() and not each.is_symlink())


def _delete_state(folder: Path, stage: StageName) -> None:
    state = folder / stage / "state"
    if state.is_dir() and not state.is_symlink():
        log.info("checkpoint %s was flushed by a drain and continues in another directory: %s is deleted", stage, state)
        shutil.rmtree(state)
    for each in _parts(folder, stage):
        if each != folder / stage:
            _delete(each)
    for entries in (offset_log_files(folder / stage), commit_log(folder / stage)):
        for entry in entries[:-_LAST]:
            entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
            entry.unlink()


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
