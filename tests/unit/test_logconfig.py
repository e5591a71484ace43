"""Log messages as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest

from sluice.core.errors import BadSettings
from sluice.logconfig import FieldsFilter, LogSettings, about, new_handler, print_final_error, read_log_settings

New = Callable[..., logging.Logger]
JSON = LogSettings(log_format="json", log_level="INFO")
TEXT = LogSettings(log_format="text", log_level="INFO")


@pytest.fixture
def new_log(request: pytest.FixtureRequest) -> Iterator[New]:
    """A logger of this test only."""
    log = logging.getLogger(f"tests.{request.node.name}")
    log.propagate = False
    log.setLevel("INFO")

    def of(settings: LogSettings = JSON, **fields: object) -> logging.Logger:
        log.addHandler(new_handler(settings, FieldsFilter(fields)))
        return log

    yield of
    log.handlers.clear()


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_record_with_any_message_is_one_object_on_one_line(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    new_log().warning('two\nlines, a "quote", %s and \x1b[31m\udcff', "é")
    (record,) = logged(capsys)
    assert record["message"] == 'two\nlines, a "quote", é and \x1b[31m\udcff'
    assert record["level"] == "WARNING"
    assert record["logger"].startswith("tests.")


def test_further_lines_of_a_message_do_not_look_like_records(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    new_log(TEXT).warning("refused: %s", "x\r\n2026-03-01T12:00:00.000Z INFO coordinator: all is well")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("refused: x\\r")
    assert second == "    2026-03-01T12:00:00.000Z INFO coordinator: all is well"


def test_a_message_does_not_control_a_terminal(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    hostile, shown = "\x1b]0;x\x07\u202eabc\x9b2J\tz\u2028", "\\x1b]0;x\\x07\\u202eabc\\x9b2J\tz\\u2028"
    log = new_log(TEXT)
    log.warning("name %s of é \U0001f600", hostile)
    assert capsys.readouterr().err.endswith(f"name {shown} of é \U0001f600\n")
    log.error("failed", exc_info=ValueError(hostile))
    assert capsys.readouterr().err.endswith(f"\nValueError: {shown}\n")
    print_final_error(hostile, "wait")
    assert capsys.readouterr().err.splitlines()[0].endswith(shown)


def test_times_are_utc_with_milliseconds(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    log = new_log()
    record = log.makeRecord(log.name, logging.INFO, "f", 1, "noon", (), None)
    record.created, record.msecs = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() + 0.0071, 7.1
    log.handle(record)
    assert logged(capsys)[0]["time"] == "2026-03-01T12:00:00.007Z"


def test_an_exception_is_one_field(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    log = new_log()
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        log.exception("it failed")
    (record,) = logged(capsys)
    assert record["message"] == "it failed"
    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert record["exception"].endswith("ValueError: of two\nlines")


def test_extra_fields_are_logged_and_cannot_replace_standard_fields(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    new_log(run="r1").info("hello", extra={"rows": 3, "odd": object(), "time": "never", "level": "none"})
    (record,) = logged(capsys)
    assert record["rows"] == 3
    assert "object object" in record["odd"]
    assert record["level"] == "INFO"
    assert record["time"].startswith("20")


def test_every_record_has_the_fields_of_its_process_and_of_its_context(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    log = new_log(run="r1", processor="0")
    with about(task="Partition 0"):
        with about(stage="route", generation=3):
            log.info("inner")
        log.info("outer", extra={"task": "Partition 7"})
    log.info("none")
    inner, outer, none = logged(capsys)
    assert {"run": "r1", "processor": "0", "task": "Partition 0", "stage": "route", "generation": 3}.items() <= inner.items()
    assert (outer["task"], "stage" in outer) == ("Partition 7", False)
    assert none.keys() == {"time", "level", "logger", "message", "run", "processor"}


async def test_asyncio_tasks_inherit_the_fields_of_their_creator(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    log = new_log()

    async def work(stage: str) -> None:
        with about(stage=stage):
            await asyncio.sleep(0)
            log.info("working")

    with about(task="Partition 0"):
        await asyncio.gather(work("route"), work("hourly"))
    assert {(each["task"], each["stage"]) for each in logged(capsys)} == {("Partition 0", "route"), ("Partition 0", "hourly")}


def test_text_is_a_line_for_people(new_log: New, capsys: pytest.CaptureFixture[str]) -> None:
    with about(task="Partition 0"):
        new_log(TEXT).info("hello %s", "you")
    time, level, logger, *rest = capsys.readouterr().err.split()
    assert datetime.fromisoformat(time).utcoffset() is not None
    assert (level, logger.startswith("tests."), rest) == ("INFO", True, ["hello", "you"])


def test_a_replacement_of_standard_error_gets_the_records(new_log: New, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(TEXT)
    monkeypatch.setattr(sys, "stderr", StringIO())
    log.info("hello")
    assert isinstance(sys.stderr, StringIO)
    assert sys.stderr.getvalue().endswith("hello\n")


def test_settings_may_be_spelled_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_LOG_FORMAT", "JSON")
    monkeypatch.setenv("SLUICE_LOG_LEVEL", "debug")
    assert read_log_settings() == LogSettings(log_format="json", log_level="DEBUG")


@pytest.mark.parametrize(("variable", "value"), [("SLUICE_LOG_FORMAT", "xml"), ("SLUICE_LOG_LEVEL", "LOUD"), ("SLUICE_LOG_LEVEL", "")])
def test_a_bad_value_is_refused_by_the_variables_name(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings, match=f"{variable}.*not '{value}'"):
        read_log_settings()
