"""What a drain does to state: the stateful operators of each stage, and those that no watermark can empty, according to the containers'
last reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.fleet.script_queries import ScriptQuery
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.store.runs import RunRow
from coordinator.transitions import stages_of
from sluice.core.ids import StageName, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.jobmodels.spec import ATTACHED_TASK, JobKind
from sluice.wire import agents as wire_agents


@dataclass(frozen=True, slots=True)
class FlushCheck:
    """What a flush does to a stage. `tasks`: the number of its tasks. `operators`: the operators that a flush cannot empty. `rows`: the
    present number of rows in its state. `unknown_tasks`: the tasks that have not reported yet. `stateful`: all its stateful operators and
    the effect of a flush on each, from the sink to the sources; None if no task has reported them."""

    stage: StageName
    tasks: int
    operators: Sequence[str]
    rows: int
    unknown_tasks: Sequence[TaskName]
    stateful: Sequence[wire_agents.StatefulOperator] | None = None


def check_flush(run: RunRow, model: JobModel, stage_metrics: StageMetrics) -> Sequence[FlushCheck]:
    """Each stage of the run, in the order of the request."""
    if run.spec.kind is JobKind.ATTACHED:
        return [_check_query(each) for each in stage_metrics.scripts.of_run(run.run_id).values() if each.active]
    reports = stage_metrics.of_run(run.run_id)
    tasks: defaultdict[StageName, list[TaskName]] = defaultdict(list)
    for each in stages_of(run, model):
        tasks[each.stage].append(each.task)
    found = []
    for stage in run.spec.stage_names:
        measured = {task: reports[task, stage].metrics for task in tasks[stage] if (task, stage) in reports}
        known = {task: each for task, each in measured.items() if each is not None and each.unflushable is not None}
        found.append(
            FlushCheck(
                stage=stage,
                tasks=len(tasks[stage]),
                operators=sorted({name for each in known.values() for name in each.unflushable or ()}),
                rows=sum(each.state_rows or 0 for each in measured.values() if each is not None),
                unknown_tasks=[task for task in tasks[stage] if task not in known],
                stateful=next((each.operators for each in known.values() if each.operators is not None), None),
            )
        )
    return found


def _check_query(query: ScriptQuery) -> FlushCheck:
    """A query of a script. Its operators are known after its first batch."""
    metrics = query.metrics
    known = metrics is not None and metrics.unflushable is not None
    return FlushCheck(
        stage=query.stage,
        tasks=1,
        operators=sorted({*query.undrainable, *((metrics.unflushable or ()) if metrics is not None else ())}),
        rows=metrics.state_rows or 0 if metrics is not None else 0,
        unknown_tasks=() if known else (ATTACHED_TASK,),
        stateful=metrics.operators if metrics is not None else None,
    )
