"""Stores that come to lie in another directory than the one in which Spark wrote them: restored on another disk, or moved.

Of some operators (transformWithState, joins of state format 3) Spark 4.2 keeps in `state/<operator>/_metadata/v2/<batch>` where the
files of their state's schema are, by absolute paths, and starts no query when these are not there.

    v2
    {"operatorInfo": …, "stateStoreInfo": [{"stateSchemaFilePaths": ["file:/…/state/0/_stateSchema/default/0_…"], …}], …}
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sluice.core.errors import CheckpointUnreadable

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
