"""What all HTTP bodies share, and the names of headers. Names on the wire are camelCase; unknown fields of requests are refused.

**Renamed fields.** For one release both names of a renamed field work, as `sluice.core.deprecations` lists them:

* An answer carries both (`RenamedReply`). Readers take the new one, or the old one from a coordinator of the release before.
* A request may use either (`RenamedBody`). If it has both, the old one is ignored.
* Requests are sent with the new names. A coordinator of the release before refuses those, so the client then repeats the request with the
  old names: see `sluice.client.CoordinatorClient`.

**Added fields.** That repeated request is also without the fields that this release has added to it (`RenamedBody.added_fields`): the
coordinator then does not know their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic import (
    FailFast as PydanticFailFast,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sluice.core import deprecations
from sluice.core.deprecations import Deprecation, Kind
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
OLD_ACTOR_HEADER = "Sluice-Who"

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


@cache
def renamed_fields(model: type[BaseModel]) -> Mapping[str, Deprecation]:
    """Old name -> entry, of a body and the bodies that it extends."""
    return {each.old: each for parent in model.__mro__ for each in deprecations.of_kind(Kind.FIELD, parent.__name__)}


def _schema_with_old_names(model: type[BaseModel], core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    schema = handler({name: value for name, value in core_schema.items() if name != "serialization"})
    properties = handler.resolve_ref_schema(schema)["properties"]
    for old, entry in renamed_fields(model).items():
        kept = {name: value for name, value in properties[entry.new].items() if name not in ("title", "description")}
        properties[old] = kept | {"deprecated": True, "description": f"Deprecated: use `{entry.new}`."}
    return schema


OLD_NAMES: Final = {"names": "old"}
"""Serialization context: a request is written with the old names only."""


class RenamedBody(Body):
    """A request with renamed or added fields."""

    added_fields: ClassVar[frozenset[str]] = frozenset()
    """Names on the wire of the fields that the release before does not know."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, given: Any) -> Any:
        return _with_new_names(cls, given, deprecations.use)

    @model_serializer(mode="wrap")
    def _write_names(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        if info.context == OLD_NAMES:
            for old, entry in renamed_fields(type(self)).items():
                written[old] = written.pop(str(entry.new))
            written = {name: value for name, value in written.items() if name not in self.added_fields}
        return written

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _schema_with_old_names(cls, core_schema, handler)


class RenamedReply(Reply):
    """An answer with renamed fields: written with both names, read with either."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, given: Any) -> Any:
        return _with_new_names(cls, given, lambda _: None)

    @model_serializer(mode="wrap")
    def _write_names(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        if info.by_alias:
            written |= {old: written[str(entry.new)] for old, entry in renamed_fields(type(self)).items() if entry.new in written}
        return written

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _schema_with_old_names(cls, core_schema, handler)


def _with_new_names(model: type[BaseModel], given: Any, on_use: Callable[[Deprecation], None]) -> Any:
    """The given fields under their new names. `on_use` is called for each old name that was used; one whose new name is given, too, is
    ignored."""
    if not isinstance(given, Mapping):
        return given
    found = {old: entry for old, entry in renamed_fields(model).items() if old in given}
    if not found:
        return given
    renamed = {name: value for name, value in given.items() if name not in found}
    for old, entry in found.items():
        if entry.new not in renamed:
            renamed[entry.new] = given[old]
            on_use(entry)
    return renamed


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
