"""The results that benchmarks compute from their measurements."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bench import assignment, attach, backup, checkpoint_latency, drain, flights, keyed, latency
from bench.__main__ import page, row, rows_of
from bench.checkpoint_latency import Measured
from bench.gateway import operation
from bench.harness import Result
from sluice.core.ids import ProcessorId, TaskName
from sluice.core.jobmodels.placement import slots

PUT = (
    "sluice bench [21/November/2026:15:05:50 +0000] 127.0.0.1 sluice XFRF34LSVMN0NI69 s3_PutObject sluice/blobs/jobs/a/b/c/data/x "
    "/bench/sluice/blobs/jobs/a/b/c/data/x 200 - 0 1 1 1 - sluice - Fc0m"
)
LISTING = (
    "sluice bench [21/November/2026:15:05:50 +0000] 127.0.0.1 sluice Q3UOWCTR25PCMXPC s3_ListObjectsV2 - "
    "/bench?list-type=2&prefix=sluice%2F 200 - 233 0 0 0 - sluice - VTX5"
)


def test_one_benchmark_replaces_its_row_of_the_page_and_keeps_the_others() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    former = {name: row(Result(name, {"rows": 1}, 1.5, "at least 1", met=True), at) for name in ("start", "drain")}
    kept = rows_of(page(former))
    assert kept == former
    again = row(Result("drain", {"rows": 2}, 0.5, "at least 1", met=False), datetime(2026, 4, 1, tzinfo=UTC))
    lines = page({**kept, "drain": again}).splitlines()
    assert [line for line in lines if line.startswith(("| drain", "| start"))] == [again, former["start"]]
    assert again == "| drain | at least 1 | rows: 2 | 0.500 | **no** | 2026-04-01 |"


def test_a_line_of_the_access_log_has_the_operation() -> None:
    assert operation(PUT) == "PutObject"
    assert operation(LISTING) == "ListObjectsV2"


def test_lines_about_other_requests_than_those_for_the_bucket_are_not_counted() -> None:
    assert operation("log starts 2026-11-21 15:05:50.035481403 +0000 UTC m=+0.026371686") is None
    assert operation(PUT.replace(" bench ", " other ")) is None
    assert operation("sluice bench [21/Nov") is None


def test_a_backup_is_judged_by_the_faster_round_of_each_kind_and_the_largest_number_of_puts() -> None:
    mine = backup.Turn(first=10.0, change=0.2, restore=10.0, puts=4)
    turns = {
        "obstore": [backup.Turn(9.0, 0.0, 9.5), backup.Turn(12.0, 0.0, 12.0)],
        "sluice": [replace(mine, first=20.0), replace(mine, restore=20.0)],
        "rclone": [backup.Turn(14.0, 1.1, 6.0)],
        "restic": [backup.Turn(20.0, 1.0, 7.0)],
    }
    found = backup.judged(turns)
    assert found.met
    assert (found.ratio, found.figures["restore_of_obstore"], found.figures["change_speedup"]) == (0.9, 0.95, 5.0)
    assert not backup.judged({**turns, "sluice": [mine, replace(mine, puts=5)]}).met
    assert not backup.judged({**turns, "sluice": [replace(mine, change=0.21)]}).met
    assert not backup.judged({**turns, "sluice": [replace(mine, restore=11.0)]}).met


def test_an_attached_script_is_judged_by_the_spread_of_plain_runs() -> None:
    plain = [attach.Turn(p50, cpu=20.0, start=10.0) for p50 in (900.0, 1000.0, 1100.0)]
    found = attach.judged(plain, [attach.Turn(1100.0, cpu=22.0, start=11.0)])
    assert found.met
    assert (found.ratio, found.figures["plain_spread"], found.figures["cpu_ratio"], found.figures["start_later_s"]) == (1.1, 1.1, 1.1, 1.0)
    assert not attach.judged(plain, [attach.Turn(1101.0, cpu=20.0, start=10.0)]).met
    assert not attach.judged(plain, [attach.Turn(1000.0, cpu=22.1, start=10.0)]).met
    assert not attach.judged(plain, [attach.Turn(1000.0, cpu=20.0, start=11.1)]).met


def test_the_least_moves_are_counted_by_the_tasks_that_each_slot_may_keep() -> None:
    before = {TaskName(f"t{n}"): ProcessorId(str(n % 3)) for n in range(7)}
    assert assignment.least_moves(before, slots(3)) == 0
    assert assignment.least_moves(before, slots(4)) == 1
    assert assignment.least_moves(before, slots(2)) == 2
    assert assignment.least_moves(before, [ProcessorId("1"), ProcessorId("9")]) == 5


def test_an_assignment_is_judged_by_the_change_with_the_most_unnecessary_moves() -> None:
    found = assignment.Moved({"a": 20, "b": 30}, {"a": 20, "b": 30}, {"a": 900, "b": 800}, {})
    assert assignment.judged(found, {}).met
    assert (assignment.judged(replace(found, made={"a": 20, "b": 33}), {}).ratio, assignment.judged(found, {}).ratio) == (1.1, 1.0)
    assert not assignment.judged(replace(found, made={"a": 21, "b": 30}), {}).met


def test_checkpoint_latency_is_judged_by_both_ways_to_commit() -> None:
    found = {"s3a": Measured([1600, 1600, 2000], 300), "interval": Measured([200, 200, 210], 6), "each": Measured([400, 400, 410], 30)}
    result = checkpoint_latency.judged(found)
    assert result.met
    assert (result.ratio, result.figures["each_speedup"]) == (8.0, 4.0)
    assert (result.figures["s3a_requests_per_batch"], result.figures["interval_requests_per_batch"]) == (100.0, 2.0)
    assert not checkpoint_latency.judged({**found, "each": Measured([401, 401], 30)}).met
    assert not checkpoint_latency.judged({**found, "interval": Measured([201, 201], 6)}).met


PHASES = {"STOPPING": 0.2, "FLUSHING": 1.5, "COMMITTING": 0.3}


def test_a_drain_is_judged_by_the_medians_of_jobs_of_one_stage_idle_and_loaded_and_of_two_stages() -> None:
    one = drain.Measured([1.0, 9.0, 1.2], [PHASES] * 3, [0.5, 0.75, 0.6])
    other = drain.Measured([2.5], [PHASES], [2.0])
    found = {"one": one, "loaded": one, "two": other, "million": other}
    result = drain.judged(found, 20.0)
    assert (result.met, result.ratio) == (True, 0.5)
    assert (result.figures["one_s"], result.figures["one_flushing_s"], result.figures["one_bare_s"]) == (1.2, 1.5, 0.6)
    for name in ("one", "loaded", "two"):
        late = drain.Measured([drain.MOST_SECONDS[name] + 0.01], [PHASES], [1.0])
        assert not drain.judged({**found, name: late}, 20.0).met
    assert drain.judged({**found, "million": drain.Measured([60.0], [PHASES], [50.0])}, 90.0).met


def latencies(p50: float, p99: float, cores: float = 0.5, idle: float = 0.0) -> latency.Measured:
    """Of 200 records, the slowest of which took `p99` milliseconds."""
    return latency.Measured([p50 / 1000] * 197 + [p99 / 1000] * 3, cores, idle)


@pytest.mark.parametrize(
    ("tasks", "mine", "missed"),
    [
        (1, latencies(700, 9000, cores=9.0), []),
        (1, latencies(701, 9000), ["p50"]),
        (4, latencies(1300, 2600, cores=1.0, idle=0.08), []),
        (4, latencies(1301, 2600), ["p50 or p99"]),
        (4, latencies(1300, 2601), ["p50 or p99"]),
        (4, latencies(1000, 2000, cores=1.01), ["CPU"]),
        (4, latencies(1000, 2000, idle=0.081), ["idle CPU"]),
        (8, latencies(9000, 9000, cores=9.0, idle=0.16), []),
        (8, latencies(1000, 2000, idle=0.161), ["idle CPU"]),
    ],
)
def test_latency_is_judged_by_two_plain_queries_and_by_the_cpu_of_an_idle_query(
    tasks: int, mine: latency.Measured, missed: list[str]
) -> None:
    base = latencies(1000, 2000)
    assert (base.p50_ms, base.p99_ms) == (1000, 2000)
    assert list(latency.misses(tasks, mine, base)) == missed


def test_a_stage_over_its_own_key_is_judged_by_the_slowest_system_with_four_tasks() -> None:
    found = keyed.judged({"log_plain_rows_s": 5.0}, [1.0, 1.4], [1.3, 0.8])
    assert (found.met, found.ratio, found.figures) == (True, 1.0, {"log_plain_rows_s": 5.0, "worst_batch_p50_ratio": 1.3})
    assert not keyed.judged({}, [1.4, 0.99], [1.0, 1.0]).met
    assert not keyed.judged({}, [1.0, 1.0], [1.0, 1.31]).met


def test_flights_are_judged_by_the_slowest_system_and_number_of_tasks_and_by_the_duration_of_the_run() -> None:
    ratios = {"log_4_ratio": 0.8, "kafka_8_ratio": 1.5}
    found = flights.judged({"log_4_rows_s": 9.0}, ratios, 599.6)
    assert (found.met, found.ratio, found.figures) == (True, 0.8, {"log_4_rows_s": 9.0, **ratios, "run_s": 600})
    assert not flights.judged({}, {"log_4_ratio": 1.2, "kafka_8_ratio": 0.79}, 1.0).met
    assert not flights.judged({}, ratios, 601.0).met


def test_the_speed_of_a_backlog_is_that_of_its_second_half() -> None:
    found = flights.Measured(reached=[(0.0, 0), (10.0, 400), (20.0, 600), (22.0, 1100)])
    assert found.rows_a_second(1000) == 200
