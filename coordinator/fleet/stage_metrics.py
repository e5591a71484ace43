"""Measures: what containers told last of each stage of a task. In memory, for whoever looks: nobody's right to act hangs on it.

After a restart of the coordinator a stage is unknown here until its container reports again: with its next batch, or, while it has nothing
to read, some ten seconds later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName
from sluice.wire import agents as wire_agents


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage's last committed batch, and how the stage does. `offsets`: ssp -> next offset."""

    generation: Generation
    lineage: Lineage
    batch: int
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    measures: wire_agents.MeasuresBody | None = None

    def repeats(self, other: StageReport) -> bool:
        """Whether both are of the same batch under the same grant."""
        return (self.generation, self.lineage, self.batch) == (other.generation, other.lineage, other.batch)


Stages = Mapping[tuple[TaskName, StageName], StageReport]


class StageMetrics:
    """The newest of each stage, of runs that have not ended."""

    def __init__(self) -> None:
        self._told: defaultdict[RunId, dict[tuple[TaskName, StageName], StageReport]] = defaultdict(dict)

    def tell(self, run_id: RunId, task: TaskName, stage: StageName, told: StageReport) -> None:
        """Keep what was accepted from the task's holder. The last word stands, unless it is a former holder's."""
        known = self._told[run_id].get((task, stage))
        if known is None or known.generation <= told.generation:
            self._told[run_id][task, stage] = told

    def told(self, run_id: RunId, task: TaskName, stage: StageName) -> StageReport | None:
        return self.of_run(run_id).get((task, stage))

    def of_run(self, run_id: RunId) -> Stages:
        return self._told.get(run_id, {})

    def keep_only(self, runs: Collection[RunId]) -> None:
        """Forget all other runs."""
        for ended in self._told.keys() - set(runs):
            del self._told[ended]
