"""The stateful operators of a stage, and what empties each of them. Derived from the logical plan of the query in the JVM, before the query
runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


WATERMARK = "spark.watermarkDelayMs"
"""The key in the metadata of a column with a watermark, and of a window over one."""


_USER_CODE = ("applyInPandasWithState", "transformWithState")


@unique
class Empties(Enum):
    """What makes an operator remove its state."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Operator:
    """`kind` is its name in the DataFrame API. `why`: what is missing, if nothing empties it."""

    kind: str
    empties: Empties
    why: str = ""

    @property
    def timed(self) -> bool:
        """Whether user code may set timers in it."""
        return self.kind in _USER_CODE and self.empties is not Empties.NOTHING

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}" if self.why else self.kind


def operators_of(writer: DataStreamWriter) -> tuple[Operator, ...]:
    """The stateful operators of the writer's query, from the sink to the sources."""
    plan = writer._df._jdf.queryExecution().analyzed()
    return operators_in(plan, _output_mode(writer._jwrite))


def operators_in(plan: Any, mode: str) -> tuple[Operator, ...]:
    """The stateful operators of a logical plan in the JVM; `mode` is Spark's name of the output mode."""
    return tuple(found for node in _streaming_nodes(plan) if (found := _operator(node, mode)) is not None)


def unflushable(writer: DataStreamWriter) -> tuple[str, ...]:
    """The operators of the query that a flush cannot empty, and why."""
    return tuple(str(each) for each in operators_of(writer) if each.empties is Empties.NOTHING)


def sources_of(writer: DataStreamWriter) -> tuple[str | None, ...]:
    """The streams of the query's sources, in the order of Spark's offset log; None for a source that is not Sluice's."""
    leaves = writer._df._jdf.queryExecution().analyzed().collectLeaves()
    return tuple(_stream_of(leaf) for leaf in _each(leaves) if leaf.isStreaming())


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


def _operator(node: Any, mode: str) -> Operator | None:
    match node.getClass().getSimpleName():
        case "Aggregate":
            return _aggregation(node, mode)
        case "Distinct":
            return Operator("distinct", Empties.NOTHING, "it has no watermark")
        case "Join":
            return _join(node)
        case "Deduplicate":
            return _by_watermark("dropDuplicates", any(map(_has_watermark, _each(node.keys()))), "no column of its key has a watermark")
        case "DeduplicateWithinWatermark":
            return Operator("dropDuplicatesWithinWatermark", Empties.EVENT_TIME)
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
    return _by_watermark(kind, any(map(_has_watermark, _each(node.groupingExpressions()))), "no column of its key has a watermark")


def _join(node: Any) -> Operator | None:
    left, right = node.left(), node.right()
    if not (left.isStreaming() and right.isStreaming()):
        return None
    condition = node.condition()
    columns = list(_each(condition.get().references().toSeq())) if condition.isDefined() else []
    timed = [column for column in columns if _has_watermark(column)]
    both = all(any(side.outputSet().contains(column) for column in timed) for side in (left, right))
    return _by_watermark("join", both, "its condition does not compare columns with watermarks of both sides")


def _by_watermark(kind: str, has: bool, why: str) -> Operator:
    return Operator(kind, Empties.EVENT_TIME) if has else Operator(kind, Empties.NOTHING, why)


def _of_user_code(kind: str, time: str, why: str) -> Operator:
    if "EventTime" in time:
        return Operator(kind, Empties.EVENT_TIME)
    return Operator(kind, Empties.PROCESSING_TIME) if "ProcessingTime" in time else Operator(kind, Empties.NOTHING, why)


def _has_watermark(expression: Any) -> bool:
    named = expression.getClass().getSimpleName() in ("AttributeReference", "Alias")
    return named and bool(expression.metadata().contains(WATERMARK))
