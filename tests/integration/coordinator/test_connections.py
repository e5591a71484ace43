"""Connections that send too much, too slowly or nothing: what the coordinator's server does with them, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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

pytestmark = pytest.mark.real_time

GENEROUS = 300.0
SHORT = timedelta(milliseconds=200)
TIMEOUTS = Timeouts(head=SHORT, body=SHORT, read=SHORT)
HEARTBEAT = b"GET /containerHeartbeat?executionContainerId=nobody HTTP/1.1\r\nHost: localhost\r\n"
AT_ONCE = b"GET /containerHeartbeat?executionContainerId=c1 HTTP/1.1\r\nHost: localhost\r\nSluice-Epoch: 1\r\n"
"""Of a valid container. The server answers it without the application."""

either_heartbeat = pytest.mark.parametrize("heartbeat", [HEARTBEAT, AT_ONCE], ids=["application", "at once"])


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
        address = Address(*listening.getsockname())
        register(address)
        yield address
    finally:
        coordinator.should_exit = True
        thread.join()


def register(address: Address) -> None:
    """Register c1 as a valid container, with a Host header that later requests repeat."""
    url = f"http://{address.host}:{address.port}"
    run_id = httpx.post(f"{url}/runs", json=run_body(), timeout=GENEROUS).raise_for_status().json()["runId"]
    body = {"executionContainerId": "c1", "processorId": "0", "host": "h"}
    httpx.post(f"{url}/runs/{run_id}/containers", json=body, headers={"Host": "localhost"}, timeout=GENEROUS).raise_for_status()


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


def test_a_larger_head_is_refused_and_the_error_names_a_remedy(patient: Address) -> None:
    status, slug, detail = problem(exchanged(patient, padded(MAX_HEAD_BYTES + 1)))
    assert (status, slug) == (431, "request-head-too-large")
    assert str(MAX_HEAD_BYTES) in detail


def test_many_small_headers_are_refused_in_the_same_way(patient: Address) -> None:
    headers = b"".join(b"X-%d: x\r\n" % number for number in range(10_000))
    assert problem(exchanged(patient, HEARTBEAT + headers + b"\r\n"))[0] == 431


def test_a_head_without_end_is_refused_before_it_fills_the_memory(patient: Address) -> None:
    sent = 0
    with connected(patient) as connection:
        connection.sendall(HEARTBEAT + b"X-Filler: ")
        try:
            while sent < 150_000_000:
                sent += connection.send(b"x" * 1_000_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 20_000_000  # what fits into the buffers of both sockets


def test_a_url_that_is_too_long_is_refused_with_its_own_error(patient: Address) -> None:
    line = b"GET /jobModel?job=" + b"j" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n"
    assert problem(exchanged(patient, line, b"Host: localhost\r\n\r\n"))[:2] == (414, "url-too-long")


def test_the_second_request_of_a_connection_has_the_same_limit(patient: Address) -> None:
    with connected(patient) as connection:
        connection.sendall(HEARTBEAT + b"\r\n")
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(padded(MAX_HEAD_BYTES, end=b"\r\n"))
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(padded(MAX_HEAD_BYTES + 1, end=b"\r\n"))
        assert problem(rest(connection))[0] == 431


CHUNKED = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_trailers_and_chunk_extensions_have_the_limit_of_a_head(patient: Address) -> None:
    more = b"x" * 2 * MAX_HEAD_BYTES
    assert problem(exchanged(patient, CHUNKED + b"2\r\n{}\r\n0\r\nX-Filler: " + more))[0] == 431
    assert problem(exchanged(patient, CHUNKED + b"2;" + more))[0] == 431


def test_a_body_in_very_small_chunks_is_read(patient: Address) -> None:
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b"[" + b" " * MAX_HEAD_BYTES + b"]")
    answer = exchanged(patient, CHUNKED.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close") + body + b"0\r\n\r\n")
    assert statuses(answer) == [422]


def test_a_large_body_in_one_piece_is_read(patient: Address) -> None:
    body = b"[" + b" " * 3_000_000 + b"]"
    head = (
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    assert statuses(exchanged(patient, head + body)) == [422]


POST = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"


@pytest.mark.parametrize("length", [b"9" * 30, b"9" * 5000, b"-1", b"1e9", b"+2", b"2, 2", b"0x2"])
def test_a_length_that_is_not_a_number_of_bytes_is_refused(patient: Address, length: bytes) -> None:
    assert statuses(exchanged(patient, POST + b"Content-Length: " + length + b"\r\n\r\n{}")) == [400]


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10**12, (4 << 20) + 1])
def test_a_body_of_an_announced_length_beyond_the_limit_is_refused_before_it_is_sent(patient: Address, length: int) -> None:
    assert problem(exchanged(patient, POST + b"Content-Length: %d\r\n\r\n" % length))[:2] == (413, "body-too-large")


@pytest.mark.parametrize("path", [b"/runs", b"/drain", b"/ui/login"])
def test_a_body_in_chunks_is_refused_when_it_reaches_the_limit(patient: Address, path: bytes) -> None:
    piece = b"x" * (1 << 20)
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece)] * 5
    answer = exchanged(patient, POST.replace(b"/runs", path) + b"Transfer-Encoding: chunked\r\n\r\n", *chunks)
    assert statuses(answer) in ([413], [])  # the answer is lost if the connection is reset while more is being sent


def test_a_chunk_without_a_valid_size_is_refused(patient: Address) -> None:
    for size in (b"f" * 17, b"-1", b"x"):
        assert statuses(exchanged(patient, POST + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\nabc")) == [400]


@pytest.mark.parametrize("depth", [900, 980, 990, 1000, 100_000])
def test_deeply_nested_json_is_refused_regardless_of_its_contents(patient: Address, depth: int) -> None:
    for leaf in (b"1", b'"\\u0061"', b'"\\ud800"'):
        for form in (b"%b", b'{"config": {"a": %b}}'):
            body = form % (b"[" * depth + leaf + b"]" * depth)
            (status,) = statuses(exchanged(patient, POST + b"Content-Length: %d\r\n\r\n" % len(body), body))
            assert status in (400, 422), (leaf, form)


def test_a_connection_that_sends_nothing_is_closed(impatient: Address) -> None:
    assert exchanged(impatient) == b""


def test_a_head_that_does_not_end_is_answered_with_408(impatient: Address) -> None:
    assert problem(exchanged(impatient, HEARTBEAT))[:2] == (408, "request-timeout")


def test_a_head_that_arrives_byte_by_byte_is_answered_with_408(impatient: Address) -> None:
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


@either_heartbeat
def test_a_second_head_that_does_not_end_is_answered_with_408(impatient: Address, heartbeat: bytes) -> None:
    with connected(impatient) as connection:
        connection.sendall(heartbeat + b"\r\n")
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(b"GET")
        assert problem(rest(connection))[0] == 408


@either_heartbeat
def test_a_second_head_that_begins_before_the_first_answer_is_answered_with_408(impatient: Address, heartbeat: bytes) -> None:
    assert statuses(exchanged(impatient, heartbeat + b"\r\nGET")) == [200, 408]


@either_heartbeat
def test_empty_lines_do_not_keep_a_connection_open(impatient: Address, heartbeat: bytes) -> None:
    with connected(impatient) as connection:
        connection.sendall(heartbeat + b"\r\n")
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(b"\r\n")
        assert rest(connection) == b""


@either_heartbeat
def test_an_idle_connection_is_closed_regardless_of_its_number_of_requests(tmp_path: Path, heartbeat: bytes) -> None:
    with serving(tmp_path, Timeouts(idle=timedelta(seconds=1))) as address, connected(address) as connection:
        for _ in range(3):
            connection.sendall(heartbeat + b"\r\n")
            assert statuses(connection.recv(65536)) == [200]
        assert rest(connection) == b""


def test_a_heartbeat_on_the_fast_path_gets_the_same_answer_as_from_the_application(patient: Address) -> None:
    def answer(more: bytes) -> tuple[list[bytes], bytes]:
        head, _, body = exchanged(patient, AT_ONCE + more + b"\r\n", HEARTBEAT + b"Connection: close\r\n\r\n").partition(b"\r\n\r\n")
        return sorted(line for line in head.lower().split(b"\r\n") if not line.startswith(b"date: ")), body.partition(b"HTTP/1.1")[0]

    by_the_application = b"Content-Length: 0\r\n"
    assert answer(b"") == answer(by_the_application)
    close = b"Connection: close\r\n"
    assert answer(close) == answer(close + by_the_application)
    assert b"connection: close" in answer(close)[0]
    assert statuses(exchanged(patient, AT_ONCE.replace(b"1.1", b"1.0") + b"\r\n")) == [200]


def test_requests_that_are_sent_together_are_answered_in_order(patient: Address) -> None:
    """Heartbeats before and after a request that the application answers."""
    other = b"GET /unknown HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = AT_ONCE + b"Connection: close\r\n\r\n"
    assert statuses(exchanged(patient, (AT_ONCE + b"\r\n") * 2 + other + AT_ONCE + b"\r\n" + other + last)) == [
        200,
        200,
        404,
        200,
        404,
        200,
    ]


def test_a_body_that_does_not_end_is_answered_with_408(impatient: Address) -> None:
    head = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    assert problem(exchanged(impatient, head + b"{"))[:2] == (408, "request-timeout")


def test_a_long_poll_may_last_longer_than_the_time_limit_for_requests(impatient: Address) -> None:
    """The time limits are for what the client sends."""
    url = f"http://{impatient.host}:{impatient.port}"
    run_id = httpx.post(f"{url}/runs", json=run_body()).raise_for_status().json()["runId"]
    answer = httpx.get(f"{url}/runs/{run_id}/notices", params={"after": 1_000_000, "wait": 3 * SHORT.total_seconds()})
    assert answer.status_code == 200


def test_an_answer_that_is_not_read_does_not_hold_the_connection(impatient: Address) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(GENEROUS)
        connection.connect(impatient)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        before = refused(impatient, "timeout")
        eventually(lambda: refused(impatient, "timeout") > before)


def metric(address: Address, name: str) -> float:
    text = httpx.get(f"http://{address.host}:{address.port}/metrics", timeout=GENEROUS).text
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + " ")))


def refused(address: Address, reason: str) -> float:
    return metric(address, f'sluice_connections_refused_total{{reason="{reason}"}}')


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GENEROUS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


LIMIT = 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Address]:
    """A coordinator with few connections."""
    with serving(tmp_path, Timeouts(), max_connections=LIMIT) as address:
        yield address


def beat(connection: socket.socket, heartbeat: bytes = HEARTBEAT) -> int:
    connection.sendall(heartbeat + b"\r\n")
    return statuses(connection.recv(65536))[0]


@contextmanager
def polling(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Connections with a long poll each, all of which are being answered."""
    run_id = httpx.post(f"http://{address.host}:{address.port}/runs", json=run_body()).raise_for_status().json()["runId"]
    poll = f"GET /runs/{run_id}/notices?after=1000000&wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with ExitStack() as stack:
        made = [stack.enter_context(connected(address)) for _ in range(count)]
        for each in made:
            each.sendall(poll)
        yield made


def test_idle_connections_are_closed_for_new_ones_the_oldest_first(small: Address) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(small)) for _ in range(3 * LIMIT)]
        with connected(small) as connection:
            assert beat(connection) == 200
        assert rest(idle[0]) == b""
        assert beat(idle[-1]) == 200
    assert metric(small, "sluice_connections_limit") == LIMIT
    assert metric(small, "sluice_connections_open") <= LIMIT
    assert refused(small, "idle") >= 2 * LIMIT


@either_heartbeat
def test_a_connection_with_heartbeats_is_kept_while_others_are_closed_for_new_ones(small: Address, heartbeat: bytes) -> None:
    with ExitStack() as stack, connected(small) as connection:
        assert beat(connection, heartbeat) == 200
        for _ in range(3 * LIMIT):
            stack.enter_context(connected(small))
        assert beat(connection, heartbeat) == 200


def test_heartbeats_and_probes_are_answered_during_a_flood_of_long_polls(small: Address) -> None:
    with polling(small, LIMIT - 4) as polls, connected(small) as other, connected(small) as container:
        eventually(lambda: metric(small, "sluice_connections_open") >= LIMIT - 4)
        other.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert problem(rest(other))[:2] == (503, "too-many-requests")
        assert beat(container) == 200
        assert httpx.get(f"http://{small.host}:{small.port}/livez").status_code == 200
        assert refused(small, "limit") == 1
        polls[0].close()
        eventually(lambda: httpx.get(f"http://{small.host}:{small.port}/jobs").status_code == 200)


def test_a_limit_for_each_address_closes_idle_connections_of_that_address(tmp_path: Path) -> None:
    with serving(tmp_path, Timeouts(), max_connections=100, max_connections_per_peer=LIMIT) as address, ExitStack() as stack:
        elsewhere = stack.enter_context(socket.create_connection(address, GENEROUS, ("127.0.0.2", 0)))
        here = [stack.enter_context(connected(address)) for _ in range(2 * LIMIT)]
        assert rest(here[0]) == b""
        assert beat(here[-1]) == 200
        assert beat(elsewhere) == 200
        assert metric(address, "sluice_connections_open") <= LIMIT + 1
