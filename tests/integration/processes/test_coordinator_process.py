"""The coordinator as a process: how it starts, refuses to start, and ends."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from coordinator.connections import MOST_CONNECTIONS, OTHER_FILES
from sluice.streams.log import Log
from tests.support.api import run_body
from tests.support.coordinators import GENEROUS, refused, running


def test_the_coordinator_prints_its_address_when_it_chooses_the_port(tmp_path: Path) -> None:
    with running(tmp_path / "home") as coordinator:
        assert coordinator.http.get("/livez").text == "ok"
        assert coordinator.http.get("/readyz").status_code == 200
    assert (tmp_path / "home" / "coordinator.db").is_file()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0)])
def test_a_signal_ends_the_coordinator(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    with running(tmp_path) as coordinator:
        coordinator.process.send_signal(sent)
        assert coordinator.process.wait(GENEROUS) == code


def test_a_poll_for_notices_does_not_prevent_the_coordinator_from_ending(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        Log(tmp_path / "log").create("flights", 1)
        run_id = coordinator.http.post("/runs", json=run_body()).json()["runId"]
        with socket.create_connection(("127.0.0.1", coordinator.port or 0), GENEROUS) as poll:
            poll.sendall(f"GET /runs/{run_id}/notices?wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert coordinator.http.get("/readyz").status_code == 200  # is sent after the poll, which has been read by then
            coordinator.process.terminate()
            coordinator.process.wait(GENEROUS)
            answer = poll.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"notices":[]}')


def test_acknowledged_changes_survive_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        Log(tmp_path / "log").create("flights", 1)
        run_id = coordinator.http.post("/runs", json=run_body()).json()["runId"]
        coordinator.process.kill()
    with running(tmp_path) as coordinator:
        assert coordinator.http.get(f"/runs/{run_id}").json()["state"] == "CREATED"


def test_head_and_a_large_body_work_over_a_socket(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        assert coordinator.http.head("/readyz").status_code == 200
        assert coordinator.http.post("/runs", content=(b" " * 1_000_000 for _ in range(20))).status_code == 413
        assert coordinator.http.get("/livez").text == "ok"


def test_a_request_line_with_raw_bytes_is_answered(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator, socket.create_connection(("127.0.0.1", coordinator.port or 0), GENEROUS) as connection:
        connection.sendall(b"GET /jobModel?job=\xff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = connection.recv(65536)
        assert answer.split(b" ")[1] in (b"400", b"404")


def test_the_coordinator_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    with running(tmp_path / "home", limits="-S -n 256") as coordinator:
        limits = Path(f"/proc/{coordinator.process.pid}/limits").read_text()
        [(soft, hard)] = re.findall(r"Max open files +(\S+) +(\S+)", limits)
        assert int(soft) == min(int(hard), MOST_CONNECTIONS + OTHER_FILES)
        assert "enough for" in coordinator.log.read_text()


def test_at_the_limit_of_open_files_heartbeats_are_answered_and_the_log_names_the_limit(tmp_path: Path) -> None:
    with running(tmp_path / "home", limits="-n 256") as coordinator, ExitStack() as idle:
        assert "this process may open 256 files: enough for about 42 containers" in coordinator.log.read_text()
        coordinator.process.send_signal(signal.SIGSTOP)  # so that it accepts all of them in one burst
        for _ in range(400):
            idle.enter_context(socket.create_connection(("127.0.0.1", coordinator.port or 0), GENEROUS))
        coordinator.process.send_signal(signal.SIGCONT)
        for _ in range(10):
            with httpx.Client(base_url=coordinator.http.base_url, timeout=GENEROUS) as container:
                assert container.get("/containerHeartbeat", params={"executionContainerId": "nobody"}).json() == {"alive": False}
        assert "128 of at most 128 connections are open" in coordinator.log.read_text()


def test_more_connections_than_files_are_refused(tmp_path: Path) -> None:
    assert "max_connections: 10000000 connections need" in refused("--home", str(tmp_path), SLUICE_MAX_CONNECTIONS="10000000")


def test_the_coordinator_does_not_listen_beyond_loopback_by_default(tmp_path: Path) -> None:
    output = refused("--host", "0.0.0.0", "--home", str(tmp_path))
    assert "0.0.0.0 is not loopback" in output
    assert "--insecure" in output


def test_the_coordinator_listens_on_all_addresses_if_that_is_allowed(tmp_path: Path) -> None:
    with running(tmp_path, "--host", "0.0.0.0", "--insecure") as coordinator:
        assert httpx.get(f"http://127.0.0.1:{coordinator.port}/livez").text == "ok"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--lease-seconds", "10", "--heartbeat-seconds", "5"], "lease >= 2 * interval + margin fails"),
        (["--margin-seconds", "0.1", "--grace-seconds", "0.1"], "margin + grace >= kill time + drift fails"),
        (["--lease-seconds", "nan"], ""),
        (["--grace-seconds", "inf"], ""),
        (["--lease-seconds", "-1"], "must be positive"),
        (["--port", "70000"], "port"),
    ],
)
def test_the_refusal_of_an_unsafe_setting_names_it(tmp_path: Path, flags: list[str], named: str) -> None:
    assert named in refused(*flags, "--home", str(tmp_path))


def test_the_error_about_a_home_that_cannot_be_written_names_it() -> None:
    assert "/proc/sluice" in refused("--home", "/proc/sluice/home", "--port", "0")


def test_the_error_about_a_home_that_is_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert str(tmp_path / "home") in refused("--home", str(tmp_path / "home"), "--port", "0")


def test_the_error_about_a_file_that_is_not_a_database_names_it(tmp_path: Path) -> None:
    (tmp_path / "coordinator.db").write_bytes(b"not a database, whatever its name says" * 100)
    assert "coordinator.db" in refused("--home", str(tmp_path), "--port", "0")


def test_the_error_about_a_missing_settings_file_names_it(tmp_path: Path) -> None:
    assert "/lost.toml" in refused("--home", str(tmp_path), SLUICE_CONFIG="/lost.toml")


def test_the_error_about_a_port_in_use_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = refused("--home", str(tmp_path), "--port", str(port))
    assert f"127.0.0.1, port {port}: Address already in use" in output


def test_a_home_has_one_coordinator(tmp_path: Path) -> None:
    elsewhere = f"sqlite+aiosqlite:///{tmp_path / 'elsewhere.db'}"
    with running(tmp_path):
        output = refused("--home", str(tmp_path), "--port", "0", "--database-url", elsewhere)
    assert f"{tmp_path} is in use by another coordinator: stop it, or choose another --home" in output


def test_two_homes_cannot_share_a_database_file(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'shared.db'}"
    with running(tmp_path / "one", "--database-url", url):
        output = refused("--home", str(tmp_path / "two"), "--port", "0", "--database-url", url)
    assert f"Another coordinator uses this database. {tmp_path / 'shared.db'} is in use by another coordinator" in output


@pytest.mark.parametrize(("variable", "setting"), [("SLUICE_HOME", "home"), ("SLUICE_LOG_DIR", "log_dir")])
def test_the_error_about_a_directory_that_cannot_be_created_names_its_setting(tmp_path: Path, variable: str, setting: str) -> None:
    output = refused(**{"SLUICE_HOME": str(tmp_path), variable: "/proc/nope"})
    assert f"The settings cannot be used. {setting}: cannot create the directory /proc/nope" in output
    assert output.endswith(f"or {variable}")
