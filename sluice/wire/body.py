"""HTTP bodies of runs, what all bodies share, and the headers. Names on the wire are camelCase; unknown fields of requests are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sluice.core.ids import Ssp

EPOCH_HEADER = "Sluice-Epoch"
LEASE_HEADER = "Sluice-Lease-Seconds"
NEXT_HEADER = "Sluice-Next-Heartbeat-Seconds"
MODEL_VERSION_HEADER = "Sluice-Job-Model-Version"
RUN_HEADER = "Sluice-Run-Id"
DRAIN_HEADER = "Sluice-Drain"
RUN_STATE_HEADER = "Sluice-Run-State"
REPLACES_HEADER = "Sluice-Replaces"

RUN_RECORD_HEADER = "sluice-run"
"""On every record of an intermediate stream: the origin of the run that wrote it. Readers drop records of other origins."""

CONTROL_RECORD_HEADER = "sluice-control"
"""On control records, which never reach user code."""

DRAIN_RECORD_HEADER = "sluice-drain"
"""On all that a stage wrote under a drain, from the rest of its input as well as by its flush: the drain's id. In intermediate streams
readers drop those of drains that failed."""

Name = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError("the time is outside the years 1 to 9999 in UTC") from error


Utc = Annotated[datetime, AfterValidator(_in_utc)]
NO_NUL = r"^[^\x00]*$"
"""What text must match: PostgreSQL cannot store a NUL."""
HOST_AND_PORT = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"
Count = Annotated[int, Field(ge=1, le=100_000)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Reply(BaseModel):
    """What Sluice answers. Readers ignore fields that they do not know, so that answers may gain some."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SspOffset(Body):
    """The next offset of a partition: everything below it was read."""

    system: Name
    stream: Name
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
    """Exactly this: Samza's own client takes any further field for "not alive"."""

    model_config = ConfigDict(extra="forbid")
    alive: bool


class PrometheusTarget(BaseModel):
    """One entry of Prometheus' HTTP service discovery."""

    targets: tuple[str, ...]
    labels: dict[str, str]


class Problem(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None


def offsets_body(offsets: Mapping[Ssp, int]) -> tuple[SspOffset, ...]:
    return tuple(
        SspOffset(system=ssp.system, stream=ssp.stream, partition=ssp.partition, offset=offset) for ssp, offset in sorted(offsets.items())
    )


def offsets_of(body: Iterable[SspOffset]) -> dict[Ssp, int]:
    return {each.ssp: each.offset for each in body}
