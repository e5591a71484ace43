"""Connections that send too much, too slowly or nothing: what the coordinator's server does with them, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from coordinator.connections import MAX_HEAD_BYTES, Timeouts
from coordinator.server import listen, server
from coordinator.settings import read_settings
from sluice.streams.log import Log
from tests.support.api import run_body

GENEROUS = 30.0
SHORT = timedelta(milliseconds=200)
TIMEOUTS = Timeouts(head=SHORT, body=SHORT)
HEARTBEAT = b"GET /containerHeartbeat?executionContainerId=nobody HTTP/1.1\r\nHost: x\r\n"


class Address(NamedTuple):
    host: str
    port: int


@contextmanager
def serving(home: Path, timeouts: Timeouts, **settings: Any) -> Iterator[Address]:
    Log(home / "log").create("flights", 2)
    listening = listen("127.0.0.1", 0)
    coordinator = server(read_settings(home=home, **settings), timeouts)
    thread = threading.Thread(target=coordinator.run, args=([listening],))
    thread.start()
    try:
        yield Address(*listening.getsockname())
    finally:
        coordinator.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A coordinator with the timeouts of production."""
    with serving(tmp_path_factory.mktemp("patient"), Timeouts()) as address:
        yield address


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A coordinator that waits a fraction of a second for requests."""
    with serving(tmp_path_factory.mktemp("impatient"), TIMEOUTS) as address:
        yield address


@contextmanager
def connected(address: Address) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=GENEROUS) as made:
        yield made


def rest(connection: socket.socket) -> bytes:
    """What is sent until the connection is closed."""
    received = bytearray()
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return bytes(received)


def exchanged(address: Address, *parts: bytes) -> bytes:
    """What is answered to these bytes until the connection is closed by the server."""
    with connected(address) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return rest(connection)


def problem(answer: bytes) -> tuple[int, str, str]:
    """Status, problem type and detail of the last answer."""
    head, _, body = answer[answer.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert b"content-type: application/problem+json" in head.lower()
    found = json.loads(body)
    return int(head.split(b" ")[1]), found["type"].removeprefix("urn:sluice:"), found["detail"]


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def padded(size: int, head: bytes = HEARTBEAT, end: bytes = b"Connection: close\r\n\r\n") -> bytes:
    """A request whose head has this size."""
    filler = b"X-Filler: \r\n"
    return head + filler[:-2] + b"x" * (size - len(head) - len(filler) - len(end)) + b"\r\n" + end


def test_a_head_of_the_maximum_size_is_read(patient: Address) -> None:
    assert statuses(exchanged(patient, padded(MAX_HEAD_BYTES))) == [200]


def test_a_larger_head_is_refused_with_what_to_do(patient: Address) -> None:
    status, slug, detail = problem(exchanged(patient, padded(MAX_HEAD_BYTES + 1)))
    assert (status, slug) == (431, "request-head-too-large")
    assert str(MAX_HEAD_BYTES) in detail


def test_many_small_headers_are_refused_alike(patient: Address) -> None:
    headers = b"".join(b"X-%d: x\r\n" % number for number in range(10_000))
    assert problem(exchanged(patient, HEARTBEAT + headers + b"\r\n"))[0] == 431


def test_a_head_without_end_is_refused_before_it_is_in_memory(patient: Address) -> None:
    sent = 0
    with connected(patient) as connection:
        connection.sendall(HEARTBEAT + b"X-Filler: ")
        try:
            while sent < 150_000_000:
                sent += connection.send(b"x" * 1_000_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 20_000_000  # what fits into the buffers of both sockets


def test_a_url_that_is_too_long_is_named_as_such(patient: Address) -> None:
    line = b"GET /jobModel?job=" + b"j" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n"
    assert problem(exchanged(patient, line, b"Host: x\r\n\r\n"))[:2] == (414, "url-too-long")


def test_the_second_request_of_a_connection_has_the_same_limit(patient: Address) -> None:
    with connected(patient) as connection:
        connection.sendall(HEARTBEAT + b"\r\n")
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(padded(MAX_HEAD_BYTES, end=b"\r\n"))
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(padded(MAX_HEAD_BYTES + 1, end=b"\r\n"))
        assert problem(rest(connection))[0] == 431


CHUNKED = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_trailers_and_chunk_extensions_have_the_limit_of_a_head(patient: Address) -> None:
    more = b"x" * 2 * MAX_HEAD_BYTES
    assert problem(exchanged(patient, CHUNKED + b"2\r\n{}\r\n0\r\nX-Filler: " + more))[0] == 431
    assert problem(exchanged(patient, CHUNKED + b"2;" + more))[0] == 431


def test_a_body_in_very_small_chunks_is_read(patient: Address) -> None:
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b"[" + b" " * MAX_HEAD_BYTES + b"]")
    answer = exchanged(patient, CHUNKED.replace(b"Host: x", b"Host: x\r\nConnection: close") + body + b"0\r\n\r\n")
    assert statuses(answer) == [422]


def test_a_large_body_in_one_piece_is_read(patient: Address) -> None:
    body = b"[" + b" " * 3_000_000 + b"]"
    head = b"POST /runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    assert statuses(exchanged(patient, head + body)) == [422]


def test_a_connection_that_sends_nothing_is_closed(impatient: Address) -> None:
    assert exchanged(impatient) == b""


def test_a_head_that_does_not_end_is_answered_with_408(impatient: Address) -> None:
    assert problem(exchanged(impatient, HEARTBEAT))[:2] == (408, "request-timeout")


def test_a_head_that_comes_byte_by_byte_is_answered_with_408(impatient: Address) -> None:
    with connected(impatient) as connection:
        stopped = threading.Event()

        def trickle() -> None:
            try:
                connection.sendall(HEARTBEAT + b"X-Slow: ")
                while not stopped.wait(0.02):
                    connection.sendall(b"x")
            except (BrokenPipeError, ConnectionResetError):
                pass

        sender = threading.Thread(target=trickle)
        sender.start()
        answer = rest(connection)
        stopped.set()
        sender.join()
    assert statuses(answer) in ([408], [])  # the reset by bytes that came after the answer can remove it


def test_a_second_head_that_does_not_end_is_answered_with_408(impatient: Address) -> None:
    with connected(impatient) as connection:
        connection.sendall(HEARTBEAT + b"\r\n")
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(b"GET")
        assert problem(rest(connection))[0] == 408


def test_a_second_head_that_begins_before_the_first_answer_is_answered_with_408(impatient: Address) -> None:
    assert statuses(exchanged(impatient, HEARTBEAT + b"\r\nGET")) == [200, 408]


def test_empty_lines_do_not_keep_a_connection_open(impatient: Address) -> None:
    with connected(impatient) as connection:
        connection.sendall(HEARTBEAT + b"\r\n")
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(b"\r\n")
        assert rest(connection) == b""


def test_a_body_that_does_not_end_is_answered_with_408(impatient: Address, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    assert problem(exchanged(impatient, head + b"{"))[:2] == (408, "request-timeout")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_long_poll_may_last_longer_than_a_request_takes_to_arrive(impatient: Address) -> None:
    """The time limits are for what the client sends."""
    url = f"http://{impatient.host}:{impatient.port}"
    run_id = httpx.post(f"{url}/runs", json=run_body()).raise_for_status().json()["runId"]
    answer = httpx.get(f"{url}/runs/{run_id}/notices", params={"after": 1_000_000, "wait": 3 * SHORT.total_seconds()})
    assert answer.status_code == 200
