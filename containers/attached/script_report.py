"""What a driver reports of the queries of its script: each is a stage, which is identified by its checkpoint.

A query is kept in the report when it has ended, so that its last batch and its failure stay visible, and it is the same stage when the
script starts it again. At most `MAX_QUERIES` are reported.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from containers.agent.failures import WINDOW, headline
from containers.agent.metrics import Meter
from containers.engine import Batch, Writes
from containers.spark.scripts.active_queries import TEMPORARY
from sluice.clock import Clock
from sluice.core.ids import StageName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire.agents import MAX_QUERIES

log = logging.getLogger(__name__)

AT_LEAST_EVERY = timedelta(seconds=10)
AT_MOST_EVERY = timedelta(seconds=1)

CONTINUOUS = "continuous processing has no batches, between which it could be stopped: use a trigger of batches"


class RunningQuery(Protocol):
    """See `containers.spark.scripts.active_queries.ActiveQuery`."""

    run_id: str
    id: str
    name: str
    checkpoint: str
    is_micro_batch: bool

    def new_progress(self) -> Sequence[Batch | None]: ...

    @property
    def error(self) -> str | None: ...


Q = TypeVar("Q", bound=RunningQuery)


@dataclass
class _Stage:
    """A checkpoint and the last start of its query. `why`: why the query must be stopped; "" if it may run."""

    name: StageName
    checkpoint: str
    meter: Meter
    query: RunningQuery
    active: bool = True
    batch: Batch | None = None
    writes: Mapping[str, Writes] = field(default_factory=dict)
    metrics: wire_agents.StageMetricsBody | None = None
    failed_at: list[float] = field(default_factory=list)
    failures: int = 0
    error: str = ""
    why: str = ""
    undrainable: Sequence[str] = ()
    unreported: str = ""
    """Why the progress of the query was not reported last."""

    @property
    def temporary(self) -> bool:
        return TEMPORARY.search(self.checkpoint) is not None

    def body(self) -> dict[str, Any]:
        """The report of this query. If a value of it is not valid, the report says so instead: those of other queries go on."""
        try:
            found = self._body()
        except ValidationError as error:
            self.invalid(error)
            why = (f"its progress cannot be reported: {self.unreported}"[:300],)
            kept = {"stage": self.name, "checkpoint": self.checkpoint[:2_000], "query_id": self.query.id, "active": self.active}
            found = wire_agents.QueryBody(**kept, error=why[0], failures=max(1, self.failures), undrainable=why)
        return found.model_dump(mode="json", by_alias=True)

    def invalid(self, error: ValidationError) -> None:
        """Log, once for each reason, that a value of the query is not valid."""
        why = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}, not {each['input']!r:.100}" for each in error.errors()[:3])
        if why != self.unreported:
            log.error("the progress of query %s cannot be reported: %s", self.name, why)
        self.unreported = why

    def _body(self) -> wire_agents.QueryBody:
        return wire_agents.QueryBody(
            stage=self.name,
            checkpoint=self.checkpoint,
            name=self.query.name[:1_000],
            query_id=self.query.id,
            batch_id=self.batch.batch if self.batch is not None else None,
            offsets=wire_body.offsets_body(self.batch.offsets) if self.batch is not None else (),
            metrics=self.metrics,
            active=self.active,
            error=self.error.replace("\0", " ")[:2_000],
            failures=self.failures,
            undrainable=tuple(each[:300] for each in self.undrainable[:100]),
            writes=tuple(wire_agents.TopicWrites(topic=topic, **asdict(each)) for topic, each in sorted(self.writes.items())[:100]),
        )


@dataclass(frozen=True, slots=True)
class _Refusal:
    """`run_id`: the start of the query; "" for any."""

    stage: str
    why: str
    run_id: str


class ScriptReport:
    """`host`: the name of this machine, which distinguishes its local checkpoints from those of others. `undrainable`: why a query cannot
    be drained. `writes`: what it has written with `app.kafka_writer`, by topic. `ours`: the URLs of `app.checkpoint`. Not thread-safe,
    except for `refuse`, `refuse_reported` and `stage_of`."""

    def __init__(
        self,
        host: str,
        clock: Clock,
        undrainable: Callable[[Any], Sequence[str]] = lambda query: (),
        writes: Callable[[Any], Mapping[str, Writes]] = lambda query: {},
        ours: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._host = host
        self._clock = clock
        self._undrainable = undrainable
        self._writes = writes
        self._ours = ours
        self._stages: dict[str, _Stage] = {}
        self._refused: list[_Refusal] = []
        self._reported: Mapping[str, str] = {}
        """The starts that were active at the last report, by stage."""
        self._changed = True
        self._sent_at: float | None = None

    def refuse(self, stage: str, why: str, run_id: str = "") -> None:
        """Record that the query of the stage must be stopped: the start with this id, otherwise the present or next one."""
        self._refused.append(_Refusal(stage, why, run_id))

    def refuse_reported(self, stage: str, why: str) -> None:
        """Record that the query of the stage must be stopped, as the answer to a report. A later start is not what was refused."""
        run_id = self._reported.get(stage)
        if run_id is not None:
            self.refuse(stage, why, run_id)

    def stage_of(self, query: RunningQuery) -> StageName | None:
        """The name under which the query is reported; None if it is not."""
        stage = self._stages.get(location(query.checkpoint, self._host))
        return None if stage is None else stage.name

    def update(self, active: Sequence[Q]) -> Sequence[tuple[Q, str]]:
        """Read the progress of the active queries. Returns those that must be stopped, once, with the reason."""
        for query in active:
            self._started(query)
        running = {each.run_id for each in active}
        for stage in list(self._stages.values()):
            if stage.active and stage.query.run_id not in running:
                self._ended(stage)
            elif stage.active:
                self._read(stage)
        self._forget()
        return [(query, why) for query in active if (why := self._why(query))]

    def due(self) -> Sequence[dict[str, Any]] | None:
        """The report, if it must be sent now because it has changed or the last one is ten seconds old; otherwise None."""
        now = self._clock.elapsed()
        age = None if self._sent_at is None else timedelta(seconds=now - self._sent_at)
        if age is not None and age < (AT_MOST_EVERY if self._changed else AT_LEAST_EVERY):
            return None
        self._changed, self._sent_at = False, now
        self._reported = {each.name: each.query.run_id for each in self._stages.values() if each.active}
        return [each.body() for each in self._stages.values()]

    def _started(self, query: RunningQuery) -> None:
        checkpoint = location(query.checkpoint, self._host)
        stage = self._stages.get(checkpoint)
        if stage is None:
            if sum(each.active for each in self._stages.values()) >= MAX_QUERIES:
                return
            taken = {each.name for each in self._stages.values()}
            name = stage_name(checkpoint, query.name, taken, ours=any(location(each, self._host) == checkpoint for each in self._ours()))
            meter = Meter(ATTACHED_TASK, name, lambda: 0, timedelta(0), self._clock)
            stage = self._stages[checkpoint] = _Stage(name, checkpoint, meter, query)
        elif stage.query.run_id != query.run_id:
            if stage.active:
                self._ended(stage)
            if stage.query.id != query.id:
                stage.batch = stage.metrics = None
                stage.writes = {}
            stage.query, stage.active, stage.why = query, True, ""
        else:
            return
        if not query.is_micro_batch:
            self.refuse(stage.name, CONTINUOUS, query.run_id)
        stage.undrainable = self._undrainable(query)
        self._changed = True

    def _read(self, stage: _Stage) -> None:
        stage.writes = self._writes(stage.query) or stage.writes
        for batch in stage.query.new_progress():
            self._changed = True
            try:
                if batch is not None:
                    stage.batch = replace(batch, writes=stage.writes)
                    stage.metrics = stage.meter.committed(stage.batch)
                elif stage.batch is not None:
                    stage.metrics = stage.meter.idle()
            except ValidationError as error:
                stage.metrics = None
                stage.invalid(error)

    def _ended(self, stage: _Stage) -> None:
        self._read(stage)
        stage.active, self._changed = False, True
        error = stage.query.error
        if error is not None and not stage.why:
            self._failed(stage, headline(error, script_directory()))

    def _failed(self, stage: _Stage, error: str) -> None:
        now = self._clock.elapsed()
        stage.failed_at = [each for each in stage.failed_at if each >= now - WINDOW.total_seconds()] + [now]
        stage.failures, stage.error, self._changed = len(stage.failed_at), error, True

    def _why(self, query: RunningQuery) -> str:
        """Why the query must be stopped; "" if it may run, or if the reason was already returned."""
        stage = self._stages.get(location(query.checkpoint, self._host))
        if stage is None:
            return ""
        found = [each for each in self._refused if each.stage == stage.name and each.run_id in ("", query.run_id)]
        for each in found:
            self._refused.remove(each)
        why = found[0].why if found else ""
        if not why or stage.why or not stage.active:
            return ""
        stage.why = why
        self._failed(stage, stage.why)
        return stage.why

    def _forget(self) -> None:
        """Forget ended queries: those without a checkpoint at once, and the oldest of the others when there are too many."""
        ended = [each for each in self._stages.values() if not each.active]
        gone = [each for each in ended if each.temporary and not each.failures]
        excess = max(0, len(self._stages) - len(gone) - MAX_QUERIES)
        for each in gone + [each for each in ended if each not in gone][:excess]:
            del self._stages[each.checkpoint]


def location(checkpoint: str, host: str) -> str:
    """A checkpoint's URL that is the same wherever it is read: "file:/state/counts" -> "file://machine-1/state/counts"."""
    for local in ("file:///", "file:/"):
        if checkpoint.startswith(local):
            return f"file://{host}/{checkpoint.removeprefix(local)}"
    return checkpoint.rstrip("/")


def stage_name(checkpoint: str, query: str, taken: Collection[StageName], *, ours: bool = False) -> StageName:
    """The name of the stage of a checkpoint: the last part of its location, with the part before it if the last one is usual for all
    checkpoints (`orders/_checkpoint`); for a temporary one, the name of the query. `ours`: the script has chosen the last part."""
    before, _, last = checkpoint.rstrip("/").rpartition("/")
    if not ours and re.fullmatch(r"_.*|checkpoints?", last):
        last = f"{before.rpartition('/')[2]}-{last.lstrip('_')}"
    temporary = TEMPORARY.fullmatch(last) is not None
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", (query or "temporary") if temporary else last).strip("-._")[:200] or "query"
    if plain not in taken:
        return StageName(plain)
    if not temporary:
        return StageName(f"{plain}-{sha256(checkpoint.encode()).hexdigest()[:8]}")
    return StageName(next(name for number in range(2, len(taken) + 3) if (name := f"{plain}-{number}") not in taken))


def script_directory() -> Path | None:
    """The directory of the script that this process runs."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None
