"""How the processes of Sluice log: to standard error, as text or as one JSON object a line.

A JSON record has `time` (UTC, ISO 8601 with milliseconds), `level`, `logger` and `message`, where there is one `exception` (the whole
traceback), the fields of its process (a container's: job, run, processor, container), and what it is about (`about`: task, stage,
generation). Libraries that Sluice is made of are heard from WARNING up at every level: what they tell of in detail are statements,
requests and settings, with whatever is secret in them.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal

from pydantic import ValidationError, field_validator
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
    """From the environment alone, and alike for all processes, so that even the refusal of other settings is logged as it is wanted."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore")

    log_format: Literal["text", "json"] = "text"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"

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
        told = (f"SLUICE_{str(each['loc'][0]).upper()}: {each['msg']}, not {each['input']!r}" for each in error.errors())
        raise BadSettings("; ".join(told)) from error


_about: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 — a mapping that nobody changes


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Records logged in this block, also in the asyncio tasks that it starts, carry these fields."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


class Stamp(logging.Filter):
    """Puts on every record the fields of the process, which may become more, and those of `about`. What a record has already stands."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self.fields = dict(fields)

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in {**self.fields, **_about.get()}.items():
            record.__dict__.setdefault(name, value)
        return True


class _UtcTimes(logging.Formatter):
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def converter(self, seconds: float | None) -> time.struct_time:
        return time.gmtime(seconds)


class TextFormatter(_UtcTimes):
    """For people: a line, and the traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(JsonFormatter, _UtcTimes):
    """For machines: one object a line, whatever is in it."""

    _RENAMED: Mapping[str, str] = {
        "asctime": "time",
        "levelname": "level",
        "name": "logger",
        "exc_info": "exception",
        "stack_info": "stack",
    }

    def __init__(self) -> None:
        ours = {*RESERVED_ATTRS, "taskName", *self._RENAMED.values()}
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=dict(self._RENAMED), reserved_attrs=sorted(ours))


class ToStandardError(logging.Handler):
    """Looks standard error up for each record: what has taken its place, such as a live table, gets the line."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def new_handler(settings: LogSettings, stamp: Stamp) -> logging.Handler:
    handler = ToStandardError()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextFormatter())
    handler.addFilter(stamp)
    return handler


def configure(settings: LogSettings) -> Stamp:
    """Set up logging for this process, once, at its start; what is put into the answer's fields is on every record from then on."""
    stamp = Stamp({})
    logging.basicConfig(level=settings.log_level, handlers=[new_handler(settings, stamp)], force=True)
    for library in QUIET:
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    if settings.log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda told: _log_uncaught(told.exc_type, told.exc_value, told.exc_traceback)
    return stamp


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    log.critical("uncaught %s", kind.__name__, exc_info=(kind, error or kind(), traceback))


def last_words(text: str) -> None:
    """What a process says when it ends because of an error: one line for a person, or a record where records are JSON."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        log.error(text)
    else:
        print(f"sluice: {text}", file=sys.stderr)
