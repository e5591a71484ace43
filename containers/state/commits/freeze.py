"""Freezing a checkpoint: a consistent copy of the directory of a running query, made of hard links. It takes milliseconds, and the query
continues. Where there are no hard links, files are copied.

Spark writes the state of a batch before its commit file, and deletes old state after the commits that need it. So commits are linked before
state: the files that the newest linked commit needs were on disk before it, and are in the copy unless they were deleted in between. In
that case, which is detected, the copy is made again. Files are linked and not copied, since Spark renames whole files into place and
changes none.

Of state whose versions have only numbers, the copy has nothing but what its last batch needs (`containers.state.commits.numbered_state`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EXDEV
from pathlib import Path
from typing import NamedTuple

from containers.errors import CheckpointUnreadable, disk_error
from containers.state.checkpoint import inspect, offset_log_files
from containers.state.commits.numbered_state import files_to_load, numbered_file
from containers.state.files import link_or_copy
from sluice.core.errors import BadSettings, Unavailable
from sluice.core.ids import Lineage

log = logging.getLogger(__name__)

ATTEMPTS = 20
ORDER = ("metadata", "commits", "offsets", "sources")
STATE = "state"
SSTS = "SSTs"
OF_A_PARTITION = 2
"""How far below the directory of the state those of partitions are: state/<operator>/<partition>."""
_MAY_VANISH = ("commits", "offsets")
"""Directories in which Spark deletes old files while it runs. The copy is checked for completeness afterwards."""

_TEMPORARY = (".crc", ".tmp", ".sluice")
"""Suffixes of hidden files that are left out: Hadoop's checksums, which are valid only beside the same file, and temporary files.
`X.changelog.crc` and `X.zip.crc` are not hidden: they are Spark's checksums of its state, and are kept."""

_HEAD = 1 << 20


class FreezeFailed(Unavailable):
    """No consistent copy of a checkpoint directory could be made."""

    slug = "cut-failed"


class _FileVanished(Exception):
    """A file that the copy needs was deleted while it was made."""


@dataclass(frozen=True, slots=True)
class FrozenCheckpoint:
    """A frozen copy of a checkpoint. `batch` is its last committed batch, None before the first."""

    directory: Path
    lineage: Lineage
    batch: int | None


def freeze(checkpoint: Path, into: Path) -> FrozenCheckpoint:
    """Copy the checkpoint, on which a query may be running, into the new directory `into` on the same file system. Blocks. Raises
    FreezeFailed, CheckpointUnreadable, DiskUnwritable, BadSettings, after removing `into`. The checkpoint is never changed."""
    why = ""
    for attempt in range(ATTEMPTS):
        try:
            into.mkdir(parents=True)
            return _freeze_once(checkpoint, into)
        except (_FileVanished, FileNotFoundError) as error:
            why = str(error)
            log.debug("freezing %s is tried again after attempt %d: %s", checkpoint, attempt + 1, why)
            shutil.rmtree(into, ignore_errors=True)
        except FileExistsError:
            raise
        except OSError as error:
            shutil.rmtree(into, ignore_errors=True)
            if error.errno == EXDEV:
                raise BadSettings(f"{into} is on another file system than {checkpoint}: frozen copies are made of hard links") from error
            raise disk_error(
                error, f"{error.filename or into}: {error.strerror}: correct this; the state is not backed up until then"
            ) from error
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise
    raise FreezeFailed(f"{checkpoint} changed while it was frozen, {ATTEMPTS} times: {why}")


def _freeze_once(checkpoint: Path, into: Path) -> FrozenCheckpoint:
    names = _names(checkpoint)
    for name in (name for name in ORDER if name in names):
        _link(checkpoint / name, into / name, may_vanish=name in _MAY_VANISH)
    frozen = inspect(into)
    if frozen is None:
        raise CheckpointUnreadable(f"{checkpoint} is not a checkpoint directory: it has no metadata")
    for entry in offset_log_files(into):
        if int(entry.name) > frozen.committed:  # after a restore, the durable entries are used instead
            entry.unlink()
    needs = _needed(into, frozen.committed) if frozen.committed >= 0 else ()
    if STATE in names and frozen.committed >= 0 and not needs:  # so the versions of its state, if it has any, have only numbers
        _link_numbered(checkpoint / STATE, into / STATE, frozen.committed + 1)
    elif STATE in names:
        _link(checkpoint / STATE, into / STATE, may_vanish=True)
    for name in sorted(name for name in names - {*ORDER, STATE} if not _left_out(name)):
        _link(checkpoint / name, into / name, may_vanish=False)
    if frozen.committed < 0:
        return FrozenCheckpoint(into, frozen.lineage, None)
    _check(into, frozen.committed, needs)
    return FrozenCheckpoint(into, frozen.lineage, frozen.committed)


def _names(checkpoint: Path) -> set[str]:
    try:
        return {entry.name for entry in checkpoint.iterdir()}
    except FileNotFoundError:
        raise CheckpointUnreadable(f"there is no checkpoint directory {checkpoint}") from None


def _needed(frozen: Path, batch: int) -> Sequence[NeededVersion]:
    try:
        return needed(batch, (frozen / "commits" / str(batch)).read_text())
    except ValueError as error:
        raise CheckpointUnreadable(f"{frozen}: {error}") from error


def _link_numbered(path: Path, to: Path, version: int, depth: int = 0) -> None:
    """Link what is needed to load `version` of each state store below the directory, and everything that belongs to no version. `depth`:
    of the directory below that of the state."""
    to.mkdir(exist_ok=True)
    with os.scandir(path) as entries:
        found = [entry for entry in entries if not _left_out(entry.name)]
    files = {entry.name for entry in found if not entry.is_dir(follow_symlinks=False)}
    versions = {name for name in files if depth >= OF_A_PARTITION and numbered_file(name) is not None}
    loads: Sequence[str] = ()
    if versions:
        needs = files_to_load(versions, version)
        if needs is None:
            raise _FileVanished(f"{path} has no version {version}, or not all that it builds upon")
        loads = needs
    for name in (*loads, *sorted(files - versions)):
        _link_file(f"{path}/{name}", f"{to}/{name}", may_vanish=False)
    for entry in found:
        if entry.name == SSTS and loads:
            _link_shared(path, to, loads)
        elif entry.is_dir(follow_symlinks=False):
            _link_numbered(path / entry.name, to / entry.name, version, depth + 1)


def _link_shared(path: Path, to: Path, loads: Sequence[str]) -> None:
    """Link the files that the .zip among `loads` refers to."""
    (to / SSTS).mkdir(exist_ok=True)
    for name in sorted({shared for each in loads if each.endswith(".zip") for shared in _shared(to / each)}):
        _link_file(f"{path}/{SSTS}/{name}", f"{to}/{SSTS}/{name}", may_vanish=False)


def _left_out(name: str) -> bool:
    return name.startswith(".") and name.endswith(_TEMPORARY)


def _link(path: Path, to: Path, *, may_vanish: bool) -> None:
    """Link a file, or a directory recursively. Files are linked before subdirectories, so a .zip is linked before the files that it
    shares."""
    if path.is_dir() and not path.is_symlink():
        to.mkdir(exist_ok=True)
        with os.scandir(path) as entries:
            found = sorted((entry for entry in entries if not _left_out(entry.name)), key=lambda entry: entry.is_dir(follow_symlinks=False))
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                _link(path / entry.name, to / entry.name, may_vanish=may_vanish)
            else:
                _link_file(entry.path, f"{to}/{entry.name}", may_vanish=may_vanish)
    else:
        _link_file(str(path), str(to), may_vanish=may_vanish)


def _link_file(path: str, to: str, *, may_vanish: bool) -> None:
    try:
        link_or_copy(path, to)
    except FileNotFoundError:
        if not may_vanish:
            raise _FileVanished(f"{path} is gone") from None


# --- completeness ----------------------------------------------------------------------------------------------------


def _check(frozen: Path, batch: int, needs: Sequence[NeededVersion]) -> None:
    """Raises _FileVanished, CheckpointUnreadable."""
    for each in (batch, batch - 1):  # Spark compares the last entry with the one before it
        if not (frozen / "offsets" / str(each)).exists() and (frozen / "commits" / str(each)).exists():
            raise _FileVanished(f"offsets/{each} is gone")
    walked = os.walk(frozen / STATE) if needs else ()
    names = {os.path.relpath(directory, frozen): set(files) for directory, _, files in walked}
    for need in needs:
        _check_loads(frozen, names, need)


def _check_loads(frozen: Path, names: dict[str, set[str]], need: NeededVersion) -> None:
    directory = find(names, need)
    if directory is None:
        raise _FileVanished(f"version {need.version.number} ({need.version.id}) of {need.directory} is gone")
    files = names[directory]
    before = [] if need.version.zip in files else _changelog_chain(frozen / directory, need.version, files)
    base, changelogs = to_load(need.version, before, files)
    if base is None and changelogs[0].number != 1:
        raise _FileVanished(f"the base of version {changelogs[0].number} of {directory} is gone")
    for each in changelogs:
        if each.changelog not in files:
            raise _FileVanished(f"{directory}/{each.changelog} is gone")
    shared = names.get(f"{directory}/SSTs", set())
    for name in _shared(frozen / directory / base.zip) if base is not None else ():
        if name not in shared:
            raise _FileVanished(f"{directory}/SSTs/{name} is gone")


def _changelog_chain(directory: Path, version: Version, files: set[str]) -> list[Version]:
    with (directory / version.changelog).open("rb") as changelog:
        head = changelog.read(_HEAD)
    try:
        return list(changelog_chain_of(head))
    except Unreadable as error:
        log.debug("%s: %s", directory / version.changelog, error)
        return list(changelog_chain_by_number(version, files))


def _shared(path: Path) -> Iterator[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield from shared_files(archive.read("metadata").decode())
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CheckpointUnreadable(f"{path} is not a file of a state store: {error}") from error


_STATE_FILE = re.compile(r"(\d+)_([0-9A-Za-z-]+)\.(changelog|zip)")


class Version(NamedTuple):
    """A version of a RocksDB state store and its id. A batch that ran twice leaves several versions of one number."""

    number: int
    id: str

    @property
    def changelog(self) -> str:
        return f"{self.number}_{self.id}.changelog"

    @property
    def zip(self) -> str:
        return f"{self.number}_{self.id}.zip"


@dataclass(frozen=True, slots=True)
class NeededVersion:
    """A version that a state store below `directory` ("state/0/1") must be able to load."""

    directory: str
    version: Version


def needed(batch: int, commit: str) -> Sequence[NeededVersion]:
    """The versions that batch `batch` needs, from the text of `commits/<batch>`. Empty for a query without state, or with another state
    format than Sluice sets (checkpointFormatVersion 1); then only the order of linking protects the copy. Raises ValueError."""
    text = commit.partition("\n")[2]
    try:
        ids: Mapping[str, Sequence[Sequence[str]]] = json.loads(text).get("stateUniqueIds") or {}
        return [
            NeededVersion(f"state/{operator}/{partition}", Version(batch + 1, str(each)))
            for operator, partitions in ids.items()
            for partition, stores in enumerate(partitions)
            for each in stores
        ]
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"commits/{batch} is not a commit: {text[:80]!r}") from error


def find(names: Mapping[str, set[str]], need: NeededVersion) -> str | None:
    """The directory below `need.directory` that has the version; `names` are the files by directory."""
    for directory, files in names.items():
        inside = directory == need.directory or directory.startswith(need.directory + "/")
        if inside and not files.isdisjoint((need.version.changelog, need.version.zip)):
            return directory
    return None


def to_load(version: Version, before: Sequence[Version], files: set[str]) -> tuple[Version | None, Sequence[Version]]:
    """The newest .zip among the version and the versions that it builds upon (`before`, oldest first), None without one, and the changelogs
    after it."""
    chain = [*before, version]
    for place in range(len(chain) - 1, -1, -1):
        if chain[place].zip in files:
            return chain[place], chain[place + 1 :]
    return None, chain


def changelog_chain_by_number(version: Version, files: set[str]) -> Sequence[Version]:
    """The versions that a version builds upon, as far as file names show them, for changelogs that cannot be read (not compressed with
    LZ4): one of each number, back to the newest .zip. Of several of one number, the first."""
    by_number: dict[int, Version] = {}
    for name in sorted(files, reverse=True):
        if match := _STATE_FILE.fullmatch(name):
            by_number[int(match[1])] = Version(int(match[1]), match[2])
    chain: list[Version] = []
    for number in range(version.number - 1, 0, -1):
        found = by_number.get(number, Version(number, "?"))
        chain.insert(0, found)
        if found.zip in files:
            break
    return chain


def shared_files(zip_metadata: str) -> Sequence[str]:
    """The names in SSTs/ that a .zip refers to, from its member `metadata`. Raises ValueError."""
    try:
        document = json.loads(zip_metadata.partition("\n")[2])
        return [str(each["dfsSstFileName"]) for each in document["sstFiles"] if each.get("dfsSstFileName")]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{zip_metadata[:80]!r} does not list the files that it shares") from error


# --- changelogs ------------------------------------------------------------------------------------------------------

_MAGIC = b"LZ4Block"
_BLOCK_HEADER = len(_MAGIC) + 1 + 3 * 4
_RAW, _LZ4 = 0x10, 0x20


class Unreadable(ValueError):
    """The changelog is in a format that Sluice cannot read."""


def changelog_chain_of(changelog: bytes) -> Sequence[Version]:
    """The versions that a version builds upon, oldest first, from the first bytes of its changelog; 64 KiB and a block are always enough.
    Spark calls this the lineage of the changelog. Raises Unreadable."""
    try:
        head = _Head(_blocks(changelog))
        if head.utf() not in ("v2", "v3", "v4"):
            raise Unreadable("its version is unknown")
        return [Version(int(each["version"]), str(each["checkpointUniqueId"])) for each in json.loads(head.utf())]
    except Unreadable:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Unreadable(f"its head is not that of a changelog: {error}") from error


class _Head:
    """Reads strings that Java's writeUTF has written, and reads no more blocks than necessary."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._have = b""

    def utf(self) -> str:
        return self._take(int.from_bytes(self._take(2), "big")).decode()

    def _take(self, count: int) -> bytes:
        while len(self._have) < count:
            block = next(self._blocks, None)
            if block is None:
                raise Unreadable("it ends too early")
            self._have += block
        taken, self._have = self._have[:count], self._have[count:]
        return taken


def _blocks(data: bytes) -> Iterator[bytes]:
    """The unpacked blocks of LZ4BlockOutputStream. The header of a block: magic, method and level, then little-endian compressed length,
    length, checksum."""
    place = 0
    while data[place : place + len(_MAGIC)] == _MAGIC:
        method = data[place + len(_MAGIC)] & 0xF0
        packed, size = (int.from_bytes(data[place + begin : place + begin + 4], "little") for begin in (9, 13))
        body = data[place + _BLOCK_HEADER : place + _BLOCK_HEADER + packed]
        if method not in (_RAW, _LZ4) or len(body) < packed:
            raise Unreadable("it has a truncated block, or one of an unknown kind")
        yield body if method == _RAW else lz4_block(body, size)
        place += _BLOCK_HEADER + packed
    if place < len(data):
        raise Unreadable("it is not compressed with LZ4")


def lz4_block(packed: bytes, size: int) -> bytes:
    """Unpack a block of `size` bytes (the LZ4 block format). Raises IndexError, ValueError."""
    out = bytearray()
    place = 0
    while place < len(packed):
        token = packed[place]
        literals, place = _length(token >> 4, packed, place + 1)
        out += packed[place : place + literals]
        place += literals
        if place >= len(packed):
            break
        distance = packed[place] | packed[place + 1] << 8
        count, place = _length(token & 15, packed, place + 2)
        if not 0 < distance <= len(out):
            raise ValueError("a match begins before the block")
        pattern = bytes(out[len(out) - distance :])
        count += 4
        out += (pattern * (count // distance + 1))[:count]
    if len(out) != size:
        raise ValueError(f"a block has {len(out)} bytes instead of {size}")
    return bytes(out)


def _length(nibble: int, packed: bytes, place: int) -> tuple[int, int]:
    if nibble == 15:
        while True:
            nibble += packed[place]
            place += 1
            if packed[place - 1] != 255:
                break
    return nibble, place
