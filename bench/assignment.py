"""Planning the job model of 10,000 partitions over 500 containers, and how many tasks move when the number of containers changes.

Judged: the moves after one container is added, removed, lost, and returned, against the minimum that a balanced placement needs. The
minimum is computed here, without the placement code. Also reported: how many tasks a stateless placement would have moved, which assigns
tasks by name (Samza's GroupByContainerCount); the time to plan each model in this process, grouping included; and over HTTP, with a real
coordinator and database: `POST /runs`, `PATCH /runs/{runId}` to one container more and back, and growth to twice the partitions.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from bench.deployment import JOB, STREAM, deploy, make_stream, post, run_request
from bench.harness import BenchFailed, Result, coordinator, note, running
from coordinator.api.runs import spec_of
from coordinator.settings import read_settings
from sluice.core.ids import ProcessorId
from sluice.core.jobmodels.grouping import GroupByPartition, PreviousAssignment
from sluice.core.jobmodels.model import JobModel, PlannedModel, plan_model
from sluice.core.jobmodels.placement import Placement, place, slots
from sluice.core.jobmodels.spec import RunSpec
from sluice.streams.log import Log
from tests.support.processes import free_port

NAME = "assignment"
PARTITIONS = 10_000
CONTAINERS = 500
REPEATS = 5

T = TypeVar("T")


def run() -> Result:
    found = _plan_and_compare()
    figures: dict[str, float] = {"partitions": PARTITIONS, "containers": CONTAINERS, **found.figures}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        port = free_port()
        with running(coordinator(Path(made), port), port) as server:
            figures |= _over_http(server.url, Path(made))
    return judged(found, figures)


@dataclass(frozen=True, slots=True)
class Moved:
    """By kind of change: the tasks moved, the minimum, and the tasks that a stateless placement moves."""

    made: Mapping[str, int]
    least: Mapping[str, int]
    without_memory: Mapping[str, int]
    figures: Mapping[str, float]


def judged(found: Moved, figures: Mapping[str, float]) -> Result:
    reported = {f"{what}_moves": float(count) for what, count in found.made.items()}
    reported |= {f"{what}_least": float(found.least[what]) for what in found.made}
    reported |= {f"{what}_moves_without_memory": float(found.without_memory[what]) for what in found.made}
    ratio = max(found.made[what] / found.least[what] for what in found.made)
    return Result(
        name=NAME,
        figures={**figures, **reported},
        ratio=round(ratio, 4),
        target="moves after a change of one container <= 1.0 of the least possible",
        met=ratio <= 1.0,
    )


def _plan_and_compare() -> Moved:
    """Plan the models in this process, and count the moves."""
    spec = spec_of(run_request(CONTAINERS)).with_counts({STREAM: PARTITIONS})
    first, first_ms = _timed(lambda: _plan(spec, CONTAINERS, None))
    again, again_ms = _timed(lambda: _plan(spec, CONTAINERS, first))
    if again.model != first.model:
        raise BenchFailed("the same input was planned as another model")
    lost = _without(first, spec, ProcessorId("7"))
    after = {
        "one_more": (first.model, _plan(spec, CONTAINERS + 1, first).model),
        "one_less": (first.model, _plan(spec, CONTAINERS - 1, first).model),
        "one_lost": (first.model, lost.model),
        "back_again": (lost.model, _plan(spec, CONTAINERS, lost).model),
    }
    grown, grown_ms = _timed(lambda: _plan(spec, CONTAINERS, first, PARTITIONS * 2))
    if grown.model.placement != first.model.placement:
        raise BenchFailed("growth moved tasks")
    return Moved(
        made={what: _moves(before.placement, now.placement) for what, (before, now) in after.items()},
        least={what: least_moves(before.placement, list(now.containers)) for what, (before, now) in after.items()},
        without_memory={what: _moves(before.placement, _assigned_by_name(now)) for what, (before, now) in after.items()},
        figures={"plan_ms": first_ms, "plan_again_ms": again_ms, "plan_grown_ms": grown_ms},
    )


def _plan(spec: RunSpec, containers: int, former: PlannedModel | None, partitions: int = PARTITIONS) -> PlannedModel:
    wanted = replace(spec, containers=containers).with_counts({STREAM: partitions})
    previous, model = (former.assignment, former.model) if former else (PreviousAssignment(), None)
    return plan_model(wanted, GroupByPartition(), previous, model, slots(containers))


def _without(former: PlannedModel, spec: RunSpec, lost: ProcessorId) -> PlannedModel:
    left = [pid for pid in slots(CONTAINERS) if pid != lost]
    return plan_model(spec, GroupByPartition(), former.assignment, former.model, left)


def least_moves(before: Placement, processors: list[ProcessorId]) -> int:
    """The minimum number of tasks that must move so that sizes differ by at most one: each container keeps as many of its tasks as it
    may, and the larger shares go to the containers with the most tasks.
    """
    least, larger = divmod(len(before), len(processors))
    held = Counter(before.values())
    most_first = sorted((held[pid] for pid in processors), reverse=True)
    return len(before) - sum(min(size, least + (rank < larger)) for rank, size in enumerate(most_first))


def _moves(before: Placement, after: Placement) -> int:
    return sum(1 for task, pid in after.items() if before[task] != pid)


def _assigned_by_name(model: JobModel) -> Placement:
    """Assign the tasks by name, independently of the former assignment."""
    return place(list(model.tasks), sorted(model.containers, key=int), {})


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Returns the result of `work`, and the median of its durations in milliseconds."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        found = work()
        taken.append((time.perf_counter() - began) * 1000)
    return found, round(median(taken), 2)


def _over_http(url: str, home: Path) -> dict[str, float]:
    make_stream(home, PARTITIONS)
    run_id, first = deploy(url, CONTAINERS)
    seconds = {"post_runs_ms": first}
    for what, body in (("patch_one_more_ms", {"containers": CONTAINERS + 1}), ("patch_back_ms", {"containers": CONTAINERS})):
        _, seconds[what] = _patched(url, run_id, body)
    began = time.perf_counter()
    plan = post(f"{url}/jobModel/plan", {"job": JOB, "streams": {STREAM: PARTITIONS * 2}})
    seconds["ask_before_growing_ms"] = time.perf_counter() - began
    Log(read_settings(home=home).log_directory).grow(STREAM, PARTITIONS * 2)
    grown, seconds["patch_grown_ms"] = _patched(url, run_id, {"grow": True})
    if (plan["verdict"], len(grown["partitions"]), grown["moves"]) != ("SAFE", PARTITIONS, []):
        raise BenchFailed(f"growth to {PARTITIONS * 2} partitions: {plan['verdict']}, {len(grown['partitions'])} new ones")
    note(f"growth by {PARTITIONS} partitions took {seconds['patch_grown_ms']:.2f} s, from the check of the stream to the answer")
    return {what: round(taken * 1000, 1) for what, taken in seconds.items()}


def _patched(url: str, run_id: str, body: object) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    reply = post(f"{url}/runs/{run_id}", body, "PATCH")
    return reply, time.perf_counter() - began
