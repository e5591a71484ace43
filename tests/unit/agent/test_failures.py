"""The text of a stage's error, and when a failed stage is restarted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.agent.failures import SAME, WINDOW, Failures, RestartPolicy, StageFailed, check_state_fits, headline, similar
from containers.errors import StateIncompatible

JOBS = Path("/srv/jobs")

FOREACH_BATCH = """\
org.apache.spark.sql.streaming.StreamingQueryException: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided \
function in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/opt/venv/lib/python3.11/site-packages/containers/spark/session.py", line 112, in call
    self._about.copy().run(super().call, jdf, batch_id)
  File "/srv/jobs/delays.py", line 12, in write
    save(rows)
    ^^^^^^^^^^
  File "/srv/jobs/lib/sink.py", line 7, in save
    return 1 / 0
           ~~^~~
  File "/opt/venv/lib/python3.11/site-packages/somewhere/deep.py", line 1, in divide
    raise ZeroDivisionError("division by zero")
ZeroDivisionError: division by zero
 SQLSTATE: 39000
=== Streaming Query ===
Identifier: Partition 0/only [id = 0f0e0d0c-1111-2222-3333-444455556666, runId = 0f0e0d0c-1111-2222-3333-444455556667]
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:372)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/srv/jobs/delays.py", line 12, in write
    save(rows)
  File "/srv/jobs/lib/sink.py", line 7, in save
    return 1 / 0
ZeroDivisionError: division by zero

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""

WRAPPED = """\
Traceback (most recent call last):
  File "/srv/jobs/delays.py", line 30, in write
    sys.exit("enough")
SystemExit: enough

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/containers/spark/session.py", line 116, in call
    raise RuntimeError(f"the batch function raised {type(error).__name__}: {error}") from error
RuntimeError: the batch function raised SystemExit: enough
"""

JVM = """\
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 12.0 failed 1 times, most recent failure: Lost task 0.0 \
in stage 12.0 (TID 15) (host executor driver): java.lang.IllegalStateException: no leader
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""

PY4J = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/py4j/protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o916.collectToPython.
: org.apache.spark.SparkException: [MALFORMED_RECORD] Malformed records are detected in record parsing: [null].
Parse Mode: FAILFAST.
\tat org.apache.spark.sql.errors.QueryExecutionErrors.failed(QueryExecutionErrors.scala:1615)
Caused by: org.apache.spark.sql.catalyst.util.BadRecordException: bad record
\tat org.apache.spark.sql.catalyst.json.JacksonParser.parse(JacksonParser.scala:600)
Caused by: com.fasterxml.jackson.core.JsonParseException: Unrecognized token 'no'
\t... 12 more
"""


def test_the_line_of_user_code_comes_first_and_frames_of_libraries_are_skipped() -> None:
    assert headline(FOREACH_BATCH, JOBS) == "/srv/jobs/lib/sink.py:7 in save: ZeroDivisionError: division by zero"


def test_of_chained_errors_the_one_that_user_code_raised_is_shown() -> None:
    assert headline(WRAPPED, JOBS) == "/srv/jobs/delays.py:30 in write: SystemExit: enough"


@pytest.mark.parametrize("directory", [None, Path("/home/other")])
def test_without_a_line_of_user_code_the_error_itself_is_shown(directory: Path | None) -> None:
    assert headline(WRAPPED, directory) == "RuntimeError: the batch function raised SystemExit: enough"


def test_an_error_of_the_jvm_that_python_reports_is_shown_with_its_innermost_cause() -> None:
    assert headline(PY4J, JOBS) == (
        "org.apache.spark.SparkException: [MALFORMED_RECORD] Malformed records are detected in record parsing: [null]. "
        "Caused by: com.fasterxml.jackson.core.JsonParseException: Unrecognized token 'no'"
    )
    assert headline(PY4J + "\n" + WRAPPED, None) == headline(WRAPPED, None)


def test_names_of_objects_in_the_jvm_make_no_other_error() -> None:
    assert similar("An error occurred while calling o916.start") == similar("An error occurred while calling o1114.start")


def test_an_environment_beside_the_job_file_is_not_the_users_code() -> None:
    assert headline(FOREACH_BATCH, Path("/opt/venv")) == "ZeroDivisionError: division by zero"


def test_an_error_of_the_jvm_is_its_first_line() -> None:
    assert headline(JVM, JOBS).startswith("org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 12.0")
    assert "\n" not in headline(JVM, JOBS)
    assert headline("\n \n", JOBS) == "no error was given"


@given(st.text())
def test_any_text_has_a_headline_of_one_line(text: str) -> None:
    found = headline(text, JOBS)
    assert found
    assert len(found.splitlines()) == 1


def test_an_error_that_differs_only_in_numbers_of_spark_is_the_same_error() -> None:
    later = JVM.replace("stage 12.0", "stage 13.0").replace("TID 15", "TID 17")
    assert similar(headline(later, JOBS)) == similar(headline(JVM, JOBS))
    assert similar("job.py:7 in f: KeyError: 'a'") != similar("job.py:8 in f: KeyError: 'a'")


# --- restarts --------------------------------------------------------------------------------------------------------

POLICY = RestartPolicy(5, timedelta(seconds=1))


def failed(failures: Failures, error: str, now: float = 0.0) -> float:
    """The pause before the next attempt, in seconds."""
    pause = failures.failed("Partition 0/only", error, now).retry_in
    assert pause is not None
    return pause.total_seconds()


def test_a_batch_that_fails_again_with_the_same_error_is_tried_once_more_at_the_end_of_the_other_restarts() -> None:
    failures = Failures(POLICY)
    assert [failed(failures, "job.py:7 in f: KeyError: 'a'", now) for now in (0, 1)] == [1, 2 + 4 + 8 + 16]
    with pytest.raises(StageFailed) as raised:
        failures.failed("Partition 0/only", "job.py:7 in f: KeyError: 'a'", 31)
    assert raised.value.repeated
    assert str(raised.value) == "job.py:7 in f: KeyError: 'a'\nPartition 0/only failed 3 times in a row with this error"


def test_different_errors_are_tried_up_to_the_limit() -> None:
    failures = Failures(POLICY)
    assert [failed(failures, f"error {n}") for n in range(5)] == [1, 2, 4, 8, 16]
    with pytest.raises(StageFailed, match="failed 6 times within 0:10:00; this is the last error") as raised:
        failures.failed("Partition 0/only", "error 5", 0)
    assert not raised.value.repeated


def test_failing_to_start_a_python_worker_on_a_busy_machine_is_not_an_error_of_the_batch() -> None:
    failures, error = Failures(POLICY), "org.apache.spark.SparkException: Python worker failed to connect back."
    assert [failed(failures, error) for _ in range(5)] == [1, 2, 4, 8, 16]
    with pytest.raises(StageFailed) as raised:
        failures.failed("Partition 0/only", error, 0)
    assert not raised.value.repeated


def test_after_a_successful_batch_the_same_error_counts_for_another_batch() -> None:
    failures = Failures(POLICY)
    for number in range(5):
        assert failed(failures, "no broker") == 2**number
        failures.committed()


def test_the_same_error_once_a_day_counts_as_new_each_time() -> None:
    failures = Failures(POLICY)
    assert [failed(failures, "no broker", day * 86_400) for day in range(9)] == [1] * 9


def test_a_single_failure_is_not_a_repeated_one_under_any_limit() -> None:
    with pytest.raises(StageFailed) as raised:
        Failures(RestartPolicy(0, timedelta(seconds=1))).failed("q", "boom", 0)
    assert not raised.value.repeated


@given(st.integers(0, 8), st.lists(st.sampled_from(["a", "b", "batch"]), max_size=60))
def test_no_error_is_tried_more_often_than_the_limit_or_three_times_in_a_row(limit: int, events: list[str]) -> None:
    failures, count, row, last = Failures(RestartPolicy(limit, timedelta(seconds=1))), 0, 0, ""
    for event in events:
        if event == "batch":
            failures.committed()
            row, last = 0, ""
            continue
        row, last = (row + 1 if event == last else 1), event
        if count >= limit or row > SAME:
            with pytest.raises(StageFailed) as raised:
                failures.failed("q", event, 0)
            assert raised.value.repeated == (row >= SAME)
            return
        count += 1
        pause = failures.failed("q", event, 0).retry_in
        assert pause is not None
        assert pause <= WINDOW


# --- the state of another query --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition",
    [
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    ],
)
def test_state_of_another_schema_is_answered_with_the_command_that_can_change_it(condition: str) -> None:
    error = f"org.apache.spark.SparkUnsupportedOperationException: [{condition}] Provided key schema does not match."
    with pytest.raises(StateIncompatible, match=rf"sluice upgrade JOBFILE.*\[{condition}\] Provided key schema"):
        check_state_fits(error)


def test_any_other_error_is_not_reported_as_incompatible_state() -> None:
    check_state_fits(FOREACH_BATCH)
    check_state_fits("ValueError: STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE")
