"""What the coordinator's process does for a fleet, beyond single requests."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import uvloop

from coordinator.server import ACCEPTS, THRESHOLDS, FrozenHeap, listen, server, shared
from coordinator.settings import read_settings

pytestmark = pytest.mark.real_time

CONNECTIONS = 64


async def _turns_to_accept(listening: list[socket.socket]) -> int:
    """The number of turns of the event loop until all connections that arrived while it was busy are accepted."""
    loop = asyncio.get_running_loop()
    made: list[asyncio.BaseTransport] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    for each in listening:
        await loop.create_server(Accepted, sock=each, backlog=2 * CONNECTIONS)
    clients = [socket.create_connection(listening[0].getsockname()) for _ in range(CONNECTIONS)]
    turns = 0
    while len(made) < CONNECTIONS:
        await asyncio.sleep(0)
        turns += 1
    closing: list[socket.socket | asyncio.BaseTransport] = [*clients, *made]
    for connection in closing:
        connection.close()
    return turns


def test_connections_that_arrived_in_the_meantime_are_accepted_in_few_turns_of_the_event_loop() -> None:
    turns = uvloop.run(_turns_to_accept(shared([listen("127.0.0.1", 0)])))
    assert turns <= CONNECTIONS / ACCEPTS + 4


def test_without_a_shared_socket_one_connection_is_accepted_per_turn() -> None:
    """Why the socket is shared. If this fails, libuv has changed, and `shared` can be removed."""
    assert uvloop.run(_turns_to_accept([listen("127.0.0.1", 0)])) >= CONNECTIONS


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, socket.socket]]:
    listening = listen("127.0.0.1", 0)
    coordinator = server(read_settings(home=home))
    thread = threading.Thread(target=coordinator.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", listening
    finally:
        coordinator.should_exit = True
        thread.join()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """The objects of the tests are frozen otherwise (tests/conftest.py)."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_a_coordinator_that_has_ended_has_released_its_address_and_the_frozen_heap(tmp_path: Path) -> None:
    callbacks = list(gc.callbacks)
    with serving(tmp_path) as (url, listening):
        httpx.get(f"{url}/readyz", timeout=300).raise_for_status()
        port = listening.getsockname()[1]
        assert gc.get_freeze_count() > 0
    with closing(listen("127.0.0.1", port)):
        assert (gc.get_freeze_count(), gc.callbacks) == (0, callbacks)


class Link:
    """Garbage that only the cyclic garbage collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
async def heap() -> AsyncIterator[FrozenHeap]:
    made = FrozenHeap()
    made.start()
    yield made
    made.stop()
    made.stop()
    gc.freeze()


async def test_objects_that_survived_a_full_collection_are_not_examined_again(heap: FrozenHeap) -> None:
    kept = [Link() for _ in range(1000)]
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() >= before + len(kept)
    assert not any(isinstance(each, Link) for each in gc.get_objects())


async def test_the_thresholds_of_the_collector_are_those_of_before_when_the_server_has_ended() -> None:
    before = gc.get_threshold()
    heap = FrozenHeap()
    heap.start()
    assert gc.get_threshold() == THRESHOLDS
    heap.stop()
    assert gc.get_threshold() == before


async def test_what_was_frozen_before_the_server_is_frozen_after_it() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    heap = FrozenHeap()
    heap.start()
    heap.stop()
    assert gc.get_freeze_count() >= before


async def test_frozen_objects_that_became_garbage_are_freed_by_a_collection_of_everything(heap: FrozenHeap) -> None:
    link = Link()
    gone = weakref.ref(link)
    gc.collect()
    del link
    gc.collect()
    assert gone() is not None
    heap.collect_everything()
    assert gone() is None
