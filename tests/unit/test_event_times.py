"""Stages that write an intermediate stream without reporting event time are found before a deployment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sluice.deploy import missing_event_times
from sluice.job import load_job

HEAD = """
from sluice import Job
import marking

job = Job("j")
lines, out = job.input("lines"), job.output("out")
mid, far = job.intermediate("mid", partitions=1), job.intermediate("far", partitions=1)

def marked(rows):
    return rows.withWatermark("at", "1 minute")

@job.stage(reads=mid, writes=far)
def between(task):
    return task.write(task.read(mid), far, event_time="at")

@job.stage(reads=far, writes=out)
def last(task):
    return task.write(LAST, out)

@job.stage(reads=lines, writes=mid)
def first(task):
"""


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return task.write(task.read(lines), mid)", False),
        ('return task.write(task.read(lines), mid, key="k", event_time="at")', True),
        ('return task.write(task.read(lines).withWatermark("at", "1 minute"), mid)', True),
        ("return task.write(marked(task.read(lines)), mid)", True),
        ("return task.write(marking.marked(task.read(lines)), mid)", True),
        ("return task.write(marking.plain(task.read(lines)), mid)", False),
        ("return (lambda rows: marked(rows))(task.read(lines))", True),
    ],
)
def test_a_stage_is_found_that_names_neither_a_watermark_nor_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, named: bool
) -> None:
    monkeypatch.delitem(sys.modules, "marking", raising=False)
    (tmp_path / "marking.py").write_text('plain = lambda rows: rows\n\ndef marked(rows):\n    return rows.withWatermark("at", "1 s")\n')
    file = tmp_path / "job.py"
    file.write_text(f"{HEAD.replace('LAST', 'marked(task.read(far))')}    {body}\n")
    found = missing_event_times(load_job(file))
    assert [each.partition(" without")[0] for each in found] == ([] if named else ["stage first writes mid"])


def test_a_stage_is_not_found_if_no_stage_behind_it_has_a_watermark(tmp_path: Path) -> None:
    (tmp_path / "marking.py").write_text("")
    file = tmp_path / "job.py"
    file.write_text(f"{HEAD.replace('LAST', 'task.read(far)')}    return task.write(task.read(lines), mid)\n")
    assert missing_event_times(load_job(file)) == []
