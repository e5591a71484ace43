"""The server of a container's metrics, and clients that send too much, too slowly or nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from containers.agent.metrics_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, TIMEOUT, MetricsServer, serve_metrics

GENEROUS = 30.0


class Sample(Collector):
    """One sample whose help text has that many bytes."""

    def __init__(self, size: int) -> None:
        self._help = "x" * size
        self.scraped = threading.Event()

    def collect(self) -> Iterable[Metric]:
        self.scraped.set()
        return [GaugeMetricFamily("sample", self._help, 1.0)]


@contextmanager
def serving(timeout: timedelta = TIMEOUT, collector: Collector | None = None) -> Iterator[MetricsServer]:
    made = serve_metrics(collector or Sample(10), "127.0.0.1", 0, "here", timeout)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    with serving() as made:
        yield made


@contextmanager
def connected(server: MetricsServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), GENEROUS) as made:
        yield made


def scraped(server: MetricsServer) -> str:
    answer = httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=GENEROUS)
    assert answer.status_code == 200
    return answer.text


def test_half_open_scrapes_use_few_threads_and_do_not_block_others(server: MetricsServer) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        half_open = [stack.enter_context(connected(server)) for _ in range(100)]  # fewer than wait in the listen queue
        for each in half_open[-MAX_CONNECTIONS:]:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        for each in half_open[: -MAX_CONNECTIONS - 1]:
            assert each.recv(1) == b""
        assert "sample 1.0" in scraped(server)
        assert threading.active_count() <= before + 2 * MAX_CONNECTIONS


def test_a_scrape_that_does_not_end_is_closed() -> None:
    with serving(timedelta(milliseconds=100)) as server, connected(server) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert connection.recv(1) == b""


def test_an_answer_that_the_client_does_not_read_is_abandoned() -> None:
    before = set(threading.enumerate())
    sample = Sample(20_000_000)
    with serving(timedelta(milliseconds=100), sample) as server, connected(server) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert sample.scraped.wait(GENEROUS)
        for each in set(threading.enumerate()) - before:
            if "process_request" in each.name:
                each.join(GENEROUS)
                assert not each.is_alive()


def test_a_large_head_is_refused(server: MetricsServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Filler: " + b"x" * MAX_HEAD_BYTES)
        assert connection.recv(65536).split(b" ")[1] == b"431"


def test_a_head_of_the_maximum_size_is_read(server: MetricsServer) -> None:
    start = b"GET /metrics HTTP/1.0\r\nX-Filler: "
    with connected(server) as connection:
        connection.sendall(start + b"x" * (MAX_HEAD_BYTES - len(start) - 4) + b"\r\n\r\n")
        assert connection.recv(65536).split(b" ")[1] == b"200"


def test_a_client_that_leaves_is_not_an_error(server: MetricsServer, capfd: pytest.CaptureFixture[str]) -> None:
    with connected(server):
        pass
    scraped(server)
    assert capfd.readouterr() == ("", "")


# --- a token -----------------------------------------------------------------------------------------------------------


def scraped_with(server: MetricsServer, authorization: str | None) -> int:
    """The status. httpx refuses to send some of these values."""
    header = b"" if authorization is None else b"Authorization: " + authorization.encode("latin-1") + b"\r\n"
    with connected(server) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n" + header + b"\r\n")
        return int(connection.makefile("rb").readline().split()[1])


def test_scrapes_need_the_token_of_the_file_which_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    server = serve_metrics(Sample(10), "127.0.0.1", 0, "here", token_file=file)
    try:
        assert scraped_with(server, "Bearer first") == 200
        for wrong in (None, "", "first", "Bearer", "Bearer ", "Bearer firs", "Bearer first x", "Basic first", "Bearer \u00e9"):
            assert scraped_with(server, wrong) == 401, wrong
        renewed = tmp_path / "renewed"
        renewed.write_text("second")
        renewed.replace(file)
        assert scraped_with(server, "Bearer first") == 401
        assert scraped_with(server, "bearer second") == 200
        file.unlink()
        assert scraped_with(server, "Bearer second") == 200, "the former token stays"
    finally:
        server.close()


@pytest.mark.parametrize(("text", "status"), [(None, 503), ("", 401)])
def test_without_a_token_to_compare_with_nothing_is_shown(tmp_path: Path, text: str | None, status: int) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    server = serve_metrics(Sample(10), "127.0.0.1", 0, "here", token_file=file)
    try:
        assert scraped_with(server, "Bearer ") == status
    finally:
        server.close()
