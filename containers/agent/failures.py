"""Failures of a stage: the text of an error, whether it is the same error as before, and when to try again.

An error of user code arrives as text, with the frames of Py4J, PySpark and the JVM around those of the user. `headline` finds the line that
the user wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path

from containers.errors import StateIncompatible

WINDOW = timedelta(minutes=10)
"""Failures are counted over this period: a query that fails once a day is always restarted."""

LONGEST_PAUSE = timedelta(minutes=1)

LONGEST_WAIT_FOR_ROOM = timedelta(seconds=15)
"""The longest pause before a batch that failed on a full disk is tried again."""

SAME = 2
"""After this many failures in a row with the same error, a batch is tried once more."""

LONGEST_LINE = 1000

NO_PYTHON_WORKER = "Python worker failed to connect back"
"""Spark's error on a machine that is too busy to start a process in time. The batch is not the cause."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A failing query is restarted `limit` times within WINDOW."""

    limit: int
    pause: timedelta

    def pause_after(self, failures: int) -> timedelta:
        """The pause before the restart after `failures` failures: `pause`, doubled with each."""
        return min(LONGEST_PAUSE, self.pause * float(2 ** (failures - 1)))

    def last_pause(self, failures: int) -> timedelta:
        """The pause before the last attempt at a batch that repeatedly fails with the same error: as long as the remaining restarts would
        take. A short outage of another system may end in this time."""
        return sum((self.pause_after(each) for each in range(failures, self.limit + 1)), timedelta(0))


class StageFailed(Exception):
    """A stage has failed too often. The message begins with its last error. `repeated`: it was the same error each time, so another process
    with the same code would probably fail, too."""

    def __init__(self, message: str, *, repeated: bool) -> None:
        super().__init__(message)
        self.repeated = repeated


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A failure of a stage. `error`: one line, that of the user's code first. `failures`: within WINDOW. `retry_in`: the time until the
    next attempt; None if there is none."""

    error: str
    failures: int
    retry_in: timedelta | None


class Failures:
    """The failures of one query. `committed` is called for each batch that succeeds."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: list[float] = []
        self._same = 0
        self._last = ""
        self._without_room = 0

    @property
    def recent(self) -> int:
        """The number of failures within WINDOW, as of the last failure."""
        return len(self._times)

    def committed(self) -> None:
        """Record that a batch has succeeded: the next failure is of another batch."""
        self._same, self._last, self._without_room = 0, "", 0

    def without_room(self, error: str) -> StageFailure:
        """Record that the query failed because a disk is full. It is retried until there is room. This does not count as a failure of the
        user's code."""
        self._without_room += 1
        doublings = min(self._without_room - 1, 10)
        return StageFailure(error[:LONGEST_LINE], self._without_room, min(LONGEST_WAIT_FOR_ROOM, self._policy.pause * float(2**doublings)))

    def failed(self, query: str, error: str, now: float) -> StageFailure:
        """Count a failure; `error` is a headline. Raises StageFailed if the query must not be restarted."""
        recent = [each for each in self._times if each >= now - WINDOW.total_seconds()]
        again = bool(recent) and similar(error) == self._last and NO_PYTHON_WORKER not in error
        self._same = self._same + 1 if again else 1
        self._times = [*recent, now]
        self._last = similar(error)
        failures, same = len(self._times), self._same
        if same > SAME or (failures > self._policy.limit and same >= SAME):
            raise StageFailed(f"{error}\n{query} failed {same} times in a row with this error", repeated=True)
        if failures > self._policy.limit:
            raise StageFailed(f"{error}\n{query} failed {failures} times within {WINDOW}; this is the last error", repeated=False)
        pause = self._policy.last_pause(failures) if same == SAME else self._policy.pause_after(failures)
        return StageFailure(error, failures, pause)


# --- state of another query ------------------------------------------------------------------------------------------

_OTHER_STATE = re.compile(
    r"\[(STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE|STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
    r"|STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION|STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA)\] ?(.*)"
)
"""Error conditions of Spark, in its error-conditions.json: the operators of a query, or the schema of their state, are not those of the
checkpoint."""


def check_state_fits(error: str) -> None:
    """Raises StateIncompatible if the query failed because its checkpoint is that of another query."""
    found = _OTHER_STATE.search(error)
    if found is not None:
        raise StateIncompatible(
            "the state in the checkpoint was written by another version of this stage, with other operators or another schema; deploy the "
            f"change with `sluice upgrade JOBFILE`, which drains the job first, or deploy the former file again. Spark: {found[0][:600]}"
        )


# --- the text of an error --------------------------------------------------------------------------------------------

_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
TRACEBACK = "Traceback (most recent call last):"
_PY4J = "py4j.protocol.Py4JJavaError: An error occurred while calling "
_JAVA_ERROR = re.compile(r": (?P<error>[\w.$]+: .+)")
"""The line after `_PY4J`."""
_CAUSED_BY = re.compile(r"Caused by: (?P<error>.+)")
_VARYING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # ids of queries
    r"|0x[0-9a-f]+"
    r"|\bo\d+(?=\.\w)"  # Py4J's names of objects
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*"
    r"|\b(?:stage|task|tid|attempt|job) \d+(?:\.\d+)?"  # Spark's numbers
    r"|\d{5,}",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: str
    function: str


@dataclass(frozen=True, slots=True)
class _Traceback:
    frames: Sequence[_Frame]
    error: str


def similar(error: str) -> str:
    """The error without ids, addresses and times: equal for two occurrences of one error."""
    return _VARYING.sub("#", error)


def headline(text: str, job_directory: Path | None) -> str:
    """The error on one line. If code in the directory of the job file has raised it, the line of that code is first:

    /jobs/delays.py:12 in write: ZeroDivisionError: division by zero
    """
    tracebacks = list(_tracebacks(text.splitlines()))
    for each in reversed(tracebacks):
        own = [frame for frame in each.frames if _is_own(frame, job_directory)]
        if own:
            return f"{own[-1].file}:{own[-1].line} in {own[-1].function}: {each.error}"[:LONGEST_LINE]
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no error was given")
    return (tracebacks[-1].error if tracebacks else first)[:LONGEST_LINE]


def _is_own(frame: _Frame, directory: Path | None) -> bool:
    """Whether the file is the user's. A virtual environment may be in the directory of the job file."""
    return directory is not None and Path(frame.file).is_relative_to(directory) and "site-packages" not in frame.file


def _tracebacks(lines: Sequence[str]) -> Iterator[_Traceback]:
    """Python's tracebacks in a text, which may also have Java's."""
    frames: list[_Frame] | None = None
    for n, line in enumerate(lines):
        if TRACEBACK in line:
            frames = []
        elif frames is None:
            continue
        elif (found := _FRAME.fullmatch(line)) is not None:
            frames.append(_Frame(**found.groupdict()))
        elif line.strip() and not line[0].isspace():
            yield _Traceback(frames, _java_error(lines[n + 1 :]) if line.startswith(_PY4J) else line.strip())
            frames = None


def _java_error(lines: Sequence[str]) -> str:
    """The error of the JVM that Python reports as a Py4JJavaError, whose first line does not tell it, and its innermost cause. `lines`:
    those after the first line. A Python traceback that follows belongs to another error."""
    found = _JAVA_ERROR.fullmatch(lines[0]) if lines else None
    if found is None:
        return f"{_PY4J}a method of the JVM"
    own = list(takewhile(lambda line: TRACEBACK not in line, lines))
    causes = [cause["error"] for line in own if (cause := _CAUSED_BY.fullmatch(line)) is not None]
    return f"{found['error']} Caused by: {causes[-1]}" if causes else found["error"]
