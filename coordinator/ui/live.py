"""Pages that stay up to date: each is rendered once for all browsers that watch it, and the changed fragments are sent to them.

A browser opens one event stream (`text/event-stream`, the format of the HTML standard) for all its tabs and names the pages that it shows,
each with the version that it has. Readers have no queues: when a reader is ready, it gets the newest form of all fragments that have
changed since the version that it was sent last. So a slow reader needs no more memory than a fast one. An event is encoded and compressed
once for all readers with the same version.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from coordinator.ui import compression
from coordinator.ui.pieces import Fragment, changed
from sluice.clock import Clock
from sluice.core.errors import SluiceError, TooManyRequests
from sluice.core.ids import Instant

log = logging.getLogger(__name__)

Render = Callable[[], Awaitable[Sequence[Fragment]]]

INTERVAL = timedelta(seconds=2)
KEEP_ALIVE = timedelta(seconds=15)
"""A comment is sent after this time without an event, so that proxies do not close the stream."""
MAX_READERS = 1000
MAX_PAGES_OF_A_READER = 20
FORGET_AFTER = timedelta(minutes=2)
"""A page that no browser watches is dropped this long after it was last rendered."""
READERS_PER_TURN = 4
"""Number of event streams that are woken before the event loop processes other requests."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Bytes of an event stream, and the same bytes as a part of a gzip stream."""

    plain: bytes
    compressed: bytes

    @staticmethod
    def of(plain: bytes) -> Encoded:
        return Encoded(plain, compression.part(plain))


RETRY = Encoded.of(b"retry: 2000\n\n")
ALIVE = Encoded.of(b": alive\n\n")


class LivePage:
    """The current state of one page. `version` increases with each change. `versions`: the version at which each fragment changed last."""

    def __init__(self, render: Render) -> None:
        self.render = render
        self.pieces: Sequence[Fragment] = ()
        self.version = 0
        self.versions: dict[str, int] = {}
        self.latest: dict[str, str] = {}
        self.rendered_at: Instant | None = None
        self.readers: set[asyncio.Event] = set()
        self.ticker: asyncio.Task[None] | None = None
        self.rendering = asyncio.Lock()
        self._encoded: dict[tuple[str, int], Encoded] = {}

    def update(self, pieces: Sequence[Fragment]) -> bool:
        """Replace the pieces. Returns whether some have changed."""
        different = list(changed(self.pieces, pieces))
        self.pieces = pieces
        if not different:
            return False
        self._encoded.clear()
        self.version += 1
        for piece in different:
            self.versions[piece.id] = self.version
            self.latest[piece.id] = piece.html
        shown = {each.id for piece in pieces for each in (piece, *piece.rows)}
        for gone in self.versions.keys() - shown:
            del self.versions[gone], self.latest[gone]
        for piece in pieces:  # a table that is sent after some of its rows have changed must contain the newest rows
            if piece.rows and piece.id in self.latest:
                self.latest[piece.id] = piece.whole
        return True

    async def wake_readers(self) -> None:
        for number, reader in enumerate(list(self.readers), start=1):
            reader.set()
            if number % READERS_PER_TURN == 0:
                await asyncio.sleep(0)

    def event(self, name: str, epoch: str, since: int) -> Encoded | None:
        """What has changed since the version, for readers that call the page by this name; None if nothing has."""
        key = (name, since)
        if key not in self._encoded:
            news = self.since(since)
            if not news:
                return None
            self._encoded[key] = Encoded.of(event({"page": name, "version": self.version, "epoch": epoch, "pieces": news}))
        return self._encoded[key]

    def since(self, version: int) -> Mapping[str, str]:
        """The HTML of each fragment that has changed since this version, tables before their rows."""
        return {each: self.latest[each] for each, at in sorted(self.versions.items(), key=lambda item: item[1]) if at > version}


class LivePages:
    """All pages that are watched or were shown recently. `epoch` identifies this process, because versions of other processes are not
    comparable."""

    def __init__(self, clock: Clock, epoch: str, interval: timedelta = INTERVAL) -> None:
        self._clock = clock
        self.epoch = epoch
        self._interval = interval
        self._pages: dict[str, LivePage] = {}
        self._closing = asyncio.Event()
        self.readers = 0

    async def page(self, key: str, render: Render) -> LivePage:
        """The page, rendered at most one interval ago. Raises the errors of `render`."""
        found = self._pages.setdefault(key, LivePage(render))
        try:
            async with found.rendering:
                now = self._clock.elapsed()
                if found.rendered_at is None or now - found.rendered_at >= self._interval.total_seconds():
                    news = found.update(await found.render())
                    found.rendered_at = self._clock.elapsed()
                    if news:
                        await found.wake_readers()
        except BaseException:
            if not found.version:
                self._pages.pop(key, None)
            raise
        self._forget()
        return found

    def expire(self) -> None:
        """Render each page again at its next request, because an action has changed something."""
        for page in self._pages.values():
            page.rendered_at = None

    def _forget(self) -> None:
        before = self._clock.elapsed() - FORGET_AFTER.total_seconds()
        for key in [key for key, page in self._pages.items() if not page.readers and (page.rendered_at or 0) < before]:
            del self._pages[key]

    async def events(
        self,
        pages: Mapping[str, Render],
        known: Mapping[str, int],
        names: Mapping[str, str] | None = None,
        allowed: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[Encoded]:
        """The event stream of a browser that shows these pages. `known`: the version that it has of each; `names`: the names that it has
        for them, if others. Ends when the server stops, or when the reader is no longer `allowed`, which is checked before each event.

        Raises TooManyRequests."""
        if self.readers >= MAX_READERS:
            raise TooManyRequests(f"{MAX_READERS} browsers already watch pages: close some, or reload the page to see its current state")
        wake, sent, watched = asyncio.Event(), dict(known), dict[str, LivePage]()
        self.readers += 1
        try:
            for key, render in list(pages.items())[:MAX_PAGES_OF_A_READER]:
                with suppress(SluiceError):
                    watched[key] = await self.page(key, render)
                    self._watch(watched[key], wake)
            yield RETRY
            while watched and allowed() and not self._closing.is_set():
                wake.clear()
                for key, page in watched.items():
                    news = page.event((names or {}).get(key, key), self.epoch, sent.get(key, 0))
                    sent[key] = page.version
                    if news is not None:
                        yield news
                try:
                    async with asyncio.timeout(KEEP_ALIVE.total_seconds()):
                        await wake.wait()
                except TimeoutError:
                    yield ALIVE
        finally:
            self.readers -= 1
            for page in watched.values():
                page.readers.discard(wake)

    def _watch(self, page: LivePage, wake: asyncio.Event) -> None:
        page.readers.add(wake)
        if page.ticker is None or page.ticker.done():
            page.ticker = asyncio.create_task(self._tick(page), name="page")

    async def _tick(self, page: LivePage) -> None:
        """Render the page at each interval as long as it has readers. After a failure the page does not change."""
        while page.readers and not self._closing.is_set():
            await asyncio.sleep(self._interval.total_seconds())
            try:
                async with page.rendering:
                    news = page.update(await page.render())
                    page.rendered_at = self._clock.elapsed()
                if news:
                    await page.wake_readers()
            except SluiceError as error:
                log.info("cannot update a page: %s", error)
            except Exception:
                log.exception("cannot update a page")

    def wake(self) -> None:
        """Make each event stream check whether its reader is still allowed to read it."""
        for page in self._pages.values():
            for reader in page.readers:
                reader.set()

    def close(self) -> None:
        """End all event streams."""
        self._closing.set()
        self.wake()


def event(data: Mapping[str, object]) -> bytes:
    """A server-sent event without a name. JSON has no line breaks, so one `data` line is enough."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n\n"
