"""What all HTTP bodies share, and the names of headers. Names on the wire are camelCase; unknown fields of requests are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
)
from pydantic import (
    FailFast as PydanticFailFast,
)
from pydantic.alias_generators import to_camel

from sluice.core.ids import Ssp
from sluice.core.text import HOST_AND_PORT as HOST_AND_PORT

EPOCH_HEADER = "Sluice-Epoch"
LEASE_HEADER = "Sluice-Lease-Seconds"
NEXT_HEADER = "Sluice-Next-Heartbeat-Seconds"
MODEL_VERSION_HEADER = "Sluice-Job-Model-Version"
ADOPTED_VERSION_HEADER = "Sluice-Adopted-Version"
"""The version of the job model that the container has reported as adopted, if it is older than that of the run."""
RUN_HEADER = "Sluice-Run-Id"
TERM_HEADER = "Sluice-Term"
"""On answers: the term of the coordinator. On requests: the highest term that the client knows."""
RUN_STATE_HEADER = "Sluice-Run-State"
REPLACES_HEADER = "Sluice-Replaces"
ACTOR_HEADER = "Sluice-Actor"
"""The user who makes the request; stored with the job-model version that it creates."""

RUN_RECORD_HEADER = "sluice-run"
"""On every record of an intermediate stream: the first run of the history that wrote it. Readers skip records of other histories."""

CONTROL_RECORD_HEADER = "sluice-control"
"""On control records, which are never passed to user code."""

DRAIN_RECORD_HEADER = "sluice-drain"
"""On every record that a stage writes during a drain, by its last batches or its flush: the drain's id. Readers of intermediate streams
skip records of failed drains."""

HeaderList = Sequence[tuple[bytes, bytes]]


def header_lines(headers: HeaderList) -> bytes:
    """The headers as they are in an HTTP/1.1 message."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)


Name = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
StreamName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^(\.?[A-Za-z0-9_-]|\.\.[A-Za-z0-9._-])[A-Za-z0-9._-]*$")]
"""Kafka's rule for names of topics: any of these characters, but not "." and ".."."""


class FailFast(PydanticFailFast):
    """Of a sequence only the first wrong element is described: a request may have very many. Hashable, for members of unions."""

    __hash__ = object.__hash__


def at_most(length: int) -> Callable[[Any], Any]:
    """A validator of an object's size, before its fields are validated: `max_length` counts valid fields only."""

    def check(given: Any) -> Any:
        if isinstance(given, Mapping) and len(given) > length:
            raise ValueError(f"it has {len(given)} fields, and may have {length}")
        return given

    return check


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError("the time is outside the years 1 to 9999 in UTC") from error


Utc = Annotated[datetime, AfterValidator(_in_utc)]
NO_NUL = r"^[^\x00]*$"
"""Pattern of all text: PostgreSQL cannot store NUL."""
Count = Annotated[int, Field(ge=1, le=100_000)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[int, Field(ge=0, lt=2**31)]
OperatorText = Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
IdentityText = Annotated[str, Field(min_length=1, max_length=2000, pattern=NO_NUL)]
StepName = Literal["stopped", "flushing", "flushed", "committed"]
"""Steps of a stage in a drain, see `sluice.core.drain.Step`."""


class Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Reply(BaseModel):
    """An answer. Readers ignore unknown fields, so that new releases can add some."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SspOffset(Body):
    """The next offset of a partition: everything below it was read."""

    system: Name
    stream: StreamName
    partition: Number
    offset: Offset

    @property
    def ssp(self) -> Ssp:
        return Ssp(self.system, self.stream, self.partition)


class Notice(Reply):
    seq: int
    kind: Literal["STOP", "ENDED", "BACKUP", "DRAIN", "MODEL"]
    at: datetime
    detail: dict[str, Any]


class NoticesReply(Reply):
    notices: tuple[Notice, ...]


class HeartbeatReply(BaseModel):
    """There are no other fields, because Samza's client treats an answer with further fields as "not alive"."""

    model_config = ConfigDict(extra="forbid")
    alive: bool


class PrometheusTarget(BaseModel):
    """One entry of Prometheus' HTTP service discovery."""

    targets: tuple[str, ...]
    labels: dict[str, str]


class Problem(BaseModel):
    """RFC 9457. `remedy`: what to do; older coordinators do not send it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    remedy: str | None = None


def offsets_body(offsets: Mapping[Ssp, int]) -> tuple[SspOffset, ...]:
    return tuple(
        SspOffset(system=ssp.system, stream=ssp.stream, partition=ssp.partition, offset=offset) for ssp, offset in sorted(offsets.items())
    )


def offsets_of(body: Iterable[SspOffset]) -> dict[Ssp, int]:
    return {each.ssp: each.offset for each in body}
