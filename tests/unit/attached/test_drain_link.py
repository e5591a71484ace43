"""Where the checkpoint of a query begins, according to the drains of its job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from containers.attached.drain_link import last_drain_of
from sluice.core.drain import Phase
from sluice.core.ids import JobName, RunId


class Coordinator:
    """A coordinator with one drain, which has begun to flush and has taken the query `counts` to a step."""

    def __init__(self, phase: Phase, step: str) -> None:
        offset = SimpleNamespace(stream="orders", partition=0, offset=12)
        stage = SimpleNamespace(stage="counts", step=step, offsets=[offset])
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
    ("phase", "step", "seq", "failed"),
    [
        (Phase.DRAINED, "committed", 3, ""),
        (Phase.FAILED, "flushed", 3, ""),
        (Phase.FAILED, "flushing", 3, "drain d-1 has failed: too slow"),
        (Phase.FLUSHING, "flushing", 0, ""),  # the script was killed in the flush, and must finish it on the same checkpoint
        (Phase.FLUSHING, "flushed", 0, ""),
    ],
)
async def test_only_a_drain_that_is_over_gives_a_query_another_checkpoint(phase: Phase, step: str, seq: int, failed: str) -> None:
    coordinator: Any = Coordinator(phase, step)
    found = await last_drain_of(coordinator, JobName("orders"), RunId("run-1"), "counts")
    assert (found["seq"], found["failed"]) == (seq, failed)
