"""Output for people, on terminals of several widths and on pipes."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from sluice.cli.console.pages import ProcessRow, local_page, status_page
from sluice.cli.console.tables import (
    Screen,
    containers_table,
    duration,
    jobs_table,
    millis,
    rate,
    rendered,
    runs_table,
    shown,
    stages_table,
    tasks_table,
)
from sluice.status import overview, status_of
from sluice.wire import runs as wire_runs
from tests.support.api import NOON, RUN, ago, container, detail, execution_id, stage, stage_metrics, task

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LATE = (container(0, state="LOST", exit_code=-9, reason="its driver was\nended by \x1b[31mSIGKILL", lease_seconds_left=None), container(1))


def plain(page: RenderableType) -> str:
    return rendered(page, Console(file=io.StringIO(), force_terminal=False))


def on_terminal(page: RenderableType, width: int) -> str:
    """The text as shown on a terminal of that width, without colours."""
    return ESCAPE.sub("", rendered(page, Console(file=io.StringIO(), force_terminal=True, width=width)))


def summary(**changes: Any) -> wire_runs.RunSummary:
    return wire_runs.RunSummary.model_validate(detail().model_dump() | changes)


# --- cells ---


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86_399, "23h59m"),
        (360_000, "4d04h"),
        (-5, "-5s"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(("value", "said"), [(None, "-"), (999, "999ms"), (1500, "1.5s"), (90_000, "1m30s")])
def test_the_duration_of_a_batch_is_shown_in_milliseconds_or_seconds(value: float | None, said: str) -> None:
    assert millis(value) == said


@pytest.mark.parametrize(("value", "said"), [(None, "-"), (0.0, "0"), (0.25, "0.2"), (12_345.6, "12,346")])
def test_a_rate_is_shown_with_its_significant_digits(value: float | None, said: str) -> None:
    assert rate(value) == said


def test_external_text_is_shown_on_one_line_without_control_characters() -> None:
    assert shown("a\n b\t\x1b[31mred\x07") == "a b \ufffd[31mred\ufffd"


# --- tables ---


def test_output_to_a_file_is_complete_and_plain() -> None:
    lines = plain(containers_table(detail(incarnations=LATE), None)).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [
        *("0", "LOST", execution_id(0), "-", "1", "worker-7.example", "2026-03-01T11:56:00Z", "2026-03-01T11:59:59Z", "-9"),
        *("its", "driver", "was", "ended", "by", "\ufffd[31mSIGKILL"),
    ]
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_long_reason_stays_on_its_line() -> None:
    reason = "because " * 500
    output = plain(runs_table(wire_runs.RunsReply(runs=(summary(reason=reason),), next=None), None)).splitlines()
    assert len(output) == 2
    assert output[1].endswith(reason.strip())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    run = detail(incarnations=LATE, tasks=tuple(task(n, execution_id(1)) for n in range(40)))
    reply = wire_runs.RunsReply(runs=(summary(state="FAILED", reason="boom " * 50),), next=None)
    processes = [ProcessRow("container-1", "1", "up", 4711, 2)]
    pages: list[RenderableType] = [containers_table(run, width), tasks_table(run, NOON, width), runs_table(reply, width)]
    pages += [stages_table(overview(run, NOON).stages, width), local_page(processes, run, overview(run, NOON), NOON, "says", width)]
    for page in pages:
        assert max(len(line) for line in on_terminal(page, width).splitlines()) <= width


def test_a_narrow_terminal_has_fewer_columns_and_every_row() -> None:
    run = detail()
    narrow, wide = (on_terminal(tasks_table(run, NOON, width), width).splitlines() for width in (80, 200))
    assert narrow[0].split() == ["TASK", "OWNER", "GEN", "STAGE", "BATCH", "ROWS/S", "LAG", "REPORT"]
    numbers = ["BATCH", "ROWS/S", "LAG", "TOOK", "WATERMARK", "LAG", "BACKUP", "REPORT"]
    assert wide[0].split() == ["TASK", "SLOT", "OWNER", "GEN", "STAGE", *numbers]
    assert len(narrow) == len(wide) == 9


def test_free_text_folds_and_loses_nothing() -> None:
    reason = " ".join(f"word{n}" for n in range(60))
    output = on_terminal(runs_table(wire_runs.RunsReply(runs=(summary(reason=reason),), next=None), 80), 80)
    assert re.findall(r"word\d+", output) == reason.split()
    assert RUN in output


def test_in_a_narrow_column_an_id_is_shown_without_its_run() -> None:
    assert "container-0-0a1b2c3d" in on_terminal(tasks_table(detail(), NOON, 80), 80)
    assert RUN not in on_terminal(tasks_table(detail(), NOON, 80), 80)
    assert execution_id(0) in plain(tasks_table(detail(), NOON, None))


def test_a_task_shows_each_of_its_stages_on_a_line() -> None:
    reported = stage_metrics(rows_per_second=12.0, lag=3, batch_millis=1500, watermark=ago(minutes=3))
    held = task(
        0, execution_id(0), stage("route", metrics=reported, snapshot_at=ago(minutes=1)), stage("hourly", metrics=None), generation=4
    )
    free = task(1, None, stage("route", batch_id=None, reported_at=None, metrics=None), generation=None)
    lines = [line.split() for line in plain(tasks_table(detail(tasks=(held, free)), NOON, None)).splitlines()[1:]]
    assert lines[0] == ["Partition", "0", "0", execution_id(0), "4", "route", "41", "12", "3", "1.5s", "2m58s", "1m00s", "2s"]
    assert lines[1] == ["Partition", "0", "0", execution_id(0), "4", "hourly", "41", "-", "-", "-", "-", "-", "2s"]
    assert lines[2] == ["Partition", "1", "1", "none", "-", "route", "-", "-", "-", "-", "-", "-", "-"]
    assert lines[3] == ["Partition", "1", "1", "none", "-", "hourly", "-", "-", "-", "-", "-", "-", "-"]


def test_jobs_are_listed_with_their_runs() -> None:
    reply = wire_runs.JobsReply.model_validate({"jobs": [{"job": "a", "currentRun": "a-1", "state": "RUNNING", "runs": 1200}]})
    assert plain(jobs_table(reply, None)).splitlines()[1].split() == ["a", "RUNNING", "a-1", "1,200"]


# --- pages ---


def test_a_status_shows_a_run_its_problems_and_its_stages() -> None:
    run = overview(detail(tasks=(task(0, execution_id(0)), task(1, None))), NOON)
    lines = plain(status_page(status_of([run]), NOON, None)).splitlines()
    assert lines[:5] == [
        "flight-delays  RUNNING since 2026-03-01T11:55:48Z (4m12s)",
        f"  run         {RUN}",
        "  containers  2/2 live, lease left 35s",
        "  tasks       1/2 owned",
        "! 1 task without an owner: Partition 1",
    ]
    assert [line.split()[0] for line in lines[6:]] == ["STAGE", "route", "hourly"]
    assert lines[7].split()[1:] == ["2,000", "200", "800ms", "-", "2s", "-", "84", "-"]


def test_a_status_shows_how_a_stage_writes() -> None:
    measured = stage_metrics(delivery={"delays": "at-least-once"})
    run = overview(detail(tasks=(task(0, execution_id(0), stage("route", metrics=measured)),)), NOON)
    header, route = [
        line.split() for line in plain(status_page(status_of([run]), NOON, None)).splitlines() if "ROWS/S" in line or "route" in line
    ]
    assert (header[-1], route[-1]) == ("DELIVERY", "at-least-once")


def test_a_run_that_has_ended_shows_the_reason_and_no_numbers() -> None:
    stopped = overview(detail(state="STOPPED", reason="sluice run ends", ended_at=ago(days=3)), NOON)
    failed = overview(detail(state="FAILED", reason="boom", ended_at=ago(minutes=1)), NOON)
    assert plain(status_page(status_of([stopped, failed]), NOON, None)).splitlines() == [
        "flight-delays  STOPPED since 2026-02-26T12:00:00Z (3d00h)",
        f"  run         {RUN}",
        "  reason      sluice run ends",
        "",
        "flight-delays  FAILED since 2026-03-01T11:59:00Z (1m00s)",
        f"  run         {RUN}",
        f"! run {RUN} has failed: boom",
    ]


def test_a_run_that_is_being_stopped_says_so() -> None:
    stopping = overview(detail(stop_requested_at=NOON), NOON)
    assert "(4m12s), stopping" in plain(status_page(status_of([stopping]), NOON, None))


def test_without_a_job_a_message_says_so() -> None:
    assert plain(status_page(status_of([]), NOON, None)) == "there are no jobs yet"


PROCESSES = [
    ProcessRow("coordinator", None, "up", 100, 0),
    ProcessRow("container-0", "0", "up", 101, 1),
    ProcessRow("container-1", "1", "again in 3s", None, 2),
]


def test_the_run_of_this_machine_shows_processes_with_their_tasks_and_the_totals() -> None:
    run = detail(incarnations=(container(0),), tasks=(task(0, execution_id(0), generation=2), task(1, execution_id(1)), task(2, None)))
    output = [line.split() for line in plain(local_page(PROCESSES, run, overview(run, NOON), NOON, "", None)).splitlines() if line]
    assert output[1] == ["containers", "1/2", "tasks", "2/3", "rows/s", "6,000", "lag", "600", "batches", "252"]
    assert output[3] == ["coordinator", "up", "100", "0", "-"]
    assert output[4] == ["container-0", "up", "101", "1", "36s", "Partition", "0", "(2)"]
    assert output[5] == ["container-1", "again", "in", "3s", "-", "2", "-"]
    assert output[6] == ["no", "container", "Partition", "1", "(1),", "Partition", "2", "(1)"]
    assert output[7][0] == "STAGE"


def test_before_the_deployment_processes_and_problems_are_shown() -> None:
    output = plain(local_page(PROCESSES, None, None, NOON, "the coordinator does not answer", None)).splitlines()
    assert output[-1] == "the coordinator does not answer"
    assert len([line for line in output if line]) == 5


def test_of_many_tasks_some_are_named_and_the_others_counted() -> None:
    run = detail(tasks=tuple(task(n, execution_id(0)) for n in range(100)))
    assert "Partition 15 (1), and 84 more" in plain(local_page(PROCESSES, run, overview(run, NOON), NOON, "", None))


# --- screens ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    Screen(out).show(status_page(status_of([overview(detail(), NOON)]), NOON, 80))
    assert "\x1b[32mRUNNING\x1b[0m" in out.getvalue()


def test_a_terminal_with_no_color_gets_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    Screen(out).show(status_page(status_of([overview(detail(), NOON)]), NOON, 80))
    assert "RUNNING" in out.getvalue()
    assert "\x1b[32m" not in out.getvalue()


def test_a_file_gets_no_colours_even_with_force_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    screen = Screen(out)
    assert screen.width is None
    screen.show(status_page(status_of([overview(detail(), NOON)]), NOON, screen.width))
    assert out.getvalue().startswith("flight-delays  RUNNING since")
    assert "\x1b" not in out.getvalue()


def test_characters_that_a_terminal_cannot_show_are_escaped() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Screen(out).say("é")
    assert raw.getvalue() == b"\\xe9\n"
