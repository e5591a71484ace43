"""What a Kafka cluster must support, and what its ACLs must allow, before a stage writes transactions to a topic. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_OPERATIONS: Mapping[str, int] = {"Read": 3, "Write": 4, "Describe": 8}
"""Kafka's codes of operations (`AclOperation`). A set of operations is an integer in which each operation is the bit with its code."""

_NOT_GIVEN = -(1 << 31)
"""The value in place of a set of operations that was not requested."""

_NEEDED: Mapping[int, tuple[str, int]] = {
    22: ("InitProducerId", 0),
    24: ("AddPartitionsToTxn", 0),
    25: ("AddOffsetsToTxn", 0),
    26: ("EndTxn", 0),
    28: ("TxnOffsetCommit", 0),
    9: ("OffsetFetch", 7),  # with `require_stable`: waits for the end of the transaction that an offset is part of
}
"""Key of a request -> its name, and the version that transactions with a marker need. A marker is the offset that a writer commits with
each transaction."""

OLDEST = "2.5"
"""The oldest release of Kafka that supports all of them."""

INSTEAD = 'write with delivery="at-least-once" (in a script, with the sink of Spark)'
"""What to do where transactions cannot be written."""


def unsupported(versions: Iterable[tuple[int, int, int]]) -> Sequence[str]:
    """The requests that writing transactions needs and a broker does not support. `versions`: key, lowest and highest version, as in the
    answer to ApiVersions."""
    highest = {key: high for key, _, high in versions}
    return [f"{name} {least}" for key, (name, least) in _NEEDED.items() if highest.get(key, -1) < least]


def denied(allowed: int) -> Sequence[str]:
    """The operations on a topic that writing transactions needs and that are not in Kafka's set of operations. A broker without ACLs
    allows all of them."""
    if allowed == _NOT_GIVEN:
        return []
    return [name for name, bit in _OPERATIONS.items() if not allowed & 1 << bit]
