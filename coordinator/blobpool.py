"""The blob stores of the settings: opened when they are needed, and again while they cannot be. One that is away keeps nothing else up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sluice.blobs.port import About, BlobStore, Purpose
from sluice.core.errors import BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.ids import JobName
from sluice.core.snapshot import BlobStoreName, Kind

log = logging.getLogger(__name__)

OPEN_WITHIN = timedelta(seconds=30)

Greet = Callable[[BlobStoreName, BlobStore], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Backup:
    """To which blob stores state goes, and from which it comes: the first that has the snapshot."""

    to: tuple[BlobStoreName, ...]
    restore_from: tuple[BlobStoreName, ...]

    @property
    def document(self) -> Mapping[str, Any]:
        return {"to": list(self.to), "restoreFrom": list(self.restore_from)}


class BlobStores:
    """`places` are the stores' URLs by their names, `make` makes a store of one. `by_default` is what holds for runs that say nothing.
    `greet` is called with each store that has been opened, before anybody else gets it. `garbage_grace`: how long garbage is left alone."""

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
        self._trouble: dict[BlobStoreName, SluiceError] = {}

    @property
    def names(self) -> Sequence[BlobStoreName]:
        return tuple(self.places)

    async def opened(self, name: BlobStoreName) -> BlobStore:
        """The store, open. Raises BlobStoreUnusable, also for one that is not in the settings, and BlobUnavailable."""
        if name not in self.places:
            raise self._unknown(name)
        async with self._opening[name]:
            if name not in self._open:
                try:
                    self._open[name] = await self._try(name)
                except SluiceError as error:
                    self._trouble[name] = error
                    raise
                self._trouble.pop(name, None)
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
            raise BlobUnavailable(f"blob store {name}: it has not answered within {OPEN_WITHIN.total_seconds():g} s") from error
        except BaseException:
            await made.close()
            raise
        return made

    def trouble(self, name: BlobStoreName) -> str | None:
        """Why the store is not open; None if it is."""
        return None if name in self._open else str(self._trouble.get(name, "it has not been opened yet"))

    def chosen(self, to: Sequence[str], restore_from: Sequence[str]) -> Backup:
        """Raises BlobStoreUnusable for names that are not in the settings."""
        for name in (*to, *restore_from):
            if name not in self.places:
                raise self._unknown(name)
        return Backup(tuple(map(BlobStoreName, to)), tuple(map(BlobStoreName, restore_from)))

    def of_config(self, config: Mapping[str, str], otherwise: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What a job's configuration says under `backup.stores` and `restore.from`; `otherwise` where it says neither. Raises
        BlobStoreUnusable."""
        if not {"backup.stores", "restore.from"} & config.keys():
            return otherwise
        default = self.by_default
        to, back = _names(config.get("backup.stores"), default.to), _names(config.get("restore.from"), default.restore_from)
        return self.chosen(to, back).document

    def backup(self, document: Mapping[str, Any] | None) -> Backup:
        """What a run's row says. Names that an operator took out of the settings are left out."""
        if document is None:
            return self.by_default
        to, back = ([BlobStoreName(name) for name in document[key] if name in self.places] for key in ("to", "restoreFrom"))
        return Backup(tuple(to), tuple(back))

    async def with_snapshots_of(self, job: JobName) -> BlobStoreName | None:
        """The first blob store that has any of the job's, of those that answer."""
        for name in self.places:
            with suppress(BlobUnavailable, BlobStoreUnusable):
                blobs = await self.opened(name)
                async for page in blobs.list(f"jobs/{job}/", About(Purpose.OPEN, job)):
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


def _names(told: str | None, default: Sequence[str]) -> Sequence[str]:
    return default if told is None else [name for each in told.split(",") if (name := each.strip())]


@dataclass(frozen=True, slots=True)
class OpenBlobStores:
    """A chore: open the blob stores that are not open, so that it is known which can be used."""

    stores: BlobStores
    every: timedelta = timedelta(seconds=15)
    name: str = "open_blob_stores"

    async def run_once(self) -> Mapping[str, int]:
        closed = [name for name in self.stores.names if self.stores.trouble(name) is not None]
        found = await asyncio.gather(*(self.stores.opened(name) for name in closed), return_exceptions=True)
        failed = [each for each in found if isinstance(each, BaseException)]
        for each in failed:
            raise each
        return {"opened": len(found)} if found else {}
