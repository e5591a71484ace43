"""A metadata request that returns topic ids and the operations that the client may perform on the topic. aiokafka's own request has an
older version without them.

Topic ids are in version 10 and later of the request (Kafka 2.8, KIP-516). The format is that of Kafka's `MetadataRequest.json` and
`MetadataResponse.json`. Older brokers have no topic ids.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any
from uuid import UUID

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import AbstractType, Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

_METADATA = 3
_VERSION = 11
NO_ID = UUID(int=0)
"""The id of a topic that was created before topic ids."""


class _Uuid(AbstractType[UUID]):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))


_PARTITION = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)
_TOPIC = (
    ("error_code", Int16),
    ("topic", CompactString("utf-8")),
    ("topic_id", _Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)),
    ("authorized_operations", Int32),
    ("tags", TaggedFields),
)
_BROKER = (
    ("node_id", Int32),
    ("host", CompactString("utf-8")),
    ("port", Int32),
    ("rack", CompactString("utf-8")),
    ("tags", TaggedFields),
)


class _TopicIdResponse(Response):  # type: ignore[misc]
    API_KEY = _METADATA
    API_VERSION = _VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*_BROKER)),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("tags", TaggedFields),
    )


class _TopicIdRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = _VERSION
    RESPONSE_TYPE = _TopicIdResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdRequest(Request[_TopicIdRequest]):  # type: ignore[misc]
    """Requests the metadata of one topic without creating it. `operations`: also request the operations that this client may perform."""

    API_KEY = _METADATA

    def __init__(self, topic: str, *, operations: bool = False) -> None:
        self._topic = topic
        self._operations = operations

    def build(self, request_struct_class: type[_TopicIdRequest]) -> Any:
        return request_struct_class([(NO_ID, self._topic, {})], False, self._operations, {})
