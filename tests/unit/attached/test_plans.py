"""What a batch reads is kept before it writes: when a driver asks its agent for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from containers.attached.checkpoints.plans import PlanNotKept, Plans
from containers.rpc.connection import ConnectionLost
from sluice.core.ids import Lineage, StageName

LINEAGE, STAGE = Lineage("q"), StageName("counts")


class Supervised:
    """Plans of a query over one source, with an agent that answers each question."""

    def __init__(self, *, kafka: bool = True, failed: str | None = "") -> None:
        self.asked: list[tuple[str, int]] = []
        self.failed = failed
        query: Any = SimpleNamespace(sources=lambda: [SimpleNamespace(is_kafka=kafka)])
        self.plans = Plans(self._keep, lambda lineage: query)

    def _keep(self, stage: StageName, batch: int) -> str:
        self.asked.append((stage, batch))
        if self.failed is None:
            raise ConnectionLost("the other process has ended")
        return self.failed


def test_the_plan_of_each_batch_is_kept_once() -> None:
    made = Supervised()
    made.plans.add(LINEAGE, STAGE, {})
    for batch in (3, 3, 4):
        made.plans.keep(LINEAGE, batch)
    assert made.asked == [("counts", 3), ("counts", 4)]


def test_a_batch_whose_plan_cannot_be_kept_fails_and_asks_again_when_it_is_repeated() -> None:
    made = Supervised(failed="the blob store does not answer")
    made.plans.add(LINEAGE, STAGE, {})
    with pytest.raises(PlanNotKept, match="the plan of batch 3 of checkpoint counts: the blob store does not answer"):
        made.plans.keep(LINEAGE, 3)
    made.failed = ""
    made.plans.keep(LINEAGE, 3)
    assert len(made.asked) == 2


def test_nothing_is_asked_of_a_query_that_is_not_backed_up_or_whose_plans_name_files_of_its_checkpoint() -> None:
    files = Supervised(kafka=False)
    files.plans.add(LINEAGE, STAGE, {})
    files.plans.keep(LINEAGE, 3)
    own = Supervised()
    own.plans.keep(LINEAGE, 3)
    assert (files.asked, own.asked) == ([], [])


def test_a_batch_fails_when_its_agent_has_ended() -> None:
    made = Supervised(failed=None)
    made.plans.add(LINEAGE, STAGE, {})
    with pytest.raises(PlanNotKept, match="has ended"):
        made.plans.keep(LINEAGE, 3)
