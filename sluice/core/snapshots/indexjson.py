"""The JSON format of a snapshot's index: Samza's, with additions.

Samza's code can read these indexes if packing is off and no file is larger than 2 GiB, because it stores the offset of a part in an int. It
ignores the keys that Sluice adds: "sha256" of a file; "length", "blob-offset" and "blob-size" of a packed part; and at the top level
"schema-version", "generation", "lineage", "batch-id", "offsets", "continuation" and "index-sha256". The last is the SHA-256 of the document
without that key, written with sorted keys, without spaces and in ASCII. An index without "schema-version" was written by Samza and has no
checksum.

The reader validates everything. It rejects names that leave their directory, duplicate names, parts that do not add up to their file,
values of a wrong type and truncated documents. It ignores unknown keys.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NoReturn, TypeVar

from sluice.core.errors import BadName, IndexUnreadable
from sluice.core.ids import Generation, JobName, Lineage, Ssp, StageName, TaskName
from sluice.core.snapshots.snapshot import (
    BlobId,
    CommitId,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    SnapshotIndex,
    SnapshotMetadata,
    checked_blob_id,
)
from sluice.core.text import is_storable

SCHEMA_VERSION = 1

JOB_ID = "1"
"""Samza distinguishes instances of a job by this id. A job of Sluice has one instance."""

_CHECKSUM = "index-sha256"
_LONGEST_NAME = 255
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE_LETTERS = "rwxrwxrwx"

T = TypeVar("T")


# --- writing ---------------------------------------------------------------------------------------------------------


def encoded(index: SnapshotIndex) -> bytes:
    """The index as stored. Equal indexes give equal bytes."""
    metadata = index.metadata
    document: dict[str, object] = {
        "creation-time-millis": index.created_millis,
        "snapshot-metadata": {
            "checkpoint-id": metadata.checkpoint,
            "job-name": metadata.job,
            "job-id": JOB_ID,
            "task-name": metadata.task,
            "store-name": metadata.store,
        },
        "prev-snapshot-index-blob-id": index.previous,
        "schema-version": SCHEMA_VERSION,
        "generation": index.generation,
        "lineage": index.lineage,
        "batch-id": index.batch,
    }
    if index.offsets:
        document["offsets"] = [[ssp.system, ssp.stream, ssp.partition, offset] for ssp, offset in sorted(index.offsets.items())]
    if index.continuation is not None:
        document["continuation"] = index.continuation
    spelled = {key: json.dumps(value, sort_keys=True, separators=(",", ":")) for key, value in document.items()}
    spelled["dir-index"] = _directory(index.root)
    body = _object(sorted(spelled.items())).encode()
    return body[:-1] + _checksum_of(body)


def _checksum_of(body: bytes) -> bytes:
    """The end of a document whose last key is its checksum."""
    return f',"{_CHECKSUM}":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


def _canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _object(items: Iterable[tuple[str, str]]) -> str:
    """A JSON object of values that are already JSON text, in this order."""
    return "{" + ",".join(f'"{key}":{value}' for key, value in items) + "}"


def _array(items: Iterable[str]) -> str:
    return "[" + ",".join(items) + "]"


# A commit writes thousands of files. They are converted to text directly: dictionaries take three times as long and trigger garbage
# collections.


def _directory(directory: DirIndex) -> str:
    return (
        f'{{"dir-name":{_quoted(directory.name)},"files-present":{_array(map(_file, directory.files))},'
        f'"files-removed":{_array(map(_file, directory.files_removed))},'
        f'"sub-dirs-present":{_array(map(_directory, directory.dirs))},'
        f'"sub-dirs-removed":{_array(map(_directory, directory.dirs_removed))}}}'
    )


def _file(file: FileIndex) -> str:
    of = file.metadata
    digest = f',"sha256":"{file.digest}"' if file.digest is not None else ""
    return (
        f'{{"blobs":{_array(map(_part, file.blobs))},"checksum":{file.checksum},"file-metadata":{{'
        f'"creation-time-millis":{of.created_millis},"group":{_quoted(of.group)},"last-modified-time-millis":{of.modified_millis},'
        f'"owner":{_quoted(of.owner)},"permissions":"{permissions(of.mode)}","size":{of.size}}},"file-name":{_quoted(file.name)}{digest}}}'
    )


def _part(part: FileBlob) -> str:
    if part.length is None:
        return f'{{"blob-id":{_quoted(part.blob)},"offset":{part.offset}}}'
    size = f'"blob-size":{part.blob_size},' if part.blob_size is not None else ""
    return f'{{"blob-id":{_quoted(part.blob)},"blob-offset":{part.at},{size}"length":{part.length},"offset":{part.offset}}}'


@lru_cache(maxsize=512)
def permissions(mode: int) -> str:
    """Nine permission bits in Samza's format: 0o640 is "rw-r-----"."""
    return "".join(letter if mode & (0o400 >> place) else "-" for place, letter in enumerate(_MODE_LETTERS))


# --- reading ---------------------------------------------------------------------------------------------------------


class _Wrong(ValueError):
    """The document is invalid. The text says how, and where."""


def decoded(body: bytes, blob: BlobId) -> SnapshotIndex:
    """The index in `body`, which is the contents of `blob`. Raises IndexUnreadable."""
    try:
        document = json.loads(body)
        _check_whole(document, body)
        return _index(document)
    except RecursionError:
        why = "its directories are nested too deeply"
    except (ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    raise IndexUnreadable(
        f"{blob} cannot be read as a snapshot's index: {why}; nothing was changed; restore it from another blob store, or choose an "
        "earlier snapshot of the stage"
    )


def _check_whole(document: object, body: bytes) -> None:
    """Raises _Wrong unless this version can read the document and its checksum is correct."""
    if not isinstance(document, dict):
        raise _Wrong("it is not a JSON object")
    if "schema-version" not in document:
        if _CHECKSUM in document:
            raise _Wrong("it has a checksum and no schema version")
        return
    version = _number(document["schema-version"], "schema-version")
    if version > SCHEMA_VERSION:
        raise _Wrong(f"a newer version of Sluice wrote it (schema {version}; this one reads {SCHEMA_VERSION}): run that version")
    stored = document.pop(_CHECKSUM)
    ending = len(_checksum_of(b""))
    if body.endswith(_checksum_of(body[:-ending] + b"}")):
        return  # the usual case: the text is unchanged, so it need not be encoded again
    found = hashlib.sha256(_canonical(document)).hexdigest()
    if stored != found:
        raise _Wrong(f"its SHA-256 is {found}, but it contains {str(stored)[:64]!r}")


def _index(document: Mapping[str, Any]) -> SnapshotIndex:
    about = document["snapshot-metadata"]
    root = _read_directory(document["dir-index"], "")
    if root.name:
        raise _Wrong(f"its root is named {root.name[:80]!r}")
    return SnapshotIndex(
        created_millis=_number(document["creation-time-millis"], "creation-time-millis"),
        metadata=SnapshotMetadata(
            CommitId(_name_text(about["checkpoint-id"], "checkpoint-id")),
            JobName(_name_text(about["job-name"], "job-name")),
            TaskName(_name_text(about["task-name"], "task-name")),
            StageName(_name_text(about["store-name"], "store-name")),
        ),
        root=root,
        previous=_optional(document.get("prev-snapshot-index-blob-id"), _blob_id),
        generation=_optional(document.get("generation"), lambda value: Generation(_number(value, "generation"))),
        lineage=_optional(document.get("lineage"), lambda value: Lineage(_name_text(value, "lineage"))),
        batch=_optional(document.get("batch-id"), lambda value: _number(value, "batch-id", least=-1)),
        offsets=_offsets(document.get("offsets", [])),
        continuation=_optional(document.get("continuation"), _mapping),
    )


def _read_directory(document: Mapping[str, Any], where: str) -> DirIndex:
    name = document["dir-name"]
    if where or name != "":
        name = _name(name, where)
    inside = f"{where}{name}/"
    files = tuple(_read_file(each, inside, present=True) for each in _list(document, "files-present"))
    dirs = tuple(_read_directory(each, inside) for each in _list(document, "sub-dirs-present"))
    _check_unique(inside, files, dirs)
    return DirIndex(
        name,
        tuple(sorted(files, key=lambda file: file.name)),
        tuple(_read_file(each, inside, present=False) for each in _list(document, "files-removed")),
        tuple(sorted(dirs, key=lambda each: each.name)),
        tuple(_read_directory(each, inside) for each in _list(document, "sub-dirs-removed")),
    )


def _check_unique(where: str, files: tuple[FileIndex, ...], dirs: tuple[DirIndex, ...]) -> None:
    seen: set[str] = set()
    for name in (*(file.name for file in files), *(each.name for each in dirs)):
        if name in seen:
            raise _Wrong(f"{where}{name} appears twice")
        seen.add(name)


def _read_file(document: Mapping[str, Any], where: str, *, present: bool) -> FileIndex:
    name = _name(document["file-name"], where)
    about = document["file-metadata"]
    digest = document.get("sha256")
    if digest is not None and not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
        raise _Wrong(f"the SHA-256 of {where}{name} is {str(digest)[:80]!r}")
    metadata = FileMetadata(
        _number(about["creation-time-millis"], "creation-time-millis"),
        _number(about["last-modified-time-millis"], "last-modified-time-millis"),
        _number(about["size"], "size"),
        _text(about["owner"], "owner"),
        _text(about["group"], "group"),
        _mode(about["permissions"]),
    )
    parts = tuple(sorted((_read_part(each) for each in _list(document, "blobs")), key=lambda part: part.offset))
    if present:
        for _ in lengths(parts, metadata.size, where + name):
            pass
    return FileIndex(name, parts, metadata, _number(document["checksum"], "checksum"), digest)


def _read_part(document: Mapping[str, Any]) -> FileBlob:
    blob, offset = _blob_id(document["blob-id"]), _number(document["offset"], "offset")
    if "length" not in document:
        return FileBlob(blob, offset)
    length, at = _number(document["length"], "length"), _number(document.get("blob-offset", 0), "blob-offset")
    return FileBlob(blob, offset, length, at, _optional(document.get("blob-size"), lambda value: _number(value, "blob-size")))


def lengths(parts: tuple[FileBlob, ...], size: int, path: str) -> Iterator[tuple[FileBlob, int]]:
    """Each part of a file with its length in bytes, ordered by offset. A part without a length, as Samza writes them, extends to the next
    one. Raises ValueError if the parts do not add up to `size` bytes."""
    end = 0
    for place, part in enumerate(parts):
        following = parts[place + 1].offset if place + 1 < len(parts) else size
        length = following - part.offset if part.length is None else part.length
        if part.offset != end or length < 0 or (length == 0 and part.length is None and size):
            raise _Wrong(f"the parts of {path} have a gap or an overlap at byte {end}")
        end += length
        yield part, length
    if end != size:
        raise _Wrong(f"the parts of {path} have {end} bytes in total, but the file has {size}")


def _name(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"a name in {where[:200] or '/'} is not a string")
    if value in ("", ".", "..") or "/" in value or "\0" in value:
        raise _Wrong(f"{value[:80]!r} in {where[:200] or '/'} is not a valid name of a file or directory")
    if len(value) > _LONGEST_NAME or (not value.isascii() and len(value.encode("utf-8", "surrogateescape")) > _LONGEST_NAME):
        raise _Wrong(f"the name {value[:80]!r}… in {where[:200] or '/'} is longer than {_LONGEST_NAME} bytes")
    return value


def _blob_id(value: object) -> BlobId:
    try:
        return checked_blob_id(_text(value, "blob-id"))
    except BadName as error:
        raise _Wrong(str(error)) from error


def _mode(value: object) -> int:
    return _mode_of(_text(value, "permissions"))


@lru_cache(maxsize=512)
def _mode_of(text: str) -> int:
    mode = sum(0o400 >> place for place, letter in enumerate(text[: len(_MODE_LETTERS)]) if letter != "-")
    if permissions(mode) != text:
        _refuse(text, "permissions")
    return mode


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document[key]
    if not isinstance(value, list):
        raise _Wrong(f"{key} is not a list")
    return value


def _number(value: object, what: str, least: int = 0) -> int:
    if type(value) is not int or value < least:
        _refuse(value, what)
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        _refuse(value, what)
    return value


_LONGEST_TEXT = 600


def _name_text(value: object, what: str) -> str:
    """Text that a database can store and a terminal can show: without NUL and lone surrogates."""
    text = _text(value, what)
    if len(text) > _LONGEST_TEXT or not is_storable(text):
        _refuse(text, what)
    return text


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse(value, "continuation")
    return value


def _offsets(value: object) -> Mapping[Ssp, int]:
    if not isinstance(value, list):
        _refuse(value, "offsets")
    found: dict[Ssp, int] = {}
    for each in value:
        if not isinstance(each, list) or len(each) != 4:
            _refuse(each, "an offset")
        system, stream, partition, offset = each
        ssp = Ssp(_name_text(system, "system"), _name_text(stream, "stream"), _number(partition, "partition"))
        found[ssp] = _number(offset, "an offset")
    return found


def _refuse(value: object, what: str) -> NoReturn:
    raise _Wrong(f"{what} is {str(value)[:80]!r}")


def _optional(value: object, read: Callable[[object], T]) -> T | None:
    return None if value is None else read(value)
