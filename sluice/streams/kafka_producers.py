"""Requests for the producers with an open transaction on a partition, and for their transactional ids. aiokafka lacks both requests.

The formats are those of Kafka's `DescribeProducersRequest.json` and `ListTransactionsRequest.json` (Kafka 2.8 and 3.0, KIP-664).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

_DESCRIBE_PRODUCERS, _LIST_TRANSACTIONS = 61, 66
NO_TRANSACTION = -1
"""In place of the first offset, for a producer without an open transaction."""

_PRODUCER = (
    ("producer_id", Int64),
    ("producer_epoch", Int32),
    ("last_sequence", Int32),
    ("last_timestamp", Int64),
    ("coordinator_epoch", Int32),
    ("first_offset", Int64),
    ("tags", TaggedFields),
)
_PRODUCERS_OF_PARTITION = (
    ("partition", Int32),
    ("error_code", Int16),
    ("error_message", CompactString("utf-8")),
    ("producers", CompactArray(*_PRODUCER)),
    ("tags", TaggedFields),
)
_PRODUCERS_OF_TOPIC = (("topic", CompactString("utf-8")), ("partitions", CompactArray(*_PRODUCERS_OF_PARTITION)), ("tags", TaggedFields))
_TRANSACTION = (
    ("transactional_id", CompactString("utf-8")),
    ("producer_id", Int64),
    ("state", CompactString("utf-8")),
    ("tags", TaggedFields),
)


class _DescribeProducersResponse(Response):  # type: ignore[misc]
    API_KEY = _DESCRIBE_PRODUCERS
    API_VERSION = 0
    SCHEMA = Schema(("throttle_time_ms", Int32), ("topics", CompactArray(*_PRODUCERS_OF_TOPIC)), ("tags", TaggedFields))


class _DescribeProducersRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_PRODUCERS
    API_VERSION = 0
    RESPONSE_TYPE = _DescribeProducersResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))),
        ("tags", TaggedFields),
    )


class DescribeProducers(Request[_DescribeProducersRequest]):  # type: ignore[misc]
    """Requests the producers of the partitions from their leader."""

    API_KEY = _DESCRIBE_PRODUCERS

    def __init__(self, topic: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        self._partitions = list(partitions)

    def build(self, request_struct_class: type[_DescribeProducersRequest]) -> Any:
        return request_struct_class([(self._topic, self._partitions, {})], {})


class _ListTransactionsResponse(Response):  # type: ignore[misc]
    API_KEY = _LIST_TRANSACTIONS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_state_filters", CompactArray(CompactString("utf-8"))),
        ("transactions", CompactArray(*_TRANSACTION)),
        ("tags", TaggedFields),
    )


class _ListTransactionsRequest(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = _LIST_TRANSACTIONS
    API_VERSION = 0
    RESPONSE_TYPE = _ListTransactionsResponse
    SCHEMA = Schema(
        ("state_filters", CompactArray(CompactString("utf-8"))),
        ("producer_id_filters", CompactArray(Int64)),
        ("tags", TaggedFields),
    )


class ListTransactions(Request[_ListTransactionsRequest]):  # type: ignore[misc]
    """Requests from a broker those transactions of these producers that it coordinates. The answer omits those that the client may not
    describe."""

    API_KEY = _LIST_TRANSACTIONS

    def __init__(self, producers: Sequence[int]) -> None:
        self._producers = list(producers)

    def build(self, request_struct_class: type[_ListTransactionsRequest]) -> Any:
        return request_struct_class([], self._producers, {})
