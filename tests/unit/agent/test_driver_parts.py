"""Small parts of the driver process: its pipe to the watchdog, and parsing of the offsets that sources report."""

from __future__ import annotations

import os
from pathlib import Path
from select import PIPE_BUF

import pytest

from containers.agent.lifecycle import ExitReason
from containers.driver import WatchdogPipe, main
from containers.state.offsets.offsetlog import positions_of
from sluice.core.ids import Instant, Ssp, StreamId

FLIGHTS, CARRIERS = StreamId("log", "flights"), StreamId("kafka", "by.carrier")


def test_a_renewal_is_one_line_with_every_digit() -> None:
    read_fd, write_fd = os.pipe()
    pipe = WatchdogPipe(write_fd)
    pipe.renewed(Instant(0.1 + 0.2))
    pipe.renewed(Instant(31.0))
    assert os.read(read_fd, 1000) == b"lease 0.30000000000000004\nlease 31.0\n"
    os.close(read_fd)
    os.close(write_fd)


def test_heartbeats_continue_without_the_watchdog() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    pipe = WatchdogPipe(write_fd)
    pipe.renewed(Instant(1.0))
    pipe.renewed(Instant(2.0))
    os.close(write_fd)


def test_a_watchdog_that_does_not_read_never_blocks_heartbeats_and_gets_the_next_renewal() -> None:
    read_fd, write_fd = os.pipe()
    pipe = WatchdogPipe(write_fd)
    for n in range(10_000):
        pipe.renewed(Instant(1000.0 + n))
    assert os.read(read_fd, 1 << 20).startswith(b"lease 1000.0\nlease 1001.0\n")
    pipe.renewed(Instant(5.0))
    assert os.read(read_fd, 65536).endswith(b"lease 5.0\n")
    os.close(read_fd)
    os.close(write_fd)


def test_a_driver_without_a_watchdog_reports_to_none() -> None:
    WatchdogPipe(None).renewed(Instant(1.0))
    WatchdogPipe(None).exiting(ExitReason(0, "stop requested"))


def test_a_last_report_is_one_line_for_any_reason() -> None:
    read_fd, write_fd = os.pipe()
    WatchdogPipe(write_fd).exiting(ExitReason(1, "first\nsecond \ud800"))
    assert os.read(read_fd, 1000) == b"end 1 first\0second ?\n"
    os.close(read_fd)
    os.close(write_fd)


def test_a_last_report_fits_into_one_write_of_a_pipe() -> None:
    read_fd, write_fd = os.pipe()
    WatchdogPipe(write_fd).exiting(ExitReason(1, "ü" * 10_000))
    output = os.read(read_fd, 1 << 20)
    assert len(output) <= PIPE_BUF
    assert (output[:6], output[-1:], output.count(b"\n")) == (b"end 1 ", b"\n", 1)
    os.close(read_fd)
    os.close(write_fd)


def test_a_driver_without_a_run_id_fails_before_it_starts_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLUICE_RUN_ID", raising=False)
    assert main(tmp_path / "job.py") == 1


def test_offsets_of_every_source_of_a_stage_are_read() -> None:
    spelled = ['{"flights": {"0": 7, "11": 0}}', '{"by.carrier": {"3": 9}}']
    assert positions_of(spelled, [FLIGHTS, CARRIERS]) == {
        Ssp("log", "flights", 0): 7,
        Ssp("log", "flights", 11): 0,
        Ssp("kafka", "by.carrier", 3): 9,
    }


@pytest.mark.parametrize("spelled", ["-", "42", "null", "[1]", '{"logOffset": 3}', '{"flights": 5}', '{"others": {"0": 7}}'])
def test_offsets_of_sources_of_other_kinds_are_left_out(spelled: str) -> None:
    assert positions_of([spelled, '{"flights": {"0": 7}}'], [FLIGHTS]) == {Ssp("log", "flights", 0): 7}
