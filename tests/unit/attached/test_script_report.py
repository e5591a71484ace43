"""What a driver reports of the queries of its script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from containers.attached.script_report import CONTINUOUS, ScriptReport, location, stage_name
from containers.engine import Batch, Writes
from sluice.core.ids import Ssp, StageName
from sluice.job import Delivery
from sluice.wire.agents import MAX_QUERIES
from tests.support.fakes import FakeClock

TEMPORARY = "file:/tmp/temporary-0a1b2c3d-0000-4000-8000-00000000000{}"


@dataclass
class Query:
    """A start of a query."""

    run_id: str
    checkpoint: str = "s3a://states/counts"
    id: str = "7"
    name: str = ""
    is_micro_batch: bool = True
    error: str | None = None
    progress: list[Batch | None] = field(default_factory=list)

    def new_progress(self) -> Sequence[Batch | None]:
        found, self.progress = self.progress, []
        return found

    def commit(self, batch: int, rows: int = 10) -> None:
        self.progress.append(Batch(self.name, batch, rows, 100, {Ssp("kafka", "orders", 0): 10 * batch}))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def report(clock: FakeClock) -> ScriptReport:
    return ScriptReport("machine-1", clock)


def due(report: ScriptReport, clock: FakeClock) -> Sequence[dict[str, Any]]:
    clock.advance(60)
    found = report.due()
    assert found is not None
    return found


def test_a_query_is_a_stage_before_its_first_batch(report: ScriptReport, clock: FakeClock) -> None:
    report.update([Query("a")])
    (found,) = due(report, clock)
    assert (found["stage"], found["checkpoint"], found["batchId"], found["active"]) == ("counts", "s3a://states/counts", None, True)


def test_its_last_batch_is_reported_with_offsets_and_metrics(report: ScriptReport, clock: FakeClock) -> None:
    query = Query("a")
    query.commit(4)
    query.commit(5)
    report.update([query])
    (found,) = due(report, clock)
    assert found["batchId"] == 5
    assert found["offsets"] == [{"system": "kafka", "stream": "orders", "partition": 0, "offset": 50}]
    assert found["metrics"]["rows"] == 10


def test_what_a_query_writes_to_kafka_is_reported_also_when_it_has_ended(clock: FakeClock) -> None:
    writes = {"a": {"_counts": Writes(Delivery.EXACTLY_ONCE, commits=3, commit_seconds=0.5, fenced=1)}}
    report = ScriptReport("machine-1", clock, writes=lambda query: writes.get(query.run_id, {}))
    query = Query("a")
    query.commit(4)
    report.update([query])
    (found,) = due(report, clock)
    assert found["metrics"]["delivery"] == {"_counts": "exactly-once"}
    zeros = {"aborted": 0, "markers": 0, "repeated": 0}
    written = [{"topic": "_counts", "delivery": "exactly-once", "commits": 3, "commitSeconds": 0.5, "fenced": 1, **zeros}]
    assert found["writes"] == written
    writes.clear()
    report.update([])
    (ended,) = due(report, clock)
    assert (ended["active"], ended["writes"]) == (False, written)


def test_a_topic_has_any_name_that_kafka_accepts(report: ScriptReport, clock: FakeClock) -> None:
    query = Query("a")
    query.progress.append(Batch("", 4, 1, 100, {Ssp("kafka", "_orders", 0): 40, Ssp("kafka", ".orders", 0): 50}))
    report.update([query])
    (found,) = due(report, clock)
    assert [each["stream"] for each in found["offsets"]] == [".orders", "_orders"]


@pytest.mark.parametrize(
    "wrong",
    [
        Batch("", 4, 1, 100, {Ssp("kafka", "orders", -1): 40}),
        Batch("", 4, 1, 100, {Ssp("kafka", "or/ders", 0): 40}),
        Batch("", 4, -1, 100, {Ssp("kafka", "orders", 0): 40}),
        Batch("", 4, 1, 100, {Ssp("kafka", "orders", 0): 40}, parts_ms={"a part": 1}),
    ],
)
def test_a_query_with_a_value_that_is_not_valid_silences_no_other(
    report: ScriptReport, clock: FakeClock, caplog: pytest.LogCaptureFixture, wrong: Batch
) -> None:
    bad, good = Query("a", "s3a://states/bad"), Query("b")
    bad.progress.append(wrong)
    good.commit(4)
    report.update([bad, good])
    found = {each["stage"]: each for each in due(report, clock)}
    assert (found["counts"]["batchId"], found["counts"]["metrics"]["rows"]) == (4, 10)
    assert found["bad"]["active"]
    assert "progress of query bad cannot be reported" in caplog.text
    bad.commit(5)
    report.update([bad, good])
    assert {each["stage"]: each["batchId"] for each in due(report, clock)} == {"counts": 4, "bad": 5}


def test_a_query_whose_offsets_cannot_be_reported_cannot_be_drained(report: ScriptReport, clock: FakeClock) -> None:
    query = Query("a")
    query.progress.append(Batch("", 4, 1, 100, {Ssp("kafka", "or/ders", 0): 40}))
    report.update([query])
    (found,) = due(report, clock)
    assert (found["batchId"], found["failures"]) == (None, 1)
    assert found["undrainable"] == [found["error"]]
    assert found["error"].startswith("its progress cannot be reported: stream: ")


def test_a_trigger_without_a_batch_keeps_the_last_batch(report: ScriptReport, clock: FakeClock) -> None:
    query = Query("a")
    query.commit(4)
    report.update([query])
    query.progress.append(None)
    report.update([query])
    (found,) = due(report, clock)
    assert (found["batchId"], found["metrics"]["rows"]) == (4, 0)


def test_a_restarted_query_is_the_same_stage(report: ScriptReport, clock: FakeClock) -> None:
    first = Query("a")
    first.commit(4)
    report.update([first])
    report.update([])
    (ended,) = due(report, clock)
    assert (ended["stage"], ended["active"], ended["batchId"]) == ("counts", False, 4)
    report.update([Query("b")])
    (again,) = due(report, clock)
    assert (again["stage"], again["active"], again["batchId"]) == ("counts", True, 4)


def test_a_checkpoint_that_was_deleted_begins_again(report: ScriptReport, clock: FakeClock) -> None:
    first = Query("a")
    first.commit(4)
    report.update([first])
    report.update([Query("b", id="8")])
    (found,) = due(report, clock)
    assert (found["queryId"], found["batchId"]) == ("8", None)


def test_failures_are_counted_and_kept_while_the_script_restarts_the_query(report: ScriptReport, clock: FakeClock) -> None:
    for run in "ab":
        query = Query(run)
        report.update([query])
        query.error = "ValueError: no such currency\n  at org.apache"
        report.update([])
    (failed,) = due(report, clock)
    assert (failed["active"], failed["error"], failed["failures"]) == (False, "ValueError: no such currency", 2)
    report.update([Query("c")])
    (again,) = due(report, clock)
    assert (again["active"], again["failures"]) == (True, 2)


def test_failures_of_more_than_ten_minutes_ago_do_not_count(report: ScriptReport, clock: FakeClock) -> None:
    for run in "ab":
        query = Query(run)
        report.update([query])
        query.error = "ValueError"
        report.update([])
        clock.advance(660)
    (failed,) = due(report, clock)
    assert failed["failures"] == 1


def test_a_report_is_sent_when_it_has_changed_and_every_ten_seconds(report: ScriptReport, clock: FakeClock) -> None:
    query = Query("a")
    report.update([query])
    assert report.due() is not None
    query.commit(0)
    report.update([query])
    assert report.due() is None
    clock.advance(1)
    assert report.due() is not None
    clock.advance(9)
    assert report.due() is None
    clock.advance(1)
    assert report.due() is not None


def test_a_refused_query_is_stopped_once(report: ScriptReport, clock: FakeClock) -> None:
    query = Query("a")
    assert report.update([query]) == []
    report.refuse("counts", "job copies uses the checkpoint")
    assert report.update([query]) == [(query, "job copies uses the checkpoint")]
    assert report.update([query]) == []
    report.update([])
    (found,) = due(report, clock)
    assert (found["active"], found["error"]) == (False, "job copies uses the checkpoint")


def test_a_refusal_of_a_report_is_only_for_the_start_that_was_reported(report: ScriptReport, clock: FakeClock) -> None:
    report.update([Query("a")])
    due(report, clock)
    report.update([])
    report.refuse_reported("counts", "job copies uses the checkpoint")
    assert report.update([Query("b")]) == []
    due(report, clock)
    third = Query("c")
    report.refuse_reported("counts", "job copies uses the checkpoint")  # the answer to the report of b
    assert report.update([third]) == []
    due(report, clock)
    report.refuse_reported("counts", "job copies uses the checkpoint")
    assert report.update([third]) == [(third, "job copies uses the checkpoint")]


def test_a_refusal_of_a_query_that_has_ended_is_dropped(report: ScriptReport, clock: FakeClock) -> None:
    report.update([Query("a")])
    due(report, clock)
    report.update([])
    due(report, clock)
    report.refuse_reported("counts", "job copies uses the checkpoint")
    assert report.update([Query("b")]) == []


def test_a_refusal_at_the_start_of_a_query_is_only_for_that_start(report: ScriptReport) -> None:
    query = Query("a")
    report.refuse("counts", "the sink has later batches", "a")  # before the query is listed
    report.refuse("counts", "the sink has later batches", "b")
    assert report.update([query]) == [(query, "the sink has later batches")]
    second = Query("b")
    assert report.update([second]) == [(second, "the sink has later batches")]
    assert report.update([Query("c")]) == []


def test_a_query_with_continuous_processing_is_refused(report: ScriptReport) -> None:
    query = Query("a", is_micro_batch=False)
    assert report.update([query]) == [(query, CONTINUOUS)]


def test_queries_with_temporary_checkpoints_do_not_add_up(report: ScriptReport, clock: FakeClock) -> None:
    for run in range(9):
        report.update([Query(f"{run}", TEMPORARY.format(run), name="console")])
    (found,) = due(report, clock)
    assert found["stage"] == "console"


def test_a_script_that_starts_and_stops_queries_all_the_time_reports_a_bounded_number(report: ScriptReport, clock: FakeClock) -> None:
    for run in range(3 * MAX_QUERIES):
        report.update([Query(f"{run}", f"s3a://states/{run}")])
    found = due(report, clock)
    assert len(found) == MAX_QUERIES
    assert found[-1]["active"]


def test_of_too_many_queries_the_first_are_reported(report: ScriptReport, clock: FakeClock) -> None:
    queries = [Query(f"{run}", f"s3a://states/{run}") for run in range(MAX_QUERIES + 5)]
    report.update(queries)
    report.update(queries)
    assert [each["stage"] for each in due(report, clock)] == [str(n) for n in range(MAX_QUERIES)]


def test_a_local_checkpoint_is_that_of_its_machine() -> None:
    assert location("file:/states/counts", "machine-1") == "file://machine-1/states/counts"
    assert location("file:///states/counts", "machine-1") == "file://machine-1/states/counts"
    assert location("s3a://states/counts/", "machine-1") == "s3a://states/counts"


def test_stages_have_the_same_names_in_whatever_order_they_start(clock: FakeClock) -> None:
    queries = [Query("a", "s3a://lake/orders/_checkpoint", id="1"), Query("b", "s3a://lake/users/_checkpoint", id="2")]
    queries.append(Query("c", "file:/state/orders/0/checkpoint", id="3"))
    names = []
    for order in (queries, queries[::-1]):
        report = ScriptReport("machine-1", clock, ours=lambda: ["file:///state/orders/0/checkpoint"])
        for number in range(1, 4):
            report.update(order[:number])
        names.append({each["queryId"]: each["stage"] for each in due(report, clock)})
    assert names == [{"1": "orders-checkpoint", "2": "users-checkpoint", "3": "checkpoint"}] * 2


def test_a_stage_is_named_after_its_checkpoint() -> None:
    assert stage_name("s3a://states/by customer", "q", set()) == "by-customer"
    assert stage_name("s3a://lake/orders/_checkpoint", "", set()) == "orders-checkpoint"
    assert stage_name("s3a://lake/users/checkpoints/", "", set()) == "users-checkpoints"
    assert stage_name("file://machine-1/state/orders/0/checkpoint", "", set(), ours=True) == "checkpoint"
    second = stage_name("s3a://other/counts", "q", {StageName("counts")})
    assert second.startswith("counts-")
    assert second == stage_name("s3a://other/counts", "q", {StageName("counts")})
    assert stage_name(TEMPORARY.format(1), "", {StageName("temporary")}) == "temporary-2"
    assert stage_name("s3a://states/…", "", set()) == "query"
