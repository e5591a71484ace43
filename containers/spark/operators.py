"""The stateful operators of a stage, and what empties each of them. Derived from the logical plan of the query in the JVM, before the query
runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, unique
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from containers.engine import StatefulOperator
from sluice.core.drain import Effect
from sluice.core.errors import BadJobFile
from sluice.core.jobmodels.graph import Stage

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


WATERMARK = "spark.watermarkDelayMs"
"""The key in the metadata of a column with a watermark, and of a window over one."""


_WITH_WATERMARK = "EventTimeWatermark"

_USER_CODE = ("applyInPandasWithState", "transformWithState")


@unique
class Empties(Enum):
    """What makes an operator remove its state."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Operator:
    """`kind` is its name in the DataFrame API. `why`: what is missing, if nothing empties it. `flushed`: what a flush does to its state, if
    something empties it. `identity`: a text of what it computes and keeps; operators with equal texts can use each other's state."""

    kind: str
    empties: Empties
    why: str = ""
    flushed: Effect = Effect.EMITS
    identity: str = ""

    @property
    def effect(self) -> Effect:
        return Effect.LEAVES if self.empties is Empties.NOTHING else self.flushed

    @property
    def timed(self) -> bool:
        """Whether user code may set timers in it."""
        return self.kind in _USER_CODE and self.empties is not Empties.NOTHING

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}" if self.why else self.kind


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The calls of `withWatermark` in a query. `delay`: the largest delay, None without a call. `above`: the largest delay above each
    stream that the query reads, by the stream's name. `stateful`: whether the query has stateful operators. `emits_state`: whether one of
    them appends rows from its state when the watermark rises, as windows do; a deduplication does not."""

    delay: timedelta | None
    above: Mapping[str, timedelta]
    stateful: bool
    emits_state: bool


_EMITTING = (Effect.EMITS, Effect.UNMATCHED, Effect.FIRES)


class LogicalPlan:
    """The analyzed logical plan of a streaming query. It is read once, because each member of an object in the JVM costs a round trip."""

    def __init__(self, plan: Any, mode: str) -> None:
        """`plan`: the JVM's object. `mode`: Spark's name of the output mode."""
        self._nodes = tuple((node, str(node.getClass().getSimpleName())) for node in _streaming_nodes(plan))
        self._mode = mode

    @classmethod
    def of(cls, writer: DataStreamWriter) -> LogicalPlan:
        return cls(writer._df._jdf.queryExecution().analyzed(), _output_mode(writer._jwrite))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The stateful operators, from the sink to the sources."""
        found = [(each, operator) for each in self._nodes if (operator := _operator(*each, self._mode)) is not None]
        return tuple(replace(operator, identity=_short(f"{operator.kind} {_identity(*each, self._mode)}")) for each, operator in found)

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The streams of the query's sources, in the order of Spark's offset log; None for a source that is not Sluice's."""
        return tuple(_stream_of(node) for node, _ in self._nodes if node.children().isEmpty())

    @property
    def watermarks(self) -> Watermarks:
        above: dict[str, timedelta] = {}
        delays = []
        for node, kind in self._nodes:
            if kind == _WITH_WATERMARK:
                delays.append(timedelta(milliseconds=int(node.getDelayMs(node.delay()))))
                for name in filter(None, map(_stream_of, _each(node.collectLeaves()))):
                    above[name] = max(delays[-1], above.get(name, delays[-1]))
        emits = any(each.effect in _EMITTING for each in self.operators)
        return Watermarks(max(delays, default=None), above, bool(self.operators), emits)


def unflushable(operators: Sequence[Operator]) -> tuple[str, ...]:
    """The operators that a flush cannot empty, and why."""
    return tuple(str(each) for each in operators if each.empties is Empties.NOTHING)


def stateful(operators: Sequence[Operator]) -> tuple[StatefulOperator, ...]:
    """All operators, and what a flush does to each."""
    return tuple(StatefulOperator(each.kind, each.effect, each.why) for each in operators)


def check_stateless(stage: Stage, operators: Sequence[Operator]) -> None:
    """Raises BadJobFile for a stage with stateful operators that is declared to have none."""
    if operators and not stage.stateful:
        kinds = ", ".join(each.kind for each in operators)
        raise BadJobFile(f"stage {stage.name} is declared with stateful=False, but its query keeps state ({kinds}): remove stateful=False")


def _stream_of(leaf: Any) -> str | None:
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return None
    options = leaf.extraOptions()
    if (stream := options.get("stream")) is not None:
        return str(stream)
    assigned = json.loads(options.get("assign") or "{}")
    return next(iter(assigned), None)


def _output_mode(writer: Any) -> str:
    """ "Append", "Update" or "Complete", from a private field of the writer."""
    field = writer.getClass().getDeclaredField("outputMode")
    field.setAccessible(True)
    return str(field.get(writer).toString())


def _streaming_nodes(node: Any) -> Iterator[Any]:
    """The streaming nodes, in preorder."""
    if node.isStreaming():
        yield node
        for child in _each(node.children()):
            yield from _streaming_nodes(child)


def _each(scala: Any) -> Iterator[Any]:
    return (scala.apply(place) for place in range(scala.size()))


def _operator(node: Any, kind: str, mode: str) -> Operator | None:
    match kind:
        case "Aggregate":
            return _aggregation(node, mode)
        case "Distinct":
            return Operator("distinct", Empties.NOTHING, "it has no watermark")
        case "Join":
            return _join(node)
        case "Deduplicate":
            timed = any(map(_has_watermark, _each(node.keys())))
            return _by_watermark("dropDuplicates", timed, "no column of its key has a watermark", Effect.FORGETS)
        case "DeduplicateWithinWatermark":
            return Operator("dropDuplicatesWithinWatermark", Empties.EVENT_TIME, flushed=Effect.FORGETS)
        case "FlatMapGroupsWithState" | "FlatMapGroupsInPandasWithState":
            return _of_user_code("applyInPandasWithState", str(node.timeout().toString()), "it sets no timeouts")
        case "TransformWithState" | "TransformWithStateInPySpark":
            return _of_user_code("transformWithState", str(node.timeMode().toString()), "its time mode is none")
        case "GlobalLimit":
            return Operator("limit", Empties.NOTHING, "it counts for as long as the query lives")
    return None


def _aggregation(node: Any, mode: str) -> Operator:
    kind = "aggregation"
    if mode == "Complete":
        return Operator(kind, Empties.NOTHING, "its output mode is complete")
    flushed = Effect.EMITS if mode == "Append" else Effect.DROPS  # in update mode Spark has written each window already
    timed = any(map(_has_watermark, _each(node.groupingExpressions())))
    return _by_watermark(kind, timed, "no column of its key has a watermark", flushed)


def _join(node: Any) -> Operator | None:
    left, right = node.left(), node.right()
    if not (left.isStreaming() and right.isStreaming()):
        return None
    condition = node.condition()
    columns = list(_each(condition.get().references().toSeq())) if condition.isDefined() else []
    timed = [column for column in columns if _has_watermark(column)]
    both = all(any(side.outputSet().contains(column) for column in timed) for side in (left, right))
    flushed = Effect.UNMATCHED if str(node.joinType().toString()) in _OUTER else Effect.DROPS
    return _by_watermark("join", both, "its condition does not compare columns with watermarks of both sides", flushed)


_OUTER = ("LeftOuter", "RightOuter", "FullOuter")


def _by_watermark(kind: str, has: bool, why: str, flushed: Effect) -> Operator:
    return Operator(kind, Empties.EVENT_TIME, flushed=flushed) if has else Operator(kind, Empties.NOTHING, why)


def _of_user_code(kind: str, time: str, why: str) -> Operator:
    if "EventTime" in time:
        return Operator(kind, Empties.EVENT_TIME, flushed=Effect.FIRES)
    return (
        Operator(kind, Empties.PROCESSING_TIME, flushed=Effect.FIRES) if "ProcessingTime" in time else Operator(kind, Empties.NOTHING, why)
    )


def _has_watermark(expression: Any) -> bool:
    named = expression.getClass().getSimpleName() in ("AttributeReference", "Alias")
    return named and bool(expression.metadata().contains(WATERMARK))


# --- what an operator computes and keeps -----------------------------------------------------------------------------


LONGEST = 1500
"""Longer texts are cut, and end with a hash."""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {sha256(text.encode()).hexdigest()[:16]}"


def _identity(node: Any, kind: str, mode: str) -> str:
    """What must not change if the operator continues with its state: what Spark documents ("Recovery Semantics after Changes in a Streaming
    Query"), and the length of windows and the aggregates, which Spark does not compare. The code of user functions is not part of it, nor
    are projections, filters and watermark delays before the operator."""
    match kind:
        case "Aggregate":
            by = [_key(each, node) for each in _each(node.groupingExpressions())]
            functions = [_sql(found) for each in _each(node.aggregateExpressions()) for found in _aggregates(each)]
            return f"by {', '.join(by) or 'nothing'} of {', '.join(functions) or 'nothing'}, mode {mode}"
        case "Distinct":
            return f"of {_columns(node.output())}"
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return f"by {_columns(node.keys())}"
        case "Join":
            condition = node.condition()
            return f"{node.joinType().toString()} on {_sql(condition.get()) if condition.isDefined() else 'nothing'}"
        case "FlatMapGroupsWithState" | "FlatMapGroupsInPandasWithState":
            return f"by {_columns(node.groupingAttributes())}, timeout {node.timeout().toString()}, mode {mode}"
        case "TransformWithState" | "TransformWithStateInPySpark":
            keys = node.groupingAttributes() if kind == "TransformWithState" else node.leftAttributes()
            return f"by {_columns(keys)}, time mode {node.timeMode().toString()}, mode {mode}"
        case _:
            return ""


def _columns(attributes: Any) -> str:
    return ", ".join(f"{each.name()} {each.dataType().catalogString()}" for each in _each(attributes))


def _key(expression: Any, node: Any) -> str:
    """A grouping key with its type, and with the definition of a window."""
    kind = expression.dataType().catalogString()
    defined = _definition(expression, node) if kind.startswith("struct<start:timestamp") else None
    if defined is None:
        return f"{_sql(expression)} {kind}"
    return f"{_sql(expression)} of {', '.join(sorted({str(each.toString()) for each in _leaves(defined) if _is_literal(each)}))}"


def _definition(attribute: Any, node: Any) -> Any:
    """The expression that the plan below the node computes under the name of this attribute; None if there is none."""
    if attribute.getClass().getSimpleName() != "AttributeReference":
        return attribute
    wanted = attribute.exprId()
    below = list(_each(node.children()))
    while below:
        plan = below.pop(0)
        if plan.getClass().getSimpleName() == "Project":
            for each in _each(plan.projectList()):
                if each.getClass().getSimpleName() == "Alias" and each.exprId().equals(wanted):
                    return each.child()
        below.extend(_each(plan.children()))
    return None


def _leaves(expression: Any) -> Iterator[Any]:
    return _each(expression.collectLeaves())


def _is_literal(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "Literal")


def _aggregates(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield expression
        return
    for child in _each(expression.children()):
        yield from _aggregates(child)


def _sql(expression: Any) -> str:
    return str(expression.sql())
