"""What a flush cannot empty: stateful operators whose rows no watermark can complete, as containers last reported them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.store.runs import RunRow
from coordinator.transitions import stages_of
from sluice.core.ids import StageName, TaskName
from sluice.core.model import JobModel


@dataclass(frozen=True, slots=True)
class Emptying:
    """A stage over its `tasks`. `operators` a flush cannot empty; of the tasks in `untold` nothing is known. `rows`: in its state now."""

    stage: StageName
    tasks: int
    operators: Sequence[str]
    rows: int
    untold: Sequence[TaskName]


def emptying(run: RunRow, model: JobModel, stage_metrics: StageMetrics) -> Sequence[Emptying]:
    """Of each stage of the run, in the order of its graph."""
    reports = stage_metrics.of_run(run.run_id)
    tasks: defaultdict[StageName, list[TaskName]] = defaultdict(list)
    for each in stages_of(run, model):
        tasks[each.stage].append(each.task)
    found = []
    for stage in run.spec.stage_names:
        measured = {task: reports[task, stage].metrics for task in tasks[stage] if (task, stage) in reports}
        known = {task: each for task, each in measured.items() if each is not None and each.unflushable is not None}
        found.append(
            Emptying(
                stage=stage,
                tasks=len(tasks[stage]),
                operators=sorted({name for each in known.values() for name in each.unflushable or ()}),
                rows=sum(each.state_rows or 0 for each in measured.values() if each is not None),
                untold=[task for task in tasks[stage] if task not in known],
            )
        )
    return found
