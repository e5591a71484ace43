"""The configured blob stores. Each is opened on demand, and retried until it opens. An unavailable one does not delay the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.errors import BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.ids import JobName
from sluice.core.snapshots.snapshot import BlobStoreName, Kind

log = logging.getLogger(__name__)

OPEN_WITHIN = timedelta(seconds=30)

OnOpen = Callable[[BlobStoreName, BlobStore], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Backup:
    """The blob stores that state is written to, and those that it is restored from. The first one that has the snapshot is used."""

    to: tuple[BlobStoreName, ...]
    restore_from: tuple[BlobStoreName, ...]

    @property
    def document(self) -> Mapping[str, Any]:
        return {"to": list(self.to), "restoreFrom": list(self.restore_from)}


class BlobStores:
    """`places`: the blob stores' URLs by name. `make` creates a blob store from its name and URL. `by_default`: for runs that configure no
    blob stores. `on_open` is called with each opened blob store before it is used. `garbage_grace`: how long garbage is kept."""

    def __init__(
        self,
        places: Mapping[str, str],
        make: Callable[[str, str], BlobStore],
        by_default: Backup,
        on_open: OnOpen | None = None,
        garbage_grace: timedelta = timedelta(days=1),
    ) -> None:
        self.garbage_grace = garbage_grace
        self.places = {BlobStoreName(name): url for name, url in places.items()}
        self.by_default = by_default
        self._make = make
        self._on_open = on_open
        self._open: dict[BlobStoreName, BlobStore] = {}
        self._opening = {name: asyncio.Lock() for name in self.places}
        self._problems: dict[BlobStoreName, SluiceError] = {}

    @property
    def names(self) -> Sequence[BlobStoreName]:
        return tuple(self.places)

    async def opened(self, name: BlobStoreName) -> BlobStore:
        """The blob store, opened if necessary. Raises BlobUnavailable, and BlobStoreUnusable, also for a name that is not configured."""
        if name not in self.places:
            raise self._unknown(name)
        async with self._opening[name]:
            if name not in self._open:
                try:
                    self._open[name] = await self._try(name)
                except SluiceError as error:
                    self._problems[name] = error
                    raise
                self._problems.pop(name, None)
        return self._open[name]

    async def _try(self, name: BlobStoreName) -> BlobStore:
        made = self._make(name, self.places[name])
        try:
            async with asyncio.timeout(OPEN_WITHIN.total_seconds()):
                await made.open(create=True)
                if self._on_open is not None:
                    await self._on_open(name, made)
        except TimeoutError as error:
            await made.close()
            raise BlobUnavailable(f"blob store {name}: no answer within {OPEN_WITHIN.total_seconds():g} s") from error
        except BaseException:
            await made.close()
            raise
        return made

    def problem(self, name: BlobStoreName) -> str | None:
        """Why the blob store is not open; None if it is."""
        return None if name in self._open else str(self._problems.get(name, "not opened yet"))

    def blob_stores_of(self, to: Sequence[str], restore_from: Sequence[str]) -> Backup:
        """Raises BlobStoreUnusable for names that are not configured."""
        for name in (*to, *restore_from):
            if name not in self.places:
                raise self._unknown(name)
        return _backup(tuple(map(BlobStoreName, to)), tuple(map(BlobStoreName, restore_from)))

    def of_config(self, config: Mapping[str, str], otherwise: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The value of `backup.stores` and `restore.from` in a job's configuration; `otherwise` if it has neither. Raises
        BlobStoreUnusable."""
        if not {"backup.stores", "restore.from"} & config.keys():
            return otherwise
        default = self.by_default
        to, back = _names(config.get("backup.stores"), default.to), _names(config.get("restore.from"), default.restore_from)
        return self.blob_stores_of(to, back).document

    def backup(self, document: Mapping[str, Any] | None) -> Backup:
        """The blob stores of a run, from its row. Names that are no longer configured are ignored."""
        if document is None:
            return self.by_default
        to, back = (tuple(BlobStoreName(name) for name in document[key] if name in self.places) for key in ("to", "restoreFrom"))
        return _backup(to, back)

    def requested(self, document: Mapping[str, Any] | None) -> Sequence[BlobStoreName]:
        """The blob stores that a run is to be backed up to, from its row, including those that are no longer configured."""
        return self.by_default.to if document is None else tuple(map(BlobStoreName, document["to"]))

    async def with_snapshots_of(self, job: JobName) -> BlobStoreName | None:
        """The first available blob store that has snapshots of the job; None if there is none."""
        for name in self.places:
            with suppress(BlobUnavailable, BlobStoreUnusable):
                blobs = await self.opened(name)
                async for page in blobs.list(f"jobs/{job}/", RequestContext(Purpose.OPEN, job)):
                    if any(f"/{Kind.SNAPSHOTS}/" in listed.blob for listed in page):
                        return name
        return None

    def _unknown(self, name: str) -> BlobStoreUnusable:
        there = ", ".join(self.places) or "none"
        return BlobStoreUnusable(f"no blob store {name!r} is configured (configured: {there}): add it to SLUICE_BLOB_STORES")

    async def close(self) -> None:
        for each in self._open.values():
            await each.close()
        self._open.clear()


def _backup(to: tuple[BlobStoreName, ...], restore_from: tuple[BlobStoreName, ...]) -> Backup:
    """By default, state is restored from the blob stores that it is written to."""
    return Backup(to, restore_from or to)


def _names(listed: str | None, default: Sequence[str]) -> Sequence[str]:
    return default if listed is None else [name for each in listed.split(",") if (name := each.strip())]


@dataclass(frozen=True, slots=True)
class OpenBlobStores:
    """Chore: open the blob stores that are not open, so that `problem` is up to date."""

    stores: BlobStores
    every: timedelta = timedelta(seconds=15)
    name: str = "open_blob_stores"

    async def run_once(self) -> Mapping[str, int]:
        closed = [name for name in self.stores.names if self.stores.problem(name) is not None]
        found = await asyncio.gather(*(self.stores.opened(name) for name in closed), return_exceptions=True)
        failed = [each for each in found if isinstance(each, BaseException)]
        for each in failed:
            raise each
        return {"opened": len(found)} if found else {}
