"""The columns of a DataFrame that a script writes to Kafka: those of Spark's own sink, without `topic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.core.errors import ClientError

_HEADERS = "array<struct<key:string,value:binary>>"
_ACCEPTED: Mapping[str, Sequence[str]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (_HEADERS,),
    "partition": ("int",),
}
"""Column -> its types, as in `DataFrame.dtypes`."""


class CannotWrite(ClientError):
    """The script cannot write these rows to Kafka."""


def record_columns(dtypes: Sequence[tuple[str, str]]) -> Sequence[str]:
    """The expressions that make records of the rows: `key` and `value` as binary, then `headers` and `partition`, if there are any. Without
    the column `key` keys are null. `dtypes`: name and type of each column. Raises CannotWrite."""
    types = dict(dtypes)
    unknown = [name for name in types if name not in _ACCEPTED]
    if unknown:
        also = "; rows of another topic need a writer of their own" if "topic" in unknown else ""
        raise CannotWrite(
            f"kafka_writer does not write the column{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}: select key, value, headers and "
            f"partition only{also}"
        )
    if "value" not in types:
        raise CannotWrite("kafka_writer needs the column value")
    for name, kind in types.items():
        if kind not in _ACCEPTED[name]:
            raise CannotWrite(f"the column {name} has the type {kind}: kafka_writer needs {' or '.join(_ACCEPTED[name])}")
    key = "CAST(key AS BINARY) AS key" if "key" in types else "CAST(NULL AS BINARY) AS key"
    return [key, "CAST(value AS BINARY) AS value", *(name for name in ("headers", "partition") if name in types)]
