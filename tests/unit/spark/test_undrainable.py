"""Which queries of a script cannot be drained, and why. Spark's part is in `tests/attached`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from containers.spark.operators import Empties, Operator
from containers.spark.scripts.active_queries import StreamSource
from containers.spark.scripts.drain import undrainable

SPARK: Any = SimpleNamespace(version="4.2.0")
OF_APP, OF_SCRIPT = "file:/state/orders/drain-0/counts", "file:/checkpoints/counts"
AGGREGATION = Operator("groupBy", Empties.EVENT_TIME)


@dataclass
class Query:
    checkpoint: str
    file_sink: str | None = None
    kept: tuple[Operator, ...] = ()
    is_micro_batch: bool = True
    can_be_paused: bool = True
    is_temporary: bool = False
    offset_log_version: str = "v1"

    def operators(self) -> Sequence[Operator]:
        return self.kept

    def sources(self) -> Sequence[StreamSource]:
        return (StreamSource("kafka", ("orders",)),)


def why(query: Query) -> Sequence[str]:
    found: Any = query
    return undrainable(SPARK, found)


@pytest.mark.parametrize(("checkpoint", "kept"), [(OF_APP, ()), (OF_APP, (AGGREGATION,)), (OF_SCRIPT, (AGGREGATION,))])
def test_a_file_sink_is_named_if_the_next_checkpoint_begins_at_batch_0(checkpoint: str, kept: tuple[Operator, ...]) -> None:
    (found,) = why(Query(checkpoint, "/out/orders", kept))
    assert "file sink" in found
    assert "sluice stop" in found
    assert len(found) < 300  # more is not reported
    assert why(Query(checkpoint, None, kept)) == ()


def test_a_file_sink_of_a_query_that_continues_on_its_checkpoint_can_be_drained() -> None:
    assert why(Query(OF_SCRIPT, "/out/orders")) == ()


@pytest.mark.parametrize(("checkpoint", "kept"), [(OF_APP, ()), (OF_SCRIPT, ()), (OF_SCRIPT, (AGGREGATION,))])
def test_a_query_whose_offset_log_has_another_version_is_named_before_a_drain(checkpoint: str, kept: tuple[Operator, ...]) -> None:
    (found,) = why(Query(checkpoint, None, kept, offset_log_version="v2"))
    assert found.startswith("its offset log is of version v2: set spark.sql.streaming.offsetLog.formatVersion to 1")
