"""OpenTelemetry traces, sent to the OTLP/HTTP collector of `SLUICE_OTLP_ENDPOINT`. Off by default: then OpenTelemetry is not imported.

Traced code uses `span`. Programs call `configure` at their start, and `shutdown` if they end without `atexit`. A collector that does not
answer delays nothing: spans wait in a bounded queue, and are dropped when it is full.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime, timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sluice import logconfig
from sluice.core.errors import BadSettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

ENDPOINT = "SLUICE_OTLP_ENDPOINT"

TRACEPARENT = "traceparent"
"""Header of W3C Trace Context."""

QUEUE = 2048
"""Maximum number of spans that wait to be sent."""

SHUTDOWN = timedelta(seconds=2)
"""How long `shutdown` waits for the collector."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class TraceSettings(BaseSettings):
    """Settings of traces. All processes read them from the environment only."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore")

    otlp_endpoint: str = Field(
        "", description="URL of an OTLP/HTTP collector that gets traces, without /v1/traces; needs the extra `tracing`. Default: no traces"
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_url(cls, given: str) -> str:
        if given and not _is_endpoint(given):
            raise ValueError("an http:// or https:// URL without a query is needed, as in http://collector:4318")
        return given


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:  # an invalid port or address
        return False


def read_trace_settings() -> TraceSettings:
    """Raises BadSettings, naming the variable. The value is not shown, because it may contain a password."""
    try:
        return TraceSettings()
    except ValidationError as error:
        raise BadSettings("; ".join(f"{ENDPOINT}: {each['msg']}" for each in error.errors())) from error


class _Exporter:
    """Logs once when the collector stops to take spans, and once when it takes them again."""

    def __init__(self, exporter: SpanExporter, shown: str) -> None:
        self._exporter = exporter
        self._shown = shown
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failing = result.name != "SUCCESS"
        if failing and not self._failing:
            log.warning("the collector %s does not take spans; they are dropped", self._shown)
        elif self._failing and not failing:
            log.info("the collector %s takes spans again", self._shown)
        self._failing = failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _Tracing:
    def __init__(self, endpoint: str, service: str, attributes: Mapping[str, str]) -> None:
        """Raises BadSettings if OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise BadSettings(
                f"{ENDPOINT} is set, but OpenTelemetry is not installed: install sluice-spark[tracing], or unset {ENDPOINT}"
            ) from error
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `_Exporter` logs failures, once
        parts = urlsplit(endpoint)
        where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        headers = {} if parts.username is None else {"authorization": _basic(unquote(parts.username), unquote(parts.password or ""))}
        exporter = OTLPSpanExporter(f"{where}/v1/traces", headers=headers or None, timeout=10)

        class Ids(RandomIdGenerator):
            """Random ids, but for the roots of the traces of subjects."""

            def generate_trace_id(self) -> int:
                wanted = _root_ids.get()
                return super().generate_trace_id() if wanted is None else wanted.trace_id

            def generate_span_id(self) -> int:
                wanted = _root_ids.get()
                return super().generate_span_id() if wanted is None else wanted.span_id

        resource = Resource.create({"service.name": service, **attributes})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=Ids())
        self._provider.add_span_processor(
            BatchSpanProcessor(_Exporter(exporter, where), max_queue_size=QUEUE, schedule_delay_millis=1000)  # type: ignore[arg-type]
        )
        self._tracer = self._provider.get_tracer("sluice")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str | int], context: Context | None = None) -> Iterator[None]:
        with (
            self._tracer.start_as_current_span(name, context, attributes=attributes) as made,
            logconfig.traced(f"{made.get_span_context().trace_id:032x}"),
        ):
            yield

    @property
    def headers(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        self._propagator.inject(found)
        return found

    def continued(self, traceparent: str, name: str) -> AbstractContextManager[None]:
        from opentelemetry.context import Context

        return self.span(name, {}, self._propagator.extract({TRACEPARENT: traceparent}, Context()))

    def new_trace(self, name: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[None]:
        from opentelemetry.context import Context

        return self.span(name, attributes, Context())

    def part_of(self, subject: str, name: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[None]:
        return self.span(name, attributes, self._context_of(subject))

    def record(
        self, subject: str, name: str, started: datetime, ended: datetime, attributes: Mapping[str, str | int], *, root: bool
    ) -> None:
        from opentelemetry.context import Context

        token = _root_ids.set(_ids_of(subject) if root else None)
        try:
            context = Context() if root else self._context_of(subject)
            made = self._tracer.start_span(name, context, attributes=attributes, start_time=_nanoseconds(started))
        finally:
            _root_ids.reset(token)
        made.end(_nanoseconds(ended))

    def _context_of(self, subject: str) -> Context:
        from opentelemetry.context import Context

        ids = _ids_of(subject)
        return self._propagator.extract({TRACEPARENT: f"00-{ids.trace_id:032x}-{ids.span_id:016x}-01"}, Context())

    def shutdown(self) -> None:
        """Send what waits, for at most SHUTDOWN."""
        ending = threading.Thread(target=self._provider.shutdown, name="sluice-traces", daemon=True)
        ending.start()
        ending.join(SHUTDOWN.total_seconds())


class _RootIds(NamedTuple):
    trace_id: int
    span_id: int


_root_ids: ContextVar[_RootIds | None] = ContextVar("root_ids", default=None)
"""The ids of the span that is being started, if they must not be random."""


def _ids_of(subject: str) -> _RootIds:
    """The same in every process, so that all parts of a subject are in one trace."""
    digest = sha256(subject.encode()).digest()
    return _RootIds(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000


def _basic(user: str, password: str) -> str:
    from base64 import b64encode

    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


_tracing: _Tracing | None = None


def configure(service: str, **attributes: str) -> None:
    """Send the traces of this process, if `SLUICE_OTLP_ENDPOINT` is set. Call it once, at the start. Raises BadSettings."""
    global _tracing  # noqa: PLW0603 — one for the process, as loggers are
    endpoint = read_trace_settings().otlp_endpoint
    if endpoint and _tracing is None:
        _tracing = _Tracing(endpoint, service, attributes)
        atexit.register(shutdown)


def shutdown() -> None:
    """Send the spans that wait, for at most SHUTDOWN. Idempotent."""
    global _tracing
    ended, _tracing = _tracing, None
    if ended is not None:
        ended.shutdown()


def is_on() -> bool:
    return _tracing is not None


def span(name: str, **attributes: str | int) -> AbstractContextManager[None]:
    """A part of the current trace, or a new trace if there is none."""
    return nullcontext() if _tracing is None else _tracing.span(name, attributes)


def new_trace(name: str, **attributes: str | int) -> AbstractContextManager[None]:
    """A new trace, also within a task that was started in another one."""
    return nullcontext() if _tracing is None else _tracing.new_trace(name, attributes)


def continued(traceparent: str, name: str) -> AbstractContextManager[None]:
    """A part of the trace that a request with this header belongs to; a new trace if the header is invalid."""
    return nullcontext() if _tracing is None else _tracing.continued(traceparent, name)


def part_of(subject: str, name: str, **attributes: str | int) -> AbstractContextManager[None]:
    """A part of the trace of a subject that several processes work on, such as "drain UUID". Its root is recorded with `record_whole`."""
    return nullcontext() if _tracing is None else _tracing.part_of(subject, name, attributes)


def record_part(subject: str, name: str, started: datetime, ended: datetime, **attributes: str | int) -> None:
    """Add a part that is over to the trace of a subject."""
    if _tracing is not None:
        _tracing.record(subject, name, started, ended, attributes, root=False)


def record_whole(subject: str, name: str, started: datetime, ended: datetime, **attributes: str | int) -> None:
    """Add the root of the trace of a subject, when all is over."""
    if _tracing is not None:
        _tracing.record(subject, name, started, ended, attributes, root=True)


def drain_subject(uuid: str) -> str:
    return f"drain {uuid}"


def version_subject(run_id: str, version: int) -> str:
    """Of a version of the job model, while this run is the job's current one."""
    return f"version {version} of {run_id}"


def headers() -> Mapping[str, str]:
    """The headers of a request that belongs to the current trace; none outside of traces."""
    return NO_HEADERS if _tracing is None else _tracing.headers
