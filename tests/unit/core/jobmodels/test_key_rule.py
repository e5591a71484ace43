"""The key rule: through any chain of expansions by multiples, the records and the state of a key are in one task.

Producers place a key by a hash modulo the current partition count: Kafka's murmur2 without its sign, and CRC-32, which librdkafka and the
embedded log use.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import pytest
from aiokafka.partitioner import murmur2
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sluice.core.errors import IncompatibleExpansion
from sluice.core.ids import Ssp, StreamId, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment, assign, grouper_named
from sluice.streams.log import partition_of

STREAM = StreamId("kafka", "ads.clicks")

Partitioner = Callable[[bytes, int], int]


def by_murmur2(key: bytes, partitions: int) -> int:
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def by_crc32(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions


PARTITIONERS = [by_murmur2, by_crc32]


def owners(previous: PreviousAssignment, count: int, grouping: str, max_tasks: int | None) -> PreviousAssignment:
    made = assign(grouper_named(grouping, max_tasks), previous, {STREAM: count}, frozenset(), grouping=grouping, stateful=True)
    return PreviousAssignment(made.owners, made.baselines, grouping)


def homes(assignment: PreviousAssignment, keys: Sequence[bytes], count: int, place: Partitioner) -> dict[bytes, TaskName]:
    return {key: assignment.tasks[Ssp(STREAM.system, STREAM.stream, place(key, count))] for key in keys}


@pytest.mark.parametrize(("key", "expected"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)])
def test_the_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    """Values from Kafka's own test of its hash (`UtilsTest.testMurmur2`)."""
    assert murmur2(key) & 0xFFFFFFFF == expected & 0xFFFFFFFF


def test_the_log_places_keys_by_crc32() -> None:
    assert [partition_of(key, 7, 0) for key in (b"AA", b"UA", b"")] == [by_crc32(key, 7) for key in (b"AA", b"UA", b"")]


@pytest.mark.parametrize("place", PARTITIONERS)
@settings(deadline=None)
@given(
    first=st.integers(1, 8),
    factors=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    keys=st.sets(st.binary(max_size=20), min_size=1, max_size=50),
    max_tasks=st.none() | st.integers(1, 9),
    grouping=st.sampled_from(["GroupByPartition", "GroupBySystemStreamPartition", "AllSspToSingleTask"]),
)
def test_the_task_of_a_key_never_changes(
    place: Partitioner, first: int, factors: list[int], keys: set[bytes], max_tasks: int | None, grouping: str
) -> None:
    fold = max_tasks if grouping == "GroupByPartition" else None
    count, known = first, owners(PreviousAssignment(), first, grouping, fold)
    at_first = homes(known, sorted(keys), count, place)
    for factor in factors:
        count *= factor
        known = owners(known, count, grouping, fold)
        assert homes(known, sorted(keys), count, place) == at_first


@pytest.mark.parametrize("place", PARTITIONERS)
@settings(deadline=None)
@given(
    first=st.integers(1, 6),
    multiples=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    keys=st.sets(st.binary(max_size=20), min_size=1, max_size=30),
)
def test_only_the_first_count_must_divide_each_later_one(place: Partitioner, first: int, multiples: list[int], keys: set[bytes]) -> None:
    """4 -> 8 -> 12 is allowed although 8 does not divide 12: state is assigned by the first count only."""
    known = owners(PreviousAssignment(), first, "GroupByPartition", None)
    at_first = homes(known, sorted(keys), first, place)
    for multiple in sorted(multiples):
        known = owners(known, first * multiple, "GroupByPartition", None)
        assert homes(known, sorted(keys), first * multiple, place) == at_first


@pytest.mark.parametrize("place", PARTITIONERS)
@settings(deadline=None)
@given(first=st.integers(2, 8), later=st.integers(3, 40))
def test_a_count_that_is_no_multiple_would_part_keys_from_their_state_and_is_refused(place: Partitioner, first: int, later: int) -> None:
    assume(later > first and later % first)
    keys = [f"key-{n}".encode() for n in range(300)]
    known = owners(PreviousAssignment(), first, "GroupByPartition", None)
    before = homes(known, keys, first, place)
    folded = {key: TaskName(f"Partition {place(key, later) % first}") for key in keys}
    assert any(folded[key] != before[key] for key in keys)
    with pytest.raises(IncompatibleExpansion):
        owners(known, later, "GroupByPartition", None)
