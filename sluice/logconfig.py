"""Logging of all Sluice processes: to standard error, as text or as one JSON object per line.

A JSON record has `time` (UTC, ISO 8601 with milliseconds), `level`, `logger` and `message`; `exception` (the traceback) if there is one;
the fields of its process (of a container: job, run, processor, container); its context (`about`: task, stage, generation); and `trace_id`
within a trace. Records of libraries are shown from WARNING on, at every level: their details are statements, requests and settings, which
may contain secrets.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from sluice.core.errors import BadSettings

QUIET = (
    *("aioboto3", "aiobotocore", "aiokafka", "aiosqlite", "alembic", "asyncio", "asyncpg", "boto3", "botocore", "httpcore", "httpx"),
    *("py4j", "s3transfer", "sqlalchemy", "urllib3", "uvicorn"),
)

log = logging.getLogger("sluice")


class LogSettings(BaseSettings):
    """Settings of logging. All processes read them from the environment only, so that errors in other settings are logged this way."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore")

    log_format: Literal["text", "json"] = Field("text", description="format of log records on standard error")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field("INFO", description="records below this level are dropped")

    @field_validator("log_format", mode="before")
    @classmethod
    def _lower(cls, given: object) -> object:
        return given.lower() if isinstance(given, str) else given

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, given: object) -> object:
        return given.upper() if isinstance(given, str) else given


def read_log_settings() -> LogSettings:
    """Raises BadSettings, naming the variable."""
    try:
        return LogSettings()
    except ValidationError as error:
        problems = (f"SLUICE_{str(each['loc'][0]).upper()}: {each['msg']}, not {each['input']!r}" for each in error.errors())
        raise BadSettings("; ".join(problems)) from error


_about: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 — the mapping is never changed


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add these fields to records logged in this block, also by asyncio tasks that it starts."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


_trace: ContextVar[str] = ContextVar("trace", default="")


@contextmanager
def traced(trace_id: str) -> Iterator[None]:
    """Add the id of this trace to records logged in this block, also by asyncio tasks that it starts."""
    token = _trace.set(trace_id)
    try:
        yield
    finally:
        _trace.reset(token)


class FieldsFilter(logging.Filter):
    """Adds the fields of the process, those of `about`, and the id of the trace to every record. Fields that a record already has are
    kept."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self.fields = dict(fields)

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in {**self.fields, **_about.get()}.items():
            record.__dict__.setdefault(name, value)
        if trace := _trace.get():
            record.trace_id = trace
        return True


class _UtcTimes(logging.Formatter):
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def converter(self, seconds: float | None) -> time.struct_time:
        return time.gmtime(seconds)


def _visible(text: str) -> str:
    """The text with control characters, also those that change the direction of text or end a line, as escape sequences of Python."""
    return "".join(each if each in "\n\t" or unicodedata.category(each) not in _CONTROL else repr(each)[1:-1] for each in text)


_CONTROL = ("Cc", "Cf", "Zl", "Zp")
"""Unicode's general categories: control, format, line separator, paragraph separator."""


class TextFormatter(_UtcTimes):
    """One line, and the traceback below it. Further lines of a message are indented and control characters are escaped, because a message
    may contain what a client has sent, which must not look like a record of its own or change what a terminal shows."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text, trace = super().formatMessage(record), getattr(record, "trace_id", "")
        text = text.replace("\n", "\n    ")
        return f"{text} [trace {trace}]" if trace else text

    def format(self, record: logging.LogRecord) -> str:
        return _visible(super().format(record))


class JsonLines(JsonFormatter, _UtcTimes):
    """One JSON object per line."""

    _RENAMED: Mapping[str, str] = {
        "asctime": "time",
        "levelname": "level",
        "name": "logger",
        "exc_info": "exception",
        "stack_info": "stack",
    }

    def __init__(self) -> None:
        reserved = {*RESERVED_ATTRS, "taskName", *self._RENAMED.values()}
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=dict(self._RENAMED), reserved_attrs=sorted(reserved)
        )


class StderrHandler(logging.Handler):
    """Reads `sys.stderr` for each record, since a live table may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def new_handler(settings: LogSettings, stamp: FieldsFilter) -> logging.Handler:
    handler = StderrHandler()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextFormatter())
    handler.addFilter(stamp)
    return handler


def configure(settings: LogSettings) -> FieldsFilter:
    """Set up logging, once, at the start of the process. Fields added to the returned `FieldsFilter` are on all later records."""
    stamp = FieldsFilter({})
    logging.basicConfig(level=settings.log_level, handlers=[new_handler(settings, stamp)], force=True)
    for library in QUIET:
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    if settings.log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    return stamp


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    log.critical("uncaught %s", kind.__name__, exc_info=(kind, error or kind(), traceback))


ERROR, REMEDY = "sluice: ", "remedy: "
"""How the lines of `print_final_error` begin."""


def print_final_error(text: str, remedy: str) -> None:
    """Report the error that ends the process, and what to do about it: two lines on standard error, or a log record with the field `remedy`
    if the format is JSON."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        log.error(text, extra={"remedy": remedy})
    else:
        print(f"{ERROR}{_visible(text)}\n{REMEDY}{remedy}", file=sys.stderr)
