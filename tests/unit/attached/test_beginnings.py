"""Where the checkpoint of a query begins, according to the drains of its job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from containers.attached.script_drains import last_drain_of
from sluice.core.drain import Phase
from sluice.core.ids import JobName, RunId

DRAINED = {"orders": {"0": 12}}


class Coordinator:
    """A coordinator with one drain, which has begun to flush and has taken the query `counts` to a step."""

    def __init__(self, phase: Phase, step: str, pinned: str | None) -> None:
        offset = SimpleNamespace(stream="orders", partition=0, offset=12)
        stage = SimpleNamespace(stage="counts", step=step, offsets=[offset], pinned_checkpoint=pinned)
        containers = [SimpleNamespace(tasks=[SimpleNamespace(stages=[stage])])]
        phases = [SimpleNamespace(phase=Phase.FLUSHING)]
        self._detail = SimpleNamespace(uuid="d-1", seq=3, phase=phase, phases=phases, reason="too slow", containers=containers)

    async def run(self, run: RunId) -> Any:
        return SimpleNamespace(config={})

    async def drains(self, job: JobName) -> Any:
        return [self._detail]

    async def drain(self, uuid: str) -> Any:
        return self._detail


@pytest.mark.parametrize(
    ("phase", "step", "pinned", "seq", "offsets", "failed"),
    [
        (Phase.DRAINED, "committed", "s-1", 3, DRAINED, ""),
        (Phase.FAILED, "flushed", None, 3, DRAINED, ""),
        (Phase.FAILED, "flushing", None, 3, DRAINED, "drain d-1 has failed: too slow"),
        (Phase.FAILED, "flushed", "s-1", 3, {}, ""),  # it goes back to the snapshot
        (Phase.FAILED, "flushing", "s-1", 3, {}, ""),
        (Phase.FAILED, "stopped", "s-1", 0, {}, ""),  # its checkpoint is not locked
        (Phase.FLUSHING, "flushing", "s-1", 0, {}, ""),  # the script was killed in the flush, and must finish it on the same checkpoint
        (Phase.FLUSHING, "flushed", "s-1", 0, {}, ""),
    ],
)
async def test_only_a_drain_that_is_over_gives_a_query_another_checkpoint(
    phase: Phase, step: str, pinned: str | None, seq: int, offsets: Any, failed: str
) -> None:
    coordinator: Any = Coordinator(phase, step, pinned)
    found = await last_drain_of(coordinator, JobName("orders"), RunId("run-1"), "counts")
    assert (found.seq, found.offsets, found.failed) == (seq, offsets, failed)
