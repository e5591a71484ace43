"""Checkpoints that are used in another directory than the one in which they were written, which no longer exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.state.checkpoint import Checkpoints
from tests.spark.conftest import Bench
from tests.spark.operators import EVENTS, Counting, transformed

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_a_query_with_its_own_state_continues_in_another_directory(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    grant, stage = bench.grant("in"), transformed(Counting(every=600), "EventTime")
    bench.feed(EVENTS, batch=0)
    bench.run_until_read(grant, stage)
    bench.stores.root.rename(tmp_path / "another disk")
    bench.stores = Checkpoints(tmp_path / "another disk", "job")
    bench.feed(EVENTS, batch=1)
    bench.run_until_read(grant, stage)
    _, committed = bench.batches(grant)
    assert len(committed) > 1
