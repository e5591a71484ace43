"""The configured blob stores: opened on demand, and tried again until they open. One that is unavailable does not delay the others."""

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

Greet = Callable[[BlobStoreName, BlobStore], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Backup:
    """The blob stores that state is written to, and those that it is restored from: the first that has the snapshot."""

    to: tuple[BlobStoreName, ...]
    restore_from: tuple[BlobStoreName, ...]

    @property
    def document(self) -> Mapping[str, Any]:
        return {"to": list(self.to), "restoreFrom": list(self.restore_from)}


class BlobStores:
    """`places` has the blob stores' URLs by name; `make` makes one from its name and URL. `by_default` is for runs without a setting of
    their own. `greet` is called with each blob store that was opened, before it is used. `garbage_grace`: garbage is kept for this long."""

    def __init__(
        self,
        places: Mapping[str, str],
        make: Callable[[str, str], BlobStore],
        by_default: Backup,
        greet: Greet | None = None,
        garbage_grace: timedelta = timedelta(days=1),
    ) -> None:
        self.garbage_grace = garbage_grace
        self.places = {BlobStoreName(name): url for name, url in places.items()}
        self.by_default = by_default
        self._make = make
        self._greet = greet
        self._open: dict[BlobStoreName, BlobStore] = {}
        self._opening = {name: asyncio.Lock() for name in self.places}
        self._problems: dict[BlobStoreName, SluiceError] = {}

    @property
    def names(self) -> Sequence[BlobStoreName]:
        return tuple(self.places)

    async def opened(self, name: BlobStoreName) -> BlobStore:
        """The open blob store. Raises BlobStoreUnusable, also for a name that is not configured, and BlobUnavailable."""
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
                if self._greet is not None:
                    await self._greet(name, made)
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
        """The value of a run's row. Names that are no longer configured are left out."""
        if document is None:
            return self.by_default
        to, back = (tuple(BlobStoreName(name) for name in document[key] if name in self.places) for key in ("to", "restoreFrom"))
        return _backup(to, back)

    def requested(self, document: Mapping[str, Any] | None) -> Sequence[BlobStoreName]:
        """The blob stores that the run of this row is to be backed up to, also those that are no longer configured."""
        return self.by_default.to if document is None else tuple(map(BlobStoreName, document["to"]))

    async def with_snapshots_of(self, job: JobName) -> BlobStoreName | None:
        """The first of the available blob stores that has snapshots of the job."""
        for name in self.places:
            with suppress(BlobUnavailable, BlobStoreUnusable):
                blobs = await self.opened(name)
                async for page in blobs.list(f"jobs/{job}/", RequestContext(Purpose.OPEN, job)):
                    if any(f"/{Kind.SNAPSHOTS}/" in listed.blob for listed in page):
                        return name
        return None

    def _unknown(self, name: str) -> BlobStoreUnusable:
        there = ", ".join(self.places) or "none"
        return BlobStoreUnusable(f"no blob store {name!r} is configured (there is {there}): name it in SLUICE_BLOB_STORES")

    async def close(self) -> None:
        for each in self._open.values():
            await each.close()
        self._open.clear()


def _backup(to: tuple[BlobStoreName, ...], restore_from: tuple[BlobStoreName, ...]) -> Backup:
    """State is restored from the blob stores that have it, unless others are named."""
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
